"""Whole Transformer layers to drop, by the divergence without them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.model.architectures import architecture_of
from compressor.model.modes import evaluating
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import skipped
from compressor.tasks import Batch, Objective


@torch.no_grad()
def layers_to_drop(
    model: nn.Module,
    sublayers: Sequence[Sublayer],
    batches: Sequence[Batch],
    task: Objective,
    numbers: Mapping[str, int],
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
    dropped: Collection[str] = (),
) -> dict[str, float]:
    """Choose whole Transformer layers to drop, one after the other.

    The next layer is the one without which, and without those chosen before, the predictions
    diverge least from the dense model's. A decoder's last layer stays while two others are left.

    Args:
        model: dense; its weights do not change.
        sublayers: all of its sublayers.
        batches: of this rank, on the CPU.
        task: computes logits and divergences.
        numbers: stack (`encoder`, `decoder`) -> the number of further layers to drop.
        device: where the model runs.
        progress: called with (layers chosen, layers to choose).
        dropped: layers that are dropped already, such as `decoder.2`.

    Returns:
        The chosen layers in their order -> the mean divergence without these and all before, in
        nats per loss term.
    """
    mask, chosen = Mask.full(sublayers).without_layers(dropped), dict[str, float]()
    left = dict(numbers)
    kept = {"encoder.0"} if architecture_of(model).first_layer_stays(model.config) else set()
    terms = parallel.total(sum(task.loss_terms(batch) for batch in batches))
    model.to(device)
    while any(left.values()):
        excluded = mask.dropped | kept | _last_of_decoder(mask)
        names = [
            name
            for name in mask.layers()
            if name not in excluded and left.get(name.partition(".")[0], 0)
        ]
        masks = [mask.without_layers([name]) for name in names]
        sums = torch.zeros(len(masks), dtype=torch.float64)
        with evaluating(model):
            for on_host in batches:
                batch = on_host.to(device)
                target = _predictions(model, batch, task)
                for number, candidate in enumerate(masks):
                    with skipped(model, sublayers, candidate):
                        predictions = _predictions(model, batch, task)
                    sums[number] += float(task.divergence(predictions, target))
        parallel.add_up(sums)
        progress(len(chosen) + 1, sum(numbers.values()))
        means = sums / terms
        least = int(means.argmin())
        mask, name = masks[least], names[least]
        left[name.partition(".")[0]] -= 1
        chosen[name] = float(means[least])
    model.to("cpu")
    return chosen


def _last_of_decoder(mask: Mask) -> set[str]:
    """The last layer of a decoder of which three are left; of two, skipping decides.

    Its stream is what the projection reads: of few layers, those with it are repaired far better
    than skipping tells (docs/design-log.md).
    """
    decoder = [name for name in mask.layers() if name.startswith("decoder")]
    left = [name for name in decoder if name not in mask.dropped]
    return {decoder[-1]} if len(left) > 2 else set()


@torch.no_grad()
def divergence(
    model: nn.Module,
    dense: nn.Module,
    batches: Sequence[Batch],
    task: Objective,
    device: str = "cpu",
) -> float:
    """Mean divergence of a model's predictions from the dense one's.

    Args:
        model: the smaller model, on `device`.
        dense: the model it is compared with, on `device`.
        batches: of this rank, on the CPU.
        task: computes logits and divergences.
        device: where both models run.

    Returns:
        Nats per loss term, over the rows of all ranks.
    """
    total = 0.0
    with evaluating(model), evaluating(dense):
        for on_host in batches:
            batch = on_host.to(device)
            target = _predictions(dense, batch, task)
            total += float(task.divergence(_predictions(model, batch, task), target))
    terms = parallel.total(sum(task.loss_terms(batch) for batch in batches))
    return parallel.total(total) / terms


def _predictions(model: nn.Module, batch: Batch, task: Objective) -> Tensor:
    """The task's predictions, [loss terms, classes, vocabulary or width]."""
    return task.predictions(task.logits(model, batch)[task.term_mask(batch)])
