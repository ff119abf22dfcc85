"""Every unit's output and its gradient, from one forward and one backward pass; scores by them.

A unit is a slice a_h of the output projection's input. With a gate xi_h = 1 on its output, dL/d
xi_h is the sum over an example's tokens of a_h . dL/da_h. No weight needs a gradient, so none is
computed, and nothing is recorded before the first attention output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from compressor import parallel
from compressor.importance import Fisher, RawScores, ScoringJob, Taylor
from compressor.model.modes import evaluating, frozen, hooks, tokens_of
from compressor.model.sublayers import Sublayer
from compressor.model.surgery import Hook, masked

# (layer, output [batch, tokens, heads, head_dim], gradient of the same shape, real tokens
# [batch, tokens]) -> None
Visit = Callable[[Sublayer, Tensor, Tensor, Tensor], None]


def visit_gradients(
    scoring: ScoringJob, visit: Visit, layers: Sequence[Sublayer] | None = None
) -> int:
    """Run all batches forward and backward and call `visit` once per sublayer and batch.

    The loss is the sum over the batch's loss terms, so what a row contributes does not depend on
    the rows it is batched with.

    Args:
        scoring: the model and the batches.
        visit: called with the sublayer, the outputs of its units [batch, tokens, units, unit
            width], the gradient of the loss by them in the same shape, and the real tokens [batch,
            tokens]; where a layer hands on fewer tokens, of those.
        layers: the sublayers to visit; by default all of `scoring.layers`.

    Returns:
        The number of batches on all ranks: that many forward and that many backward passes were
        made.
    """
    model, total = scoring.model, len(scoring.batches)
    layers = scoring.layers if layers is None else layers
    without = masked(model, scoring.layers, scoring.mask, hides=False)

    def hook(layer: Sublayer, mask: Tensor) -> Hook:
        slices = (layer.units, layer.unit_width)

        def watch(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            output = require_gradient(inputs[0])  # [batch, tokens, heads x head_dim]
            real = tokens_of(mask, model, layer.layer_path)
            heads = output.detach().unflatten(-1, slices)
            output.register_hook(lambda x: visit(layer, heads, x.unflatten(-1, slices), real))
            return (output, *inputs[1:])

        return watch

    with evaluating(model), frozen(model), without:
        for done, batch in enumerate(scoring.batches, 1):
            batch = batch.to(scoring.device)
            visiting = hooks(
                model.get_submodule(x.output).register_forward_pre_hook(
                    hook(x, scoring.task.token_mask(batch, x.kind))
                )
                for x in layers
            )
            with visiting, torch.enable_grad():
                scoring.task.loss(model, batch).backward()
            scoring.progress(done, total)
    return parallel.total(total)


def require_gradient(output: Tensor) -> Tensor:
    """The tensor itself, or a leaf in the first layer, below which nothing needs a gradient."""
    return output if output.requires_grad else output.detach().requires_grad_()


def zeros(scoring: ScoringJob) -> dict[str, Tensor]:
    """A sum for each unit of each sublayer, [units] float64, on the model's device."""
    return {
        layer.name: torch.zeros(layer.units, dtype=torch.float64, device=scoring.device)
        for layer in scoring.layers
    }


def taylor_scores(method: Taylor, scoring: ScoringJob) -> RawScores:
    """Mean |a_h . dL/da_h| over real tokens, or over examples of its sum over tokens, in nats.

    Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", equation 2: their
    formula takes the absolute value per example, their code per token.

    Args:
        method: its `per` says which of the two means.
        scoring: the model and the calibration batches.
    """
    sums = zeros(scoring)
    counts = {name: total.new_zeros(()) for name, total in sums.items()}

    def add(layer: Sublayer, output: Tensor, gradient: Tensor, real: Tensor) -> None:
        products = (output * gradient).sum(-1) * real[..., None]  # [batch, tokens, units]
        if method.per == "example":
            sums[layer.name] += products.sum(1).abs().sum(0).double()
            counts[layer.name] += len(products)
        else:
            sums[layer.name] += products.abs().sum((0, 1)).double()
            counts[layer.name] += real.sum()

    passes = visit_gradients(scoring, add)
    parallel.add_up(*sums.values(), *counts.values())
    values = {name: (total / counts[name]).tolist() for name, total in sums.items()}
    return RawScores(values, f"per:{method.per}", forward_passes=passes, backward_passes=passes)


def fisher_scores(method: Fisher, scoring: ScoringJob) -> RawScores:
    """Mean over examples of (dL/d xi_h)^2, in nats squared, L being an example's log-likelihood.

    The diagonal of the empirical Fisher information: Kwon et al. 2022, "A Fast Post-Training
    Pruning Framework for Transformers", mask search.
    """
    sums = zeros(scoring)

    def add(layer: Sublayer, output: Tensor, gradient: Tensor, real: Tensor) -> None:
        products = (output * gradient).sum(-1) * real[..., None]  # [batch, tokens, units]
        sums[layer.name] += products.sum(1).square().sum(0).double()

    passes = visit_gradients(scoring, add)
    parallel.add_up(*sums.values())
    examples = parallel.total(sum(len(batch.rows) for batch in scoring.batches))
    values = {name: (total / examples).tolist() for name, total in sums.items()}
    return RawScores(values, "per:example", forward_passes=passes, backward_passes=passes)
