"""Shared code of the checks that exported graphs give PyTorch's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.errors import VerificationError
from compressor.results import Check

# The libraries order and fuse float32 sums differently: about 1e-6 of the largest logit per layer.
# A wrong head count or mask causes 1e-2 and more.
EXPORT_TOLERANCE = 1e-4


class Spooled:
    """An array in a temporary file, which is deleted with this object."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._file = TemporaryFile()  # noqa: SIM115
        np.save(self._file, array)

    def read(self) -> NDArray[Any]:
        self._file.seek(0)
        array: NDArray[Any] = np.load(self._file)
        return array


@dataclass(frozen=True)
class Expected:
    """PyTorch's outputs for one ragged batch.

    Args:
        inputs: of the batch, for the runtime.
        logits: [rows, ...], in a file, since a translator's may be as large as the model.
        tokens: generated tokens including the start token, [rows, steps + 1]; None without a
            decoder.
    """

    inputs: Mapping[str, NDArray[Any]]
    logits: Spooled
    tokens: NDArray[Any] | None = None


def require_tie(want: list[int], got: list[int], logits: Any, engine: str = "ONNX") -> None:
    """Raise VerificationError unless two token sequences first differ at a tie of PyTorch's logits.

    Args:
        logits: [steps, vocabulary] of PyTorch along `want`, an array or a tensor.
    """
    step = next(
        (i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b),
        min(len(want), len(got)),
    )
    # If one is only longer, there are no two tokens to compare, and it is no tie.
    if step < min(len(want), len(got)):
        row = np.asarray(logits[step])  # [vocabulary]
        gap = float(row[want[step]] - row[got[step]])
        if abs(gap) <= EXPORT_TOLERANCE * float(np.abs(row).max()):
            return
    raise VerificationError(
        f"the {engine} model differs from PyTorch at token {step + 1} of the output for a "
        "calibration row; please report this with the checkpoint's name",
        id=f"{engine.lower()}-translation-differs",
    )


def require_fed_back(runtime: Any, inputs: Mapping[str, NDArray[Any]], length: int = 12) -> None:
    """Raise VerificationError unless generation on the device equals generation step by step.

    Args:
        runtime: of an encoder-decoder that `feeds_back` its tokens on the device.
    """
    steps = min(length, runtime.artifact.generation.limit)
    if runtime.generate(inputs, forced_length=steps) != runtime.stepwise(inputs, steps):
        raise VerificationError(
            f"the {runtime.precision} decoder on {runtime.ran_by} generates other tokens on the "
            "device than step by step; please report this with the checkpoint's name",
            id="fed-back-tokens-differ",
        )


def translation_check(
    tokens: int, rows: int, ties: int, note: str = "", engine: str = "ONNX"
) -> Check:
    """The check that all outputs equal PyTorch's, except for ties that `require_tie` accepts.

    Args:
        tokens, rows, ties: numbers of those compared, and of rows that differ after a tie.
        note: more text for the detail.
    """
    detail = f"{tokens} greedy tokens of {rows} rows{note}"
    if ties:
        detail += f"; {ties} rows differ after a tie of two logits"
    return Check(
        name=f"{engine} generates as PyTorch", largest_difference=0.0, tolerance=0.0, detail=detail
    )


def relative_difference(actual: Any, expected: Any) -> float:
    """The largest difference of two arrays [rows, ...] as a share of the largest expected value.

    Computed row by row, without copies of the whole; rows may differ in length; NaN if any is NaN.
    """
    pairs = zip(actual, expected, strict=True)
    largest, difference = np.max(
        [(np.abs(want).max(), np.abs(got - want).max()) for got, want in pairs], axis=0
    )
    return float(difference / max(largest, 1e-12))


def logit_check(differences: Sequence[float], provider: str = "") -> Check:
    """The check of the logits, from the relative difference of each batch.

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
        + (f"; {provider}" if provider else ""),
    )
