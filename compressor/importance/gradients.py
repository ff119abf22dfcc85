"""Every unit's output and its gradient, from one forward and one backward pass.

A unit is a slice a_h of the output projection's input; hooks on it give a_h and dL/da_h for all
units of all sublayers at once. No weight requires a gradient, so autograd records nothing before
the first attention output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from compressor import parallel
from compressor.importance import ScoringJob
from compressor.model.modes import evaluating, frozen, hooks
from compressor.model.sublayers import Sublayer
from compressor.model.surgery import Hook, gated, mask_gates

# (layer, output [batch, tokens, heads, head_dim], gradient of the same shape, real tokens
# [batch, tokens]) -> None
Visit = Callable[[Sublayer, Tensor, Tensor, Tensor], None]


def visit_gradients(
    scoring: ScoringJob, visit: Visit, layers: Sequence[Sublayer] | None = None
) -> int:
    """Run the passes over all batches and call `visit` once per layer and batch.

    The loss is the sum over the batch's tokens (or rows), so a row's contribution does not depend
    on the other rows of its batch.

    Args:
        layers: some of `scoring.layers` to visit; None: all.

    Returns:
        The number of batches on all ranks, which is that of the forward and of the backward passes.
    """
    model, total = scoring.model, len(scoring.batches)
    layers = scoring.layers if layers is None else layers
    gates = gated(model, scoring.layers, mask_gates(scoring.mask))

    def hook(layer: Sublayer, real: Tensor) -> Hook:
        slices = (layer.units, layer.unit_width)

        def watch(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            output = require_gradient(inputs[0])  # [batch, tokens, heads x head_dim]
            heads = output.detach().unflatten(-1, slices)
            output.register_hook(lambda x: visit(layer, heads, x.unflatten(-1, slices), real))
            return (output, *inputs[1:])

        return watch

    with evaluating(model), frozen(model), gates:
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
    """The tensor itself, or in the first layer, below which nothing needs a gradient, a leaf."""
    return output if output.requires_grad else output.detach().requires_grad_()


def zeros(scoring: ScoringJob) -> dict[str, Tensor]:
    """Sublayer name -> a sum for each unit, [units] float64, on the model's device."""
    return {
        layer.name: torch.zeros(layer.units, dtype=torch.float64, device=scoring.device)
        for layer in scoring.layers
    }
