"""Confidence: the mean over tokens of the largest attention weight of a head.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4: the average of a head's maximum
attention weight, excluding the end-of-sentence symbol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compressor import parallel
from compressor.errors import InputError
from compressor.importance import NormalizedMethod, RawScores, ScoringJob
from compressor.model.sublayers import Sublayer

if TYPE_CHECKING:
    from torch import Tensor

    from compressor.tasks import Batch

# Tokens that mark where a text begins and ends: [CLS], [SEP], <s>, </s>.
_BOUNDARIES = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")


class Confidence(NormalizedMethod):
    """Mean of the head's largest attention weight; heads only."""

    scores_neurons: ClassVar[bool] = False
    name: ClassVar[str] = "confidence"

    def score(self, scoring: ScoringJob) -> RawScores:
        """Mean over real query tokens of the largest attention weight, between 0 and 1.

        The tokenizer's boundary tokens are excluded as queries and as keys (without renormalizing
        the other weights). Queries that attend to boundary tokens only are excluded too.

        Raises:
            InputError: no token is left to average over.
        """
        import torch

        from compressor.importance.attention import visit_attention

        sums = {x.name: torch.zeros(x.units, dtype=torch.float64) for x in scoring.layers}
        counts = dict.fromkeys(sums, 0)
        ids = (getattr(scoring.tokenizer, name, None) for name in _BOUNDARIES)
        excluded = sorted({int(token) for token in ids if token is not None})
        special = torch.tensor(excluded, dtype=torch.long, device=scoring.device)

        def add(layer: Sublayer, probabilities: Tensor, visible: Tensor, batch: Batch) -> None:
            query_ids = batch[layer.query_ids]  # [batch, queries]
            key_ids = batch[layer.key_ids]  # [batch, keys]
            included = visible & ~torch.isin(key_ids, special)[:, None, None]  # as `visible`
            counted = scoring.task.token_mask(batch, layer.kind) & ~torch.isin(query_ids, special)
            counted = counted & included.any(-1).squeeze(1)  # [batch, queries]
            largest = (probabilities * included).amax(-1)  # [batch, heads, queries]
            sums[layer.name] += (largest * counted[:, None]).sum((0, 2)).double().cpu()
            counts[layer.name] += int(counted.sum())

        passes = visit_attention(scoring, add)
        parallel.add_up(*sums.values())
        values = {}
        for name, total in sums.items():
            count = parallel.total(counts[name])
            if count == 0:
                raise InputError(
                    f"the calibration rows have only special tokens for {name}, and --method "
                    "confidence needs words; give other rows",
                    id="calibration-without-words",
                )
            values[name] = (total / count * torch.tensor(scoring.mask.keep[name])).tolist()
        names = ",".join(map(str, excluded)) or "none"
        return RawScores(values, f"excluded_ids:{names}", forward_passes=passes)
