"""Checks that exported graphs give PyTorch's outputs; VerificationError if they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.errors import VerificationError
from compressor.model.generation import perturbed
from compressor.model.token_selection import undecided_text
from compressor.runtime.generation import Generation
from compressor.steps.results import Check

# The libraries order and fuse float32 sums differently: about 1e-6 of the largest logit per layer.
# A wrong head count or mask causes 1e-2 and more.
EXPORT_TOLERANCE = 1e-4
_COMPARED = 32  # tokens to generate at most, plus two per source token
_TRIES = 9  # with changed logits, for a row that several beams answer otherwise


class Spooled:
    """An array in a temporary file, which is deleted with this object."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._file = TemporaryFile()  # noqa: SIM115
        np.save(self._file, array)

    def read(self) -> Any:
        """Read the array back."""
        self._file.seek(0)
        return np.load(self._file)


@dataclass(frozen=True)
class Expected:
    """PyTorch's outputs for one ragged batch.

    Args:
        inputs: of the batch, as the runtime takes them.
        logits: [rows, ...]; a translator's may be as large as the model, so they are in a file.
        tokens: generated, with the start token, [rows, steps + 1]; None without a decoder.
        margins: how certain the choice of tokens was, [rows]; None where all are kept.
    """

    inputs: Mapping[str, NDArray[Any]]
    logits: Spooled  # [rows, ...]; a translator's may be as large as the model
    # Generated, including the start token, [rows, steps + 1]; None without a decoder.
    tokens: NDArray[Any] | None = None
    margins: NDArray[Any] | None = None  # of the choice of tokens, `token_selection`


@dataclass(frozen=True)
class Compared:
    """An artifact's outputs compared with PyTorch's.

    Args:
        differences: of the logits of each batch, relative to the largest logit.
        same: whether each prediction equals PyTorch's.
        answers: name of the predictions, for texts.
        undecided: rows left out of the differences, since rounding decides which tokens they keep.
    """

    differences: Sequence[float]  # of the logits of each batch, relative to the largest logit
    same: Sequence[bool]  # whether each prediction equals PyTorch's
    answers: str  # name of the predictions, for texts
    undecided: int = 0


def require_fed_back(runtime: Any, inputs: Mapping[str, NDArray[Any]], length: int = 12) -> None:
    """Raise `VerificationError` unless generation on the device equals generation step by step.

    Args:
        runtime: a generator whose decoder feeds back its tokens.
        inputs: of a batch.
        length: tokens to generate at most.
    """
    steps = min(length, runtime.artifact.generation.limit)
    if runtime.generate(inputs, forced_length=steps) != runtime.stepwise(inputs, steps):
        raise VerificationError(
            f"the {runtime.precision} decoder on {runtime.ran_by} generates other tokens on the "
            "device than step by step; please report this with the checkpoint's name",
            id="fed-back-tokens-differ",
        )


def translation_check(
    rows: Iterable[tuple[list[int], list[int], Any]], note: str = "", engine: str = "ONNX"
) -> Check:
    """The check that an engine's tokens are PyTorch's, except after a tie of PyTorch's logits.

    Args:
        rows: tokens of PyTorch and of the engine, and PyTorch's logits [steps, vocabulary].
        note: what else the check is to say.
        engine: its name.

    Raises:
        VerificationError: a token differs, and there is no tie.
    """
    count = tokens = ties = 0
    for want, got, logits in rows:
        count, tokens = count + 1, tokens + len(want)
        if want == got:
            continue
        ties += 1
        shorter = min(len(want), len(got))
        step = next((i for i in range(shorter) if want[i] != got[i]), shorter)
        if step < shorter:  # else one is only longer, and it is no tie
            row = np.asarray(logits[step])  # [vocabulary]
            gap = float(row[want[step]] - row[got[step]])
            if abs(gap) <= EXPORT_TOLERANCE * float(np.abs(row).max()):
                continue
        raise VerificationError(
            f"the {engine} model differs from PyTorch at token {step + 1} of the output for a "
            "calibration row; please report this with the checkpoint's name",
            id=f"{engine.lower()}-translation-differs",
        )
    detail = f"{tokens} greedy tokens of {count} rows{note}"
    if ties:
        detail += f"; {ties} rows differ after a tie of two logits"
    return Check(
        name=f"{engine} generates as PyTorch", largest_difference=0.0, tolerance=0.0, detail=detail
    )


def rows_that_differ(
    model: Any, search: Callable[[], list[list[int]]], found: Sequence[Sequence[int]]
) -> list[int]:
    """Rows for which a search finds other tokens than a model's, where that is certain.

    Args:
        model: in PyTorch.
        search: the model's answers at each call, rows of tokens.
        found: those of the other search.

    Returns:
        The rows that differ, however the model's logits are changed a little.
    """
    wanted = search()
    others = [row for row, want in enumerate(wanted) if found[row] != want]
    # A hypothesis that is as good as another one may be dropped for it, and a small difference of
    # logits decides. PyTorch then finds the other one, too, when its logits change as little.
    for seed in range(_TRIES):
        if not others:
            break
        with perturbed(model, EXPORT_TOLERANCE * 10.0 ** -(seed % 3), seed):
            wanted = search()
        others = [row for row in others if found[row] != wanted[row]]
    return others


def require_searched(
    model: Any, search: Callable[[], list[list[int]]], found: Sequence[Sequence[int]]
) -> None:
    """Raise `VerificationError` unless graphs find what `rows_that_differ` searches for."""
    if rows_that_differ(model, search, found):
        raise VerificationError(
            "a search with several beams finds other tokens for a calibration row with the ONNX "
            "model than with PyTorch; please report this with the checkpoint's name",
            id="onnx-search-differs",
        )


def search_check(rows: int, beams: int) -> Check:
    """The check of `require_searched`, which was passed."""
    return Check(
        name="ONNX searches as PyTorch",
        largest_difference=0.0,
        tolerance=0.0,
        detail=f"tokens of {rows} rows with {beams} beams",
    )


def at_real_tokens(values: NDArray[Any], attention_mask: NDArray[np.int64]) -> list[NDArray[Any]]:
    """The values of each row's real tokens, [real, …], in a padded batch.

    At padding, where DeBERTa and ModernBERT mask otherwise in PyTorch than in a graph, they may be
    anything, NaN too, as nothing reads them.

    Args:
        values: [rows, tokens, …].
        attention_mask: [rows, tokens] of 1 and 0.
    """
    return [row[real > 0] for row, real in zip(values, attention_mask, strict=True)]


def relative_difference(actual: Any, expected: Any) -> float:
    """The largest difference of two arrays as a share of the largest expected value.

    Without copies of the whole.

    Args:
        actual: [rows, ...]; rows may differ in length.
        expected: the same shape.

    Returns:
        The share; NaN if any number is.
    """
    pairs = zip(actual, expected, strict=True)
    largest, difference = np.max(
        [(np.abs(want).max(), np.abs(got - want).max()) for got, want in pairs], axis=0
    )
    return float(difference / max(largest, 1e-12))


def logit_check(differences: Sequence[float], provider: str = "", undecided: int = 0) -> Check:
    """The check of the logits.

    Args:
        differences: the relative difference of each batch.
        provider: that computed them, if it is to be named.
        undecided: rows that were left out (`Compared`).

    Raises:
        VerificationError: one exceeds `EXPORT_TOLERANCE`.
    """
    worst = float(np.max(differences))  # NaN if any is
    # Written so that NaN raises, too.
    if not worst <= EXPORT_TOLERANCE:
        raise VerificationError(
            f"the ONNX model's logits differ from PyTorch's by {worst:.2e} of the largest logit "
            f"(tolerance {EXPORT_TOLERANCE:.0e}); please report this with the checkpoint's name",
            id="onnx-differs",
        )
    return Check(
        name="ONNX equals PyTorch",
        largest_difference=worst,
        tolerance=EXPORT_TOLERANCE,
        detail=f"logits of {len(differences)} ragged batches, relative to the largest logit"
        + (f"; {provider}" if provider else "")
        + undecided_text(undecided),
    )


def most_steps(settings: Generation, sources: Any) -> int:
    """How many tokens to compare at most, for sources [rows, tokens]."""
    return min(settings.limit, _COMPARED + 2 * sources.shape[1])


def reads_tokens(tokens: NDArray[Any], end_ids: Sequence[int]) -> NDArray[Any]:
    """Whether each step is before the first end token, [rows, steps]."""
    ended = np.isin(tokens, list(end_ids))
    ended[:, 0] = False  # the start token may be an end token
    return np.cumsum(ended, axis=1) == 0
