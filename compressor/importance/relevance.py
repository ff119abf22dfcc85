"""Relevance: how much a head contributes to the top-1 logit, by layer-wise relevance propagation.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4 and appendix A. Relevance starts
at the largest logit and flows back in proportion to every neuron's contribution. With the basic
rule (R_u = sum over v of W_uv u / (sum over u' of W_u'v u' + bias) R_v) this is gradient times
input of a model whose nonlinear parts are constant factors: a head's relevance is
a_h . d logit / d a_h. The constant factors are

- attention probabilities: relevance passes through the values alone;
- the standard deviation in layer normalization (subtracting the mean is linear);
- f(x) / x at an activation f: relevance passes through unchanged.

The paper also lets relevance flow through queries and keys (its released code has a switch for
that), weighs positive and negative contributions separately, and uses generated translations; here
target positions are teacher-forced.

Layer-wise relevance propagation is a patented technique. It is free for personal and scientific
use; commercial use may need a license from the patent's holders.
"""

from __future__ import annotations

from typing import ClassVar

from compressor import parallel
from compressor.importance import RawScores, ScoringJob, TokenwiseMethod


class Relevance(TokenwiseMethod):
    """Layer-wise relevance propagation from the largest logit."""

    needs_answers: ClassVar[bool] = True
    name: ClassVar[str] = "relevance"

    def score(self, scoring: ScoringJob) -> RawScores:
        """A unit's share of its layer's relevance, averaged over target positions (or rows).

        The relevance of a unit is the signed sum over its columns and tokens; its share is its
        absolute value divided by the sum of those of the layer's units, since signed ones can
        cancel to zero.

        `per="token"` uses the top-1 logit of every target position by itself, as the paper does:
        one forward pass and as many backward passes as the batch's longest target has tokens.
        `per="example"` uses the sum of the example's top-1 logits, in one backward pass, where
        contributions of opposite sign to different positions cancel. A classifier has one position,
        so both are the same.
        """
        from compressor.importance.gradients import zeros
        from compressor.importance.propagation import add_batch, linearized
        from compressor.model.modes import frozen
        from compressor.model.surgery import gated, mask_gates

        shares = zeros(scoring)
        counted = backward = 0
        model, total = scoring.model, len(scoring.batches)
        gates = mask_gates(scoring.mask)
        with frozen(model), gated(model, scoring.layers, gates), linearized(model):
            for done, batch in enumerate(scoring.batches, 1):
                moved = batch.to(scoring.device)
                positions, passes = add_batch(scoring, moved, self.per, shares)
                counted += positions
                backward += passes
                scoring.progress(done, total)
        parallel.add_up(*shares.values())
        counted, total, backward = map(parallel.total, (counted, total, backward))
        values = {name: (share / counted).tolist() for name, share in shares.items()}
        return RawScores(values, f"per:{self.per}", total, backward)
