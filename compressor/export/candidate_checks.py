"""Checks of a decoder that scores candidates: its logits and its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from compressor.errors import VerificationError
from compressor.export import verify
from compressor.model.generation import greedy
from compressor.steps.results import Check

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.runtime import Generator

Arrays = Mapping[str, NDArray[Any]]
_STEPS = 12  # that logits are compared along


def check_logits(open_runtime: Callable[..., Generator], batches: Sequence[Arrays]) -> Check:
    """Compare logits of candidates, and of all tokens in the same graph, with the usual decoder's.

    Args:
        open_runtime: opens the artifact in one precision, with further options.
        batches: `input_ids` and `attention_mask`, [rows, source] each.

    Raises:
        VerificationError: a logit differs.
    """
    runtime, usual = open_runtime(), open_runtime(candidates=False)
    settings = usual.artifact.generation
    steps = min(_STEPS, settings.limit)
    differences, counts = list[float](), list[int]()
    for batch in batches:
        answers = np.array(usual.generate(batch, forced_length=steps))  # [rows, steps]
        start = np.full((len(answers), 1), settings.decoder_start_token_id)
        tokens = np.concatenate([start, answers[:, :-1]], axis=1)
        wanted = usual.teacher_forced(batch, tokens)  # [rows, steps, tokens]
        difference = verify.relative_difference(runtime.teacher_forced(batch, tokens), wanted)
        places = runtime.candidates(batch)
        if places is not None:
            actual = runtime.teacher_forced(batch, tokens, candidates=True)[..., places]
            found = verify.relative_difference(actual, wanted[..., places])
            difference = max(difference, found)
            counts.append(len(places))
        differences.append(difference)
    worst = float(np.max(differences))
    if not worst <= verify.EXPORT_TOLERANCE:  # written so that NaN raises, too
        raise VerificationError(
            f"logits of candidates in {runtime.precision} differ from those of all tokens by "
            f"{worst:.2e} of the largest logit (tolerance {verify.EXPORT_TOLERANCE:.0e}); please "
            "report this with the checkpoint's name",
            id="candidates-differ",
        )
    return Check(
        name=f"{runtime.precision} candidates score as all tokens",
        largest_difference=worst,
        tolerance=verify.EXPORT_TOLERANCE,
        detail=f"logits of {len(batches)} ragged batches, relative to the largest logit; "
        f"{_said(counts)}",
    )


@torch.no_grad()
def check_tokens(
    runtime: Generator, model: nn.Module, batches: Sequence[Mapping[str, Tensor]]
) -> Check:
    """Compare float32 answers with PyTorch's greedy search without all other tokens.

    Args:
        runtime: the opened artifact.
        model: in float32.
        batches: ragged.

    Raises:
        VerificationError: an answer differs, and not by a tie.
    """
    settings, counts = runtime.artifact.generation, list[int]()

    def rows() -> Iterator[tuple[list[int], list[int], NDArray[Any]]]:
        for batch in batches:
            arrays = {name: batch[name].numpy() for name in ("input_ids", "attention_mask")}
            places = runtime.candidates(arrays)
            if places is None:
                continue
            counts.append(len(places))
            ids = runtime.tokens.ids[places]
            most = verify.most_steps(settings, arrays["input_ids"])
            _, answers, logits = greedy(model, batch, ids.tolist(), most)
            read = verify.reads_tokens(answers[:, :-1], runtime.end_ids)
            produced = runtime.generate(arrays, num_beams=1, max_new_tokens=most)
            for row, (got, values) in enumerate(zip(produced, logits, strict=True)):
                want = answers[row, 1:][read[row]]
                yield (
                    np.searchsorted(ids, want).tolist(),
                    np.searchsorted(ids, got).tolist(),
                    values[:, ids],  # [steps, candidates]
                )

    check = verify.translation_check(rows())
    return check.model_copy(
        update={
            "name": "ONNX generates candidates as PyTorch",
            "detail": f"{check.detail}; {_said(counts)}",
        }
    )


def _said(counts: Sequence[int]) -> str:
    """How many candidates batches had, in words."""
    if not counts:
        return "no batch has so few candidates that these are scored alone"
    return f"{min(counts):,} to {max(counts):,} candidates"
