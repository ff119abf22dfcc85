"""From rows to a mask: train the gates, decide, and let trained weights fit the decision."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from compressor.budgets.units import NEURONS
from compressor.learned_masks.base import Gates, distance_from_hard
from compressor.learned_masks.method import Learned, LearnedMask, LearningJob
from compressor.learned_masks.problem import FitWeights, GatedModel, LearnGates
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.training.data import TrainingRows, hold_out
from compressor.training.loop import Problem, Schedule, train
from compressor.training.state import Trained

# Share of the epochs in which trained weights fit the mask that has been decided.
FITTING = 0.25
# Relative change of the loss by making the gates hard, above which the report mentions it.
_NOTABLE = 0.05


@dataclass(frozen=True)
class _Hardening:
    """What turning the relaxed gates into a hard mask changed."""

    relaxed_loss: float
    hard_loss: float
    largest: float
    mean: float
    reached: bool
    kept_all: bool  # with a penalty


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
        gated = GatedModel(model, gates.layout, method, job, job.task.batches(held, job.model))
        trained = fit(LearnGates(gated, gates), gate_epochs, job.state)
        hardened = _harden(gated, gates, trained, gate_epochs)
        mask, fitted = gates.mask(), None
        if gated.parameters:
            before = {name: tensor.detach().clone() for name, tensor in gated.tensors().items()}
            state = job.state and job.state.with_name(f"{job.state.stem}-fit{job.state.suffix}")
            fitted = fit(FitWeights(gated, mask), weight_epochs, state)
            if fitted.best is None or fitted.best >= hardened.hard_loss:
                gated.restore(before)  # they were better
    steps = trained.steps + (0 if fitted is None else fitted.steps)
    cost = {"seconds": time.perf_counter() - began, "training_steps": float(steps)}
    values = gates.layout.score_values(gates.scores())
    signature = _signature(method, gates, gated.rate, job, len(rows))
    text = "; ".join(
        [
            _describe_training(method, gated.rate, mask, trained, len(rows)),
            *_describe_hardening(hardened, len(held)),
            *_describe_fit(fitted, hardened),
        ]
    )
    return Learned(mask, Scores(values, method.name, signature, cost), model, text)


@contextmanager
def _model(method: LearnedMask, job: LearningJob) -> Iterator[nn.Module]:
    """The model to train, on the device; job.model is as it was when the context ends."""
    model = job.model
    if method.train_weights != "none":
        model = copy.deepcopy(model)
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
    """Epochs for the gates, and for the weights on the final mask."""
    if method.train_weights == "none":
        return method.epochs, 0
    fitting = max(1, round(FITTING * method.epochs))
    return method.epochs - fitting, fitting


def _harden(gated: GatedModel, gates: Gates, trained: Trained, epochs: int) -> _Hardening:
    done = (trained.best_epoch or trained.history[-1]["epoch"]) / epochs
    with torch.no_grad():
        relaxed = gates.without_noise(done)
    largest, mean = distance_from_hard(relaxed)
    mask = gates.mask()
    return _Hardening(
        relaxed_loss=gated.held_out_loss(relaxed),
        hard_loss=gated.held_out_loss(gated.layout.flat(mask)),
        largest=largest,
        mean=mean,
        reached=trained.best is not None,
        kept_all=gates.layout.keep is None and mask.count() == mask.total(),
    )


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


def _describe_training(
    method: LearnedMask, rate: float, mask: Mask, trained: Trained, rows: int
) -> str:
    epochs = trained.history[-1]["epoch"]
    best = f", best after {trained.best_epoch}" if trained.best_epoch not in (0, epochs) else ""
    along = {"none": "", "encoder": " and the encoder's weights", "all": " and all weights"}
    at = f" (learning rate {rate:g})" if method.train_weights != "none" else ""
    return (
        f"{method.name}: gates{along[method.train_weights]}{at} learned on {rows} rows for "
        f"{epochs} epochs{best}; {mask} kept"
    )


def _describe_hardening(hardened: _Hardening, held: int) -> Iterator[str]:
    yield (
        f"gates {hardened.mean:.3f} from open or closed on average, {hardened.largest:.3f} at most"
    )
    yield (
        f"loss on {held} held-out rows {hardened.relaxed_loss:.4f} with soft gates, "
        f"{hardened.hard_loss:.4f} with the final mask"
    )
    if hardened.kept_all:
        yield "no head was removed; a larger penalty removes some"
    if not hardened.reached:
        yield "the gates had not settled at the wanted number of units; train longer"
    if abs(hardened.hard_loss - hardened.relaxed_loss) > _NOTABLE * hardened.relaxed_loss:
        change = 100 * (hardened.hard_loss / hardened.relaxed_loss - 1)
        yield f"making the gates hard changed it by {change:+.0f} %: more epochs may help"


def _describe_fit(fitted: Trained | None, hardened: _Hardening) -> Iterator[str]:
    if fitted is None:
        return
    if fitted.best is not None and fitted.best < hardened.hard_loss:
        yield f"{fitted.best:.4f} after fitting the weights to the mask"
    else:
        yield "fitting the weights to the mask gained nothing and was dropped"
