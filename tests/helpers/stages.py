"""Scoring, learning and recovery of tiny models with random data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor, nn

from compressor.importance import METHODS, ScoringJob, score_units
from compressor.learned_masks import LEARNED, Learned, LearningJob, learn
from compressor.model.architectures import ARCHITECTURES
from compressor.model.layers import find_sublayers
from compressor.model.modes import hooks
from compressor.model.sublayers import Mask, Scores, belongs, units_of
from compressor.model.surgery import prune
from compressor.recovery import RECOVERIES, Recovered, RecoveryJob, recover
from compressor.tasks import TASKS, Batch, Example
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
        dense=model, pruned=prune(model, layers, kept), mask=kept, layers=layers, task=task,
        examples=examples(name, rows), **options,
    )  # fmt: skip


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


MAKERS = ("hard-concrete", "subset")


def learning(name: str, **options) -> LearningJob:
    """A job that keeps 5 heads, but for what `options` say."""
    model = options.pop("model", None) or tiny_model(name)
    keep = options.setdefault("keep", {"heads": 5})
    units = {"heads"} if keep is None else {units_of(pool) for pool in keep}
    layers = [layer for layer in find_sublayers(model) if units_of(layer.kind) in units]
    defaults = {
        "model": model,
        "layers": layers,
        "examples": options.pop("examples", None) or examples(name, 40),
        "task": TASKS[ARCHITECTURES[name].task],
        "floors": dict.fromkeys(Mask.full(layers).kinds(), 0),
    }
    return LearningJob(**defaults | options)


def trained(weights: str) -> dict[str, object]:
    """Options that train weights along, at a rate that changes tiny models; none for `none`."""
    return {} if weights == "none" else {"train_weights": weights, "learning_rate": 1e-3}


def learned_by(method: str, job: LearningJob, **options) -> Learned:
    """What a method learns by its name, in 2 epochs unless `options` say otherwise."""
    return learn(LEARNED[method](**{"epochs": 2} | options), job)


MANY = 1500  # enough that every repair helps on the rows held out, too


def batches_of(setup: RecoveryJob) -> list[Batch]:
    return setup.task.batches(setup.examples, setup.dense)


def reconstructed(setup: RecoveryJob) -> nn.Module:
    return repair(setup, reconstruct={}).model


def one_head(layer: int, head: int):
    """A mask that removes a single head."""
    return lambda layers: Mask.full(layers).without([(layers[layer].name, head)])


@torch.no_grad()
def difference(setup: RecoveryJob, pruned: nn.Module) -> float:
    """Mean squared difference of the logits to the dense model's, over real tokens."""
    total, count = 0.0, 0
    for batch in batches_of(setup):
        expected = setup.task.logits(setup.dense, batch)
        actual = setup.task.logits(pruned, batch)
        if expected.dim() == 3:
            real = batch["labels"] != -100
            expected, actual = expected[real], actual[real]
        total += float((actual - expected).pow(2).sum())
        count += expected.numel()
    return total / count


@torch.no_grad()
def divergence(setup: RecoveryJob, model: nn.Module, rows: Sequence[Example]) -> float:
    """Mean KL(dense || pruned) by SciPy's log-softmax in double precision."""
    total, terms = 0.0, 0
    for batch in setup.task.batches(rows, setup.dense):
        mask = setup.task.term_mask(batch)
        wanted, found = (
            log_softmax(setup.task.logits(m, batch)[mask].double().numpy(), axis=-1)
            for m in (setup.dense, model)
        )
        total += float((np.exp(wanted) * (wanted - found)).sum())
        terms += len(wanted)
    return total / terms


@torch.no_grad()
def module_rows(model: nn.Module, path: str, setup: RecoveryJob, kind: str):
    """Inputs and outputs of a module over all real tokens, as NumPy [tokens, features]."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    for batch in batches_of(setup):
        real = setup.task.token_mask(batch, kind)

        def record(module, inputs, output, real=real):
            seen.append((inputs[0][real].double().numpy(), output[real].double().numpy()))

        handle = model.get_submodule(path).register_forward_hook(record)
        setup.task.logits(model, batch)
        handle.remove()
    inputs, outputs = zip(*seen, strict=True)
    return np.concatenate(inputs), np.concatenate(outputs)
