"""Train gates, decide on the mask, and fine-tune trained weights with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from compressor import parallel
from compressor.budgets.units import NEURONS
from compressor.learned_masks.base import Gates, distance_from_hard
from compressor.learned_masks.method import Learned, LearnedMask, LearningJob
from compressor.learned_masks.problem import GatedModel, LearnGates
from compressor.model.architectures import layer_paths
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.parallel import sharding
from compressor.training.data import TrainingRows, batches_of_rank, hold_out
from compressor.training.loop import Problem, Schedule, train
from compressor.training.state import Trained

# Share of the epochs for fine-tuning trained weights with the final mask.
FITTING = 0.25
# Relative change of the loss by making the gates hard above which the report mentions it.
_NOTABLE = 0.05


@sharding.noticing_lost_ranks()
def run(method: LearnedMask, gates: Gates, job: LearningJob) -> Learned:
    """Train the gates to the end; `compressor.learned_masks.learn` is the entry."""
    began = time.perf_counter()
    rows, held = hold_out(job.examples, job.seed)
    data = TrainingRows(rows, job.task, job.model, job.device)
    gate_epochs, weight_epochs = _epochs(method)

    def fit(problem: Problem, epochs: int, state: Path | None) -> Trained:
        return train(
            problem,
            data,
            Schedule(epochs, job.batch_size, patience=method.patience),
            seed=job.seed,
            state=state,
            report=job.report,
            progress=job.progress,
        )

    with _model(method, job) as model:
        batches = batches_of_rank(job.task, held, job.model)
        gated = GatedModel(model, gates.layout, method, job, batches)
        trained = fit(LearnGates(gated, gates), gate_epochs, job.state)
        hard_loss, hardened = _harden(gated, gates, trained, gate_epochs)
        mask, fitted = gates.mask(), None
        if gated.parameters:
            before = {name: tensor.detach().clone() for name, tensor in gated.tensors().items()}
            state = job.state and job.state.with_stem(f"{job.state.stem}-fit")
            gated.gates = gates.layout.flat(mask)
            fitted = fit(gated, weight_epochs, state)
            if fitted.best is not None and fitted.best < hard_loss:
                hardened.append(f"{fitted.best:.4f} after fitting the weights to the mask")
            else:
                gated.restore(before)
                hardened.append("fitting the weights to the mask gained nothing and was dropped")
    steps = trained.steps + (0 if fitted is None else fitted.steps)
    cost = {"seconds": time.perf_counter() - began, "training_steps": float(steps)}
    values = gates.layout.score_values(gates.scores())
    signature = _signature(method, gates, gated.rate, job, len(rows))
    text = "; ".join([_describe(method, gated.rate, mask, trained, len(rows)), *hardened])
    learned = sharding.gathered(model, job.model)
    return Learned(mask, Scores(values, method.name, signature, cost), learned, text)


@contextmanager
def _model(method: LearnedMask, job: LearningJob) -> Iterator[nn.Module]:
    """The model to train, on the device; `job.model` is restored when the context ends."""
    model = job.model
    if method.train_weights != "none":
        model = sharding.sharded(model, layer_paths(model), job.device)
    home = next(model.parameters()).device
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    training = [(module, module.training) for module in model.modules()]
    model.to(job.device)
    try:
        yield model
    finally:
        model.to(home)
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
            parameter.grad = None
        for module, mode in training:
            module.training = mode


def _epochs(method: LearnedMask) -> tuple[int, int]:
    """Epochs for the gates, and for the weights with the final mask."""
    if method.train_weights == "none":
        return method.epochs, 0
    fitting = max(1, round(FITTING * method.epochs))
    return method.epochs - fitting, fitting


def _harden(
    gated: GatedModel, gates: Gates, trained: Trained, epochs: int
) -> tuple[float, list[str]]:
    """The held-out loss with the hard mask, and sentences on its difference from relaxed gates."""
    done = (trained.best_epoch or trained.history[-1]["epoch"]) / epochs
    with torch.no_grad():
        relaxed = gates.without_noise(done)
    mask, (largest, mean) = gates.mask(), distance_from_hard(relaxed)
    soft, hard = gated.held_out_loss(relaxed), gated.held_out_loss(gates.layout.flat(mask))
    rows = parallel.total(sum(len(batch.rows) for batch in gated.held if not batch.spare))
    texts = [
        f"gates {mean:.3f} from open or closed on average, {largest:.3f} at most",
        f"loss on {rows} held-out rows {soft:.4f} with soft gates, {hard:.4f} with the final mask",
    ]
    if gates.layout.keep is None and mask.count() == mask.total():
        texts.append("no head was removed; a larger penalty removes some")
    if trained.best is None:
        texts.append("the gates had not settled at the wanted number of units; train longer")
    if abs(hard - soft) > _NOTABLE * soft:
        change = 100 * (hard / soft - 1)
        texts.append(f"making the gates hard changed it by {change:+.0f} %: more epochs may help")
    return hard, texts


def _signature(method: LearnedMask, gates: Gates, rate: float, job: LearningJob, rows: int) -> str:
    parts = [method.name, gates.signature()]
    if job.keep is not None:
        parts.append("keep:" + ",".join(f"{kind}={n}" for kind, n in job.keep.items()))
    parts.append("floor:" + ",".join(f"{kind}={n}" for kind, n in job.floors.items()))
    if any(units_of(layer.kind) == NEURONS for layer in gates.layout.gated):
        parts.append(f"multiple:{job.multiples[NEURONS]}")
    parts.append(f"weights:{method.train_weights}")
    if method.train_weights != "none":
        parts.append(f"learning-rate:{rate:g}")
    parts += [f"epochs:{method.epochs}", f"patience:{method.patience}"]
    parts += [f"batch:{job.batch_size}", f"rows:{rows}", f"seed:{job.seed}"]
    return "|".join(parts)


def _describe(method: LearnedMask, rate: float, mask: Mask, trained: Trained, rows: int) -> str:
    epochs = trained.history[-1]["epoch"]
    best = f", best after {trained.best_epoch}" if trained.best_epoch not in (0, epochs) else ""
    along = {"none": "", "encoder": " and the encoder's weights", "all": " and all weights"}
    at = f" (learning rate {rate:g})" if method.train_weights != "none" else ""
    return (
        f"{method.name}: gates{along[method.train_weights]}{at} learned on {rows} rows for "
        f"{epochs} epochs{best}; {mask} kept"
    )
