"""Which whole Transformer layers to drop: those whose skipping changes the predictions least.

A layer that is skipped is gone with its normalizations. What that costs is measured: the divergence
KL(p_dense || p_skipped) over the calibration rows, the mean over the loss's terms, as in
distillation. Layers go one at a time; after each, the others are measured anew without it.

Cost: a forward pass over the rows for each layer that may go, and one of the dense model, for every
layer that goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.model.architectures import architecture_of
from compressor.model.depth import skipped
from compressor.model.modes import evaluating
from compressor.model.sublayers import Mask, Sublayer
from compressor.tasks import Batch, Objective


def layers_to_drop(
    model: nn.Module,
    sublayers: Sequence[Sublayer],
    batches: Sequence[Batch],
    task: Objective,
    numbers: Mapping[str, int],
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
    gone: Collection[str] = (),
) -> dict[str, float]:
    """The layers that go first, in this order, and the divergence in nats when each is gone.

    Args:
        model: dense.
        batches: of this rank, on the CPU.
        numbers: stack (`encoder`, `decoder`) -> how many of its layers go.
        progress: called with (layers found, layers in all).
        gone: layers that went before.
    """
    mask, found = Mask.full(sublayers).without_layers(gone), dict[str, float]()
    left = dict(numbers)
    stay = {"encoder.0"} if architecture_of(model).layers.first_stays(model.config) else set()
    while any(left.values()):
        out = mask.dropped | stay
        names = [x for x in mask.layers() if x not in out and left.get(_stack(x), 0)]
        masks = [mask.without_layers([name]) for name in names]
        sums = _divergences(model.to(device), sublayers, batches, task, masks, device)
        progress(len(found) + 1, sum(numbers.values()))
        least = int(sums.argmin())
        mask, name = masks[least], names[least]
        left[_stack(name)] -= 1
        found[name] = float(sums[least])
    model.to("cpu")
    return found


def _stack(layer: str) -> str:
    return layer.partition(".")[0]


@torch.no_grad()
def _divergences(
    model: nn.Module,
    sublayers: Sequence[Sublayer],
    batches: Sequence[Batch],
    task: Objective,
    masks: Sequence[Mask],
    device: str,
) -> Tensor:
    """Mean divergence of the model that skips the layers of each mask, [masks], float64."""
    sums = torch.zeros(len(masks), dtype=torch.float64)
    terms = parallel.total(sum(task.loss_terms(batch) for batch in batches))
    with evaluating(model):
        for held in batches:
            batch = held.to(device)
            wanted = _predictions(model, batch, task)
            for number, mask in enumerate(masks):
                with skipped(model, sublayers, mask):
                    found = _predictions(model, batch, task)
                sums[number] += float(task.divergence(found, wanted))
    parallel.add_up(sums)
    return sums / terms


@torch.no_grad()
def divergence(
    model: nn.Module,
    dense: nn.Module,
    batches: Sequence[Batch],
    task: Objective,
    device: str = "cpu",
) -> float:
    """Mean divergence of a model's predictions from the dense one's, in nats per loss term."""
    total = 0.0
    with evaluating(model), evaluating(dense):
        for held in batches:
            batch = held.to(device)
            wanted = _predictions(dense, batch, task)
            total += float(task.divergence(_predictions(model, batch, task), wanted))
    terms = parallel.total(sum(task.loss_terms(batch) for batch in batches))
    return parallel.total(total) / terms


def _predictions(model: nn.Module, batch: Batch, task: Objective) -> Tensor:
    """[loss terms, classes, vocabulary or width]."""
    return task.predictions(task.logits(model, batch)[task.term_mask(batch)])
