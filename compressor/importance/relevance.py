"""Relevance: how much a head contributes to the top-1 logit, by layer-wise relevance propagation.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4 and appendix A. Relevance starts
at the largest logit and flows back in proportion to what every neuron contributes. With the
basic rule (R_u = sum over v of W_uv u / (sum over u' of W_u'v u' + bias) R_v) that is gradient
times input of a model in which all that is not linear is a constant factor: a head's relevance is
a_h . d logit / d a_h. The constant factors are

- attention probabilities: relevance passes through the values alone;
- the standard deviation in layer normalization (subtracting the mean is linear);
- f(x) / x at an activation f: relevance passes through unchanged.

Where this differs from the paper: it also lets relevance flow through queries and keys (its
released code has a switch for that) and weighs positive and negative contributions separately.
It looks at what the model generates, this at teacher-forced target positions.

Layer-wise relevance propagation is a patented technique. It is free for personal and scientific
use; commercial use may need a license from the patent's holders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

from compressor.importance import Per, RawScores, ScoringJob, TokenwiseMethod
from compressor.tasks.batching import IGNORED

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.model.surgery import Hook
    from compressor.tasks import Batch


class Relevance(TokenwiseMethod):
    """Layer-wise relevance propagation from the largest logit."""

    name: Literal["relevance"] = "relevance"

    def score(self, scoring: ScoringJob) -> RawScores:
        """A unit's share of its layer's relevance, averaged over target positions (or rows).

        The relevance of a unit is the signed sum over its columns and tokens; its share is its
        absolute value divided by the sum of those of the layer's units, since signed ones can
        cancel to zero.

        `per="token"` does that for the top-1 logit of every target position by itself, as the paper
        does: one forward pass and as many backward passes as the batch's longest target has tokens.
        `per="example"` does it for the sum of the example's top-1 logits, in one backward pass;
        what a unit contributes to some positions and takes from others then cancels. A classifier
        has one position, so there both are the same.
        """
        from compressor.importance.gradients import zeros
        from compressor.importance.linearized import linearized
        from compressor.model.modes import frozen
        from compressor.model.surgery import gated, mask_gates

        shares = zeros(scoring)
        counted = backward = 0
        model, total = scoring.model, len(scoring.batches)
        with ExitStack() as stack:
            stack.enter_context(frozen(model))
            stack.enter_context(gated(model, scoring.layers, mask_gates(scoring.mask)))
            stack.enter_context(linearized(model))
            for done, batch in enumerate(scoring.batches, 1):
                moved = batch.to(scoring.device)
                positions, passes = _add_batch(scoring, moved, self.per, shares)
                counted += positions
                backward += passes
                scoring.progress(done, total)
        values = {name: (share / counted).tolist() for name, share in shares.items()}
        return RawScores(values, f"per:{self.per}", total, backward)


def _add_batch(
    scoring: ScoringJob, batch: Batch, per: Per, shares: dict[str, Tensor]
) -> tuple[int, int]:
    """Add the shares of a batch; returns (positions or rows averaged over, backward passes)."""
    import torch

    with _head_outputs(scoring) as outputs, _last_hidden(scoring) as last, torch.enable_grad():
        logits = scoring.task.logits(scoring.model, batch).float()
    top = logits.max(-1).values.reshape(len(batch.rows), -1)  # [batch, positions]
    real = (batch["labels"] != IGNORED).reshape(top.shape)
    if per == "example":
        top, real = (top * real).sum(1, keepdim=True), real.any(1, keepdim=True)
    heads = [outputs[layer.name] for layer in scoring.layers]
    positions = top.shape[1]
    for position, gradients in enumerate(_gradients(top, heads, last)):
        for layer, output, gradient in zip(scoring.layers, heads, gradients, strict=True):
            products = (output.detach() * gradient).sum(1)  # [batch, heads x head_dim]
            relevance = (
                products.unflatten(-1, (layer.units, layer.unit_width)).sum(-1).abs().double()
            )
            share = relevance / relevance.sum(-1, keepdim=True).clamp_min(1e-30)  # [batch, heads]
            shares[layer.name] += share[real[:, position]].sum(0)
    return int(real.sum()), positions


def _gradients(top: Tensor, heads: list[Tensor], last: list[Tensor]) -> Iterator[Sequence[Tensor]]:
    """The gradients of each column of `top` [batch, positions] by the heads' outputs."""
    import torch

    positions = top.shape[1]
    if positions == 1:
        yield torch.autograd.grad(top.sum(), heads)
        return
    # A logit depends on the last hidden state of its own position alone, so that the way back
    # through the vocabulary, the longest part of it, is gone once for all positions.
    (hidden,) = last  # [batch, positions, width]
    (slope,) = torch.autograd.grad(top.sum(), hidden, retain_graph=True)
    for position in range(positions):
        own = torch.zeros_like(slope)
        own[:, position] = slope[:, position]
        yield torch.autograd.grad(hidden, heads, own, retain_graph=position + 1 < positions)


@contextmanager
def _last_hidden(scoring: ScoringJob) -> Iterator[list[Tensor]]:
    """What is projected on the vocabulary; nothing for a classifier."""
    found: list[Tensor] = []
    projection = scoring.model.get_output_embeddings()  # type: ignore[operator]
    if projection is None:
        yield found
        return
    handle = projection.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0]))
    try:
        yield found
    finally:
        handle.remove()


@contextmanager
def _head_outputs(scoring: ScoringJob) -> Iterator[dict[str, Tensor]]:
    """The inputs of all output projections by layer name, [batch, tokens, heads x head_dim]."""
    outputs: dict[str, Tensor] = {}

    def watch(name: str) -> Hook:
        def take(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            output = inputs[0]
            if not output.requires_grad:  # the first layer's: nothing below needs a gradient
                output = output.detach().requires_grad_()
            outputs[name] = output
            return (output, *inputs[1:])

        return take

    handles = [
        scoring.model.get_submodule(layer.output).register_forward_pre_hook(watch(layer.name))
        for layer in scoring.layers
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
