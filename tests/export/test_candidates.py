"""Tables of candidates, and graphs that score them, of every architecture.

Expected tables come from a count by a loop over pairs, with Python's sets.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import from_array, to_array

from compressor.errors import VerificationError
from compressor.export.candidate_table import PairCounts, learn_candidates, measure
from compressor.model.checkpoint import open_checkpoint
from compressor.progress import SILENT
from compressor.recovery.planning import RecoveryPlan
from compressor.runtime.candidates import FREQUENT_ROWS, candidates
from compressor.tasks import TASKS, Example
from compressor.training.text import Text, TextLines
from tests.helpers import toy
from tests.helpers.candidates import random_table, table_by_a_loop, with_table
from tests.helpers.errors import raises
from tests.helpers.files import packed
from tests.helpers.runtime_artifacts import export, vary
from tests.helpers.tiny import (
    TRANSLATOR_RELATIVES,
    TRANSLATORS,
    nothing_left_mask,
    ragged_batch,
    uneven_mask,
)

TOKENS = 40


def pairs(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens of sources and of targets, which repeat."""
    rng = np.random.default_rng(0)
    return [
        tuple(rng.integers(0, TOKENS - 2, rng.integers(1, 9)) for _ in range(2))
        for _ in range(count)
    ]


@pytest.mark.parametrize("at_a_time", [1, 1 << 22])
@pytest.mark.parametrize("k", [1, 3, 60])
def test_a_table_has_the_tokens_with_the_largest_dice_coefficients(monkeypatch, k, at_a_time):
    """However many pairs are sorted at a time; also with more than there are."""
    monkeypatch.setattr("compressor.export.candidate_table._AT_ONCE", at_a_time)
    rows, counts = pairs(120), PairCounts(TOKENS, TOKENS)
    for row in rows:
        counts.add(*row)
    table = counts.table(k, np.arange(TOKENS))
    if k < TOKENS / FREQUENT_ROWS:
        wanted = table_by_a_loop(*zip(*rows, strict=True), TOKENS, k)
        np.testing.assert_array_equal(table, wanted)
    else:
        assert table.shape == (TOKENS + FREQUENT_ROWS, k)
        assert {*table[-FREQUENT_ROWS:].ravel().tolist()} == {*range(TOKENS)}


def test_what_a_table_misses_is_counted():
    """Against sets of candidates, for rows alone and in batches of 16 of similar length."""
    table, targets = random_table(TOKENS, 2), 2000
    rows = pairs(40)
    found = measure(table, rows, targets)
    alone = [{*candidates(table, source, (), targets).tolist()} for source, _ in rows]
    missed = sum(t not in s for s, (_, row) in zip(alone, rows, strict=True) for t in row.tolist())
    tokens = sum(len(row) for _, row in rows)
    assert found["missed_by_row"] == missed / tokens
    assert found["per_row"] == np.mean([len(x) for x in alone])
    ordered = sorted(rows, key=lambda row: len(row[0]))
    groups = [ordered[first : first + 16] for first in (0, 16, 32)]
    sources = [np.concatenate([source for source, _ in group]) for group in groups]
    together = [candidates(table, source, (), targets) for source in sources]
    assert found["per_batch"] == np.mean([len(x) for x in together])
    missed = sum(
        t not in chosen
        for chosen, group in zip(together, groups, strict=True)
        for _, row in group
        for t in row.tolist()
    )
    assert found["missed_by_batch"] == missed / tokens
    nothing_is_left_out = measure(table, rows, 100)
    assert nothing_is_left_out == {
        "missed_by_row": 0, "missed_by_batch": 0, "per_row": 100, "per_batch": 100,
    }  # fmt: skip


def test_candidates_are_among_the_tokens_that_are_scored(tmp_path):
    """As numbers of these, in their order."""
    checkpoint = open_checkpoint(str(toy.translator(tmp_path / "dense")))
    lines = toy.sentences(40), toy.sentences(40, 1)
    sources, targets = (
        TextLines(packed(tmp_path / f"{n}.txt", "".join(f"{x}\n" for x in texts)))
        for n, texts in enumerate(lines)
    )
    task = TASKS["translation"]
    text = Text(sources, task, checkpoint.tokenizer, 32, translations=targets)
    scored = [0, 1, 2, *range(10, 59, 3)]
    found = learn_candidates(
        2,
        RecoveryPlan(text=text),
        scored,
        directory=tmp_path,
        opened=SimpleNamespace(checkpoint=checkpoint),
        context=SimpleNamespace(progress=SILENT),
    )
    table = np.load(found.table, allow_pickle=False)
    encode = checkpoint.tokenizer
    left = [n for n in range(40) if n % 20 != 19]
    source_rows = [encode(lines[0][n]).input_ids for n in left]
    target_rows = [[t for t in encode(lines[1][n]).input_ids if t in scored] for n in left]
    whole = table_by_a_loop(source_rows, target_rows, 60, 2)
    seen = {token for row in source_rows for token in row}
    for token in sorted(seen):
        wanted = [t for t in whole[token].tolist() if t in scored]
        assert np.array(scored)[table[token]].tolist()[: len(wanted)] == wanted
    assert (found.facts.pairs, found.facts.rows) == (38, 2)
    assert np.array(scored)[table[-FREQUENT_ROWS:]].tolist() == whole[-FREQUENT_ROWS:].tolist()


def examples() -> list[Example]:
    rng = np.random.default_rng(3)
    rows = [tuple(rng.integers(3, 60, 6).tolist()) for _ in range(16)]
    return [Example(n, row, row) for n, row in enumerate(rows)]


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("name", [*TRANSLATORS, *TRANSLATOR_RELATIVES])
def test_graphs_of_all_architectures_score_candidates(tmp_path: Path, name, calibrated):
    """By the program's own checks, in both precisions: with ranges of activations, and without."""
    made = export(
        toy.many_words(tmp_path / "dense", name),
        uneven_mask if calibrated else nothing_left_mask,
        tmp_path / "out",
        vary,
    )
    with_table(made, random_table(1200, 6), examples() if calibrated else ())
    graphs, batches = TASKS["translation"].graphs, [ragged_batch(made.model, rows=3)]
    for batch in batches:
        batch["input_ids"] = batch["input_ids"].clamp(max=59)
    for precision in ("fp32", "int8"):
        model = made.model if precision == "fp32" else None
        checks = graphs.check_candidates(made.directory, precision, batches, model)
        assert len(checks) == (2 if model else 1)
        for check in checks:
            assert check.is_met
            assert "128 to 128 candidates" in check.detail


def test_graphs_with_other_weights_are_refused(tmp_path):
    made = export(toy.many_words(tmp_path / "dense"), uneven_mask, tmp_path / "out", vary)
    with_table(made, random_table(1200, 6))
    path = made.directory / "onnx/gather_candidates.onnx"
    gather = onnx.load(path)
    (weight,) = (x for x in gather.graph.initializer if len(x.dims) == 2)
    weight.CopyFrom(from_array(to_array(weight)[::-1].copy(), weight.name))
    onnx.save(gather, path)
    graphs = TASKS["translation"].graphs
    with raises(VerificationError, "candidates-differ"):
        graphs.check_candidates(made.directory, "fp32", [ragged_batch(made.model)])
