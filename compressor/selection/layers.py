"""Whole layers that go before units are chosen."""

from __future__ import annotations

from compressor.budgets import Limits
from compressor.importance.scoring import find_layers
from compressor.steps.context import Context
from compressor.tasks.opened import ModelAndRows


def without_layers(limits: Limits, *, opened: ModelAndRows, context: Context) -> Limits:
    """What may be removed, without the layers that go first.

    Args:
        limits: with the numbers of layers to drop.
        opened: the dense model, and the rows whose predictions count.
        context: how to compute.
    """
    if not limits.to_drop:
        return limits
    inputs = limits.to_drop, ()
    divergences = context.steps.do(
        find_layers,
        *inputs,
        title="finding the layers to drop",
        shared=True,
        opened=opened,
        context=context,
    )
    for name, divergence in divergences.items():
        context.progress.message(f"  without {name}: divergence {divergence:.3f}, without recovery")
    return limits.without_layers(list(divergences))
