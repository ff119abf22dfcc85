"""Tables of candidates, and artifacts with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from compressor.export.candidate_graphs import add_candidates
from compressor.export.precisions import write_precision
from compressor.runtime.candidates import FREQUENT_ROWS
from compressor.tasks import Example
from tests.helpers.runtime_artifacts import Exported, write_hashes


def table_by_a_loop(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], tokens: int, k: int
) -> np.ndarray:
    """The table of candidates of one vocabulary, counted in sets of tokens."""
    both, of_source, of_target = Counter(), Counter(), Counter()
    for source, target in zip(sources, targets, strict=True):
        of_source.update(set(source))
        of_target.update(set(target))
        both.update((s, t) for s in set(source) for t in set(target))
    frequent = sorted(range(tokens), key=lambda t: (-of_target[t], t))[: FREQUENT_ROWS * k]
    rows = []
    for token in range(tokens):
        dice = {
            t: 2 * n / (of_source[s] + of_target[t]) for (s, t), n in both.items() if s == token
        }
        best = sorted(dice, key=lambda t: (-dice[t], t))[:k]
        rows.append([*best, *[token] * (k - len(best))])
    return np.array(rows + np.reshape(frequent, (-1, k)).tolist(), np.int32)


def random_table(tokens: int, k: int) -> np.ndarray:
    """A table for searches, to which it does not matter what is in it."""
    rng = np.random.default_rng(0)
    return rng.integers(0, tokens, (tokens + FREQUENT_ROWS, k)).astype(np.int32)


def with_table(made: Exported, table: np.ndarray, examples: Sequence[Example] = ()) -> Exported:
    """The artifact with candidates, in both precisions."""
    path = made.directory / "candidates.npy"
    np.save(path, table)
    add_candidates(made.directory, path)
    path.unlink()
    write_precision(made.directory, "int8", examples)
    write_hashes(made.directory)
    return made
