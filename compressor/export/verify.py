"""The check that every export must pass: the runtime answers as PyTorch does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compressor.errors import VerificationError
from compressor.export.vocabulary import restricted
from compressor.results import Check
from compressor.runtime import Classifier, Translator

# The two libraries order and fuse float32 sums differently: about 1e-6 of the largest logit per
# layer. A wrong head count or mask causes 1e-2 and more.
EXPORT_TOLERANCE = 1e-4


@torch.no_grad()
def verify_classifier(
    model: nn.Module, directory: Path, batches: Sequence[Mapping[str, Tensor]]
) -> list[Check]:
    """Compare logits on ragged batches of model inputs.

    Raises:
        VerificationError: they differ by more than `EXPORT_TOLERANCE` of the largest logit.
    """
    runtime = Classifier(directory, verify=False)
    differences = []
    for batch in batches:
        expected = model(**batch).logits.numpy()
        actual = runtime.run({name: value.numpy() for name, value in batch.items()})
        differences.append(relative_difference(actual, expected))
    return [logit_check(differences)]


@torch.no_grad()
def verify_translator(
    model: nn.Module, directory: Path, batches: Sequence[Mapping[str, Tensor]]
) -> list[Check]:
    """Compare greedy translations token for token, and logits along PyTorch's translations.

    Args:
        batches: `input_ids` and `attention_mask`, [batch, source], ragged.

    Raises:
        VerificationError: a logit or a generated token differs. A token may differ where
            PyTorch's own two best logits are closer together than the tolerance.
    """
    runtime = Translator(directory, verify=False)
    ids = torch.from_numpy(runtime.tokens.ids)
    differences: list[float] = []
    tokens, ties = 0, 0
    for batch in batches:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        arrays = {name: value.numpy() for name, value in inputs.items()}
        with restricted(model, runtime.tokens.ids.tolist()):
            expected = greedy_tokens(model, inputs, runtime)
            logits = model(**inputs, decoder_input_ids=expected[:, :-1]).logits[..., ids]
        steps = runtime.teacher_forced(arrays, expected[:, :-1].numpy())
        differences.append(relative_difference(steps, logits.numpy()))
        produced = runtime.generate(arrays, num_beams=1)
        for row, (want, got) in enumerate(zip(expected[:, 1:].tolist(), produced, strict=True)):
            want = _until_end(want, runtime.end_ids)
            tokens += len(want)
            if want != list(got):
                columns = [runtime.tokens.indices(np.array(t)).tolist() for t in (want, got)]
                require_tie(columns[0], columns[1], logits[row])
                ties += 1
    check = logit_check(differences)
    detail = f"{tokens} greedy tokens of {sum(len(b['input_ids']) for b in batches)} sentences"
    if len(ids) < runtime.artifact.vocab_size:
        detail += f"; the decoder scores {len(ids):,} of {runtime.artifact.vocab_size:,} tokens"
    if ties:
        detail += f"; {ties} sentences differ from a tie of two logits on"
    return [
        check,
        Check(
            name="ONNX translates as PyTorch", largest_difference=0.0, tolerance=0.0, detail=detail
        ),
    ]


def greedy_tokens(model: nn.Module, inputs: Mapping[str, Tensor], runtime: Translator) -> Tensor:
    """PyTorch's greedy translations, as long as the runtime's may be, [batch, target].

    A checkpoint may ask for more tokens than its decoder has positions for.
    """
    generation = runtime.artifact.generation
    # The one that counts by itself: transformers warns where both are given.
    counts_new = generation.max_new_tokens is not None
    limit = generation.limit
    longest = {"max_new_tokens": limit} if counts_new else {"max_length": limit + 1}
    return model.generate(**inputs, num_beams=1, do_sample=False, **longest)  # type: ignore[operator]


def _until_end(ids: list[int], end_ids: Sequence[int]) -> list[int]:
    """The tokens up to the first end token: what follows is padding."""
    for position, token in enumerate(ids):
        if token in end_ids:
            return ids[: position + 1]
    return ids


def require_tie(want: list[int], got: list[int], logits: Tensor) -> None:
    """Raise VerificationError unless two token sequences part at a tie of PyTorch's logits.

    Args:
        logits: [steps, vocabulary] of PyTorch along `want`.
    """
    step = next(
        (i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b),
        min(len(want), len(got)),
    )
    if step < min(len(want), len(got)):
        gap = float(logits[step, want[step]] - logits[step, got[step]])
        if abs(gap) <= EXPORT_TOLERANCE * float(logits[step].abs().max()):
            return
    raise VerificationError(
        f"the ONNX translator differs from PyTorch at token {step + 1} of a calibration sentence; "
        "please report this with the checkpoint's name",
        id="onnx-translation-differs",
    )


def relative_difference(actual: Any, expected: np.ndarray) -> float:
    """The largest difference of two arrays as a share of the largest expected value."""
    return float(np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-12))


def logit_check(differences: Sequence[float]) -> Check:
    """The check of the logits, from the relative difference of each batch.

    Raises:
        VerificationError: one exceeds `EXPORT_TOLERANCE`.
    """
    worst = float(np.max(differences))  # NaN wins, unlike with Python's max
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
        detail=f"logits of {len(differences)} ragged batches, relative to the largest logit",
    )
