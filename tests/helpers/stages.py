"""Scoring and recovery of tiny models with random data."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from compressor.importance import METHODS, ScoringJob, score_units
from compressor.model.architectures import ARCHITECTURES, find_sublayers
from compressor.model.modes import hooks
from compressor.model.sublayers import Mask, Scores, belongs
from compressor.model.surgery import prune
from compressor.recovery import RECOVERIES, Recovered, RecoveryJob, recover
from compressor.tasks import TASKS, Batch
from tests.helpers.batches import examples, labelled_batch, one_row
from tests.helpers.tiny import tiny_model, uneven_mask


def scoring(name: str, batches=None, units: str | None = None, **options) -> ScoringJob:
    """Rows and a tiny model, whose `heads` or `neurons` are scored; both if `units` is None."""
    model = tiny_model(name)
    layers = [layer for layer in find_sublayers(model) if belongs(layer.name, units)]
    task = TASKS[ARCHITECTURES[name].task]
    return ScoringJob(
        model=model,
        layers=layers,
        mask=options.pop("mask", Mask.full(layers)),
        batches=batches or [labelled_batch(model)],
        task=task,
        **options,
    )


def score(method: str, setup: ScoringJob, **options) -> Scores:
    """Scores of a method by its name, with some of its options."""
    return score_units(METHODS[method](**options), setup)


def job(name: str, mask=uneven_mask, rows: int = 48, model=None, **options) -> RecoveryJob:
    """A tiny pruned model and random rows; `mask` makes the mask from the layers."""
    model = model or tiny_model(name)
    layers = find_sublayers(model)
    task = TASKS[ARCHITECTURES[name].task]
    kept = mask(layers)
    return RecoveryJob(
        dense=model,
        pruned=prune(model, layers, kept),
        mask=kept,
        layers=layers,
        task=task,
        examples=examples(name, rows),
        **options,
    )


def repair(setup: RecoveryJob, **methods: dict) -> Recovered:
    """A model after some recovery methods: `repair(setup, distill={"epochs": 2})`."""
    return recover([RECOVERIES[name](**options) for name, options in methods.items()], setup)


def rows_of(setup: ScoringJob) -> list[Batch]:
    """The rows of the first batch, each alone and without padding."""
    batch = setup.batches[0]
    return [one_row(batch, row) for row in range(len(batch["input_ids"]))]


def with_gradients(setup: ScoringJob, row: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Input and output of each sublayer's output projection for one row, without padding.

    By sublayer name, both with the gradients of the loss, which PyTorch retains.
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(module, inputs, output, name) -> None:
        inputs[0].retain_grad()
        output.retain_grad()
        seen[name] = (inputs[0], output)

    with hooks(
        setup.model.get_submodule(x.output).register_forward_hook(partial(keep, name=x.name))
        for x in setup.layers
    ):
        setup.task.loss(setup.model, one_row(setup.batches[0], row)).backward()
    return seen


def masks(setup: ScoringJob) -> list[Mask]:
    """With all units, and with a different number in every sublayer."""
    return [Mask.full(setup.layers), uneven_mask(setup.layers)]
