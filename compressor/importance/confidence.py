"""Confidence: the mean over tokens of the largest attention weight of a head.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4: the average of a head's maximum
attention weight, excluding the end-of-sentence symbol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError
from compressor.importance import NormalizedMethod, RawScores, ScoringJob
from compressor.model.sublayers import Kind, Sublayer

if TYPE_CHECKING:
    from torch import Tensor

    from compressor.tasks import Batch

_BOUNDARIES = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")


class Confidence(NormalizedMethod):
    """Mean of the head's largest attention weight; heads only."""

    scores_neurons: ClassVar[bool] = False

    name: ClassVar[str] = "confidence"

    def score(self, scoring: ScoringJob) -> RawScores:
        """Mean over real query tokens of the largest attention weight, between 0 and 1.

        The tokenizer's `boundary_ids` are excluded as queries and as keys (without renormalizing
        the other weights). Queries that attend to boundary tokens only are excluded too.

        Raises:
            InputError: no token is left to average over.
        """
        import torch

        from compressor import parallel
        from compressor.importance.attention import visit_attention

        sums = {x.name: torch.zeros(x.units, dtype=torch.float64) for x in scoring.layers}
        counts = dict.fromkeys(sums, 0)
        excluded = sorted(boundary_ids(scoring.tokenizer))
        special = torch.tensor(excluded, dtype=torch.long, device=scoring.device)

        def add(layer: Sublayer, probabilities: Tensor, visible: Tensor, batch: Batch) -> None:
            query_ids, key_ids = _token_ids(batch, layer.kind)
            included = visible & ~torch.isin(key_ids, special)[:, None, None]  # as `visible`
            counted = scoring.task.token_mask(batch, layer.kind) & ~torch.isin(query_ids, special)
            counted = counted & included.any(-1).squeeze(1)  # [batch, queries]
            largest = (probabilities * included).amax(-1)  # [batch, heads, queries]
            sums[layer.name] += (largest * counted[:, None]).sum((0, 2)).double().cpu()
            counts[layer.name] += int(counted.sum())

        passes = visit_attention(scoring, add)
        parallel.add_up(*sums.values())
        counts = {name: parallel.total(count) for name, count in counts.items()}
        for name, count in counts.items():
            if count == 0:
                raise InputError(
                    f"the calibration rows have only special tokens for {name}, and --method "
                    "confidence needs words; give other rows",
                    id="calibration-without-words",
                )
        values = {
            name: (total / counts[name] * torch.tensor(scoring.mask.keep[name])).tolist()
            for name, total in sums.items()
        }
        ids = ",".join(map(str, excluded)) or "none"
        return RawScores(values, f"excluded_ids:{ids}", forward_passes=passes)


def boundary_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of the tokens that mark where a text begins and ends: [CLS], [SEP], <s>, </s>."""
    ids = (getattr(tokenizer, name, None) for name in _BOUNDARIES)
    return frozenset(int(token) for token in ids if token is not None)


def _token_ids(batch: Batch, kind: Kind) -> tuple[Tensor, Tensor]:
    """Token ids of the queries and of the keys, [batch, queries] and [batch, keys]."""
    queries = "input_ids" if kind == "encoder_self" else "decoder_input_ids"
    keys = "decoder_input_ids" if kind == "decoder_self" else "input_ids"
    return batch[queries], batch[keys]
