"""One forward and one backward pass that see every unit's output and its gradient.

A unit is a slice a_h of the output projection's input; hooks there give a_h and dL/da_h for all
units of all sublayers at once. No weight needs a gradient, so nothing is computed for them, and
nothing is recorded before the first attention output.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from compressor import parallel
from compressor.importance import ScoringJob
from compressor.model.modes import evaluating, frozen, hooks
from compressor.model.sublayers import Sublayer
from compressor.model.surgery import Hook

# (layer, output [batch, tokens, heads, head_dim], gradient of the same shape, real tokens
# [batch, tokens]) -> None
Visit = Callable[[Sublayer, Tensor, Tensor, Tensor], None]


def visit_gradients(scoring: ScoringJob, visit: Visit) -> int:
    """Run the passes over all batches and call `visit` once per layer and batch.

    The loss is the sum over the batch's tokens (or rows), so what a row contributes does not
    depend on the rows it is batched with.

    Returns:
        The number of batches on all ranks: that many forward and that many backward passes were
        made.
    """
    model, total = scoring.model, len(scoring.batches)
    kinds = {layer.kind for layer in scoring.layers}
    with evaluating(model), frozen(model):
        for done, batch in enumerate(scoring.batches, 1):
            batch = batch.to(scoring.device)
            masks = {kind: scoring.task.token_mask(batch, kind) for kind in kinds}
            watching = hooks(
                model.get_submodule(x.output).register_forward_pre_hook(
                    _hook(x, torch.tensor(scoring.mask.keep[x.name]), visit, masks[x.kind])
                )
                for x in scoring.layers
            )
            with watching, torch.enable_grad():
                scoring.task.loss(model, batch).backward()
            scoring.progress(done, total)
    return parallel.total(total)


def zeros(scoring: ScoringJob) -> dict[str, Tensor]:
    """Sublayer name -> a sum for each unit, [units] float64, on the model's device."""
    return {
        layer.name: torch.zeros(layer.units, dtype=torch.float64, device=scoring.device)
        for layer in scoring.layers
    }


def _hook(layer: Sublayer, keep: Tensor, visit: Visit, real: Tensor) -> Hook:
    def watch(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        output = inputs[0]  # [batch, tokens, heads x head_dim]
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        if not keep.all():
            gate = keep.to(output).repeat_interleave(layer.unit_width)
            output = output * gate
        heads = output.detach().unflatten(-1, (layer.units, layer.unit_width))

        def receive(gradient: Tensor) -> None:
            visit(layer, heads, gradient.unflatten(-1, (layer.units, layer.unit_width)), real)

        output.register_hook(receive)
        return (output, *inputs[1:])

    return watch
