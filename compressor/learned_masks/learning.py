"""From rows to a mask: train the gates, decide, and let trained weights fit the decision."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from compressor.budgets.units import NEURONS
from compressor.learned_masks.base import Gates, distance_from_hard
from compressor.learned_masks.job import Learned, Learning
from compressor.learned_masks.problem import FitWeights, GatedModel, LearnGates
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.tasks import Example
from compressor.training import Data, Schedule, Trained, hold_out, train

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


def run(method: str, gates: Gates, learning: Learning) -> Learned:
    """Train the gates to the end; `compressor.learned_masks.learn` is the entry."""
    layout = gates.layout
    began = time.perf_counter()
    rows, held = hold_out(learning.examples, learning.seed)
    with _model(learning) as model:
        batches = learning.task.batches(held, learning.model)
        gated_model = GatedModel(model, layout, learning, batches)
        trained, hardened = _learn_gates(gated_model, gates, rows)
        mask = gates.mask()
        fitted = _fit_weights(gated_model, mask, rows, hardened) if gated_model.parameters else None
    values = layout.score_values(gates.scores())
    steps = trained.steps + (0 if fitted is None else fitted.steps)
    cost = {"seconds": time.perf_counter() - began, "training_steps": float(steps)}
    scores = Scores(values, method, _signature(method, gates, learning, len(rows)), cost)
    text = _describe(method, learning, mask, trained, fitted, hardened, (len(rows), len(held)))
    return Learned(mask, scores, model, text)


@contextmanager
def _model(learning: Learning) -> Iterator[nn.Module]:
    """The model to train, on the device; learning.model is as it was when the context ends."""
    model = learning.model
    if learning.weights != "none":
        model = copy.deepcopy(model)
    home = next(model.parameters()).device
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    training = [(module, module.training) for module in model.modules()]
    model.to(learning.device)
    try:
        yield model
    finally:
        model.to(home)
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
            parameter.grad = None
        for module, mode in training:
            module.training = mode


def _epochs(learning: Learning) -> tuple[int, int]:
    """Epochs for the gates, and for the weights on the final mask."""
    if learning.weights == "none":
        return learning.epochs, 0
    fitting = max(1, round(FITTING * learning.epochs))
    return learning.epochs - fitting, fitting


def _learn_gates(
    gated_model: GatedModel, gates: Gates, rows: list[Example]
) -> tuple[Trained, _Hardening]:
    learning = gated_model.learning
    trained = train(
        LearnGates(gated_model, gates),
        Data(rows, learning.task, learning.model, learning.device),
        Schedule(_epochs(learning)[0], learning.batch_size, patience=learning.patience),
        seed=learning.seed,
        state=learning.state,
        report=learning.report,
        progress=learning.progress,
    )
    done = (trained.best_epoch or trained.history[-1]["epoch"]) / _epochs(learning)[0]
    with torch.no_grad():
        relaxed = gates.without_noise(done)
    largest, mean = distance_from_hard(relaxed)
    return trained, _Hardening(
        relaxed_loss=gated_model.held_out_loss(relaxed),
        hard_loss=gated_model.held_out_loss(gated_model.layout.flat(gates.mask())),
        largest=largest,
        mean=mean,
        reached=trained.best is not None,
    )


def _fit_weights(
    gated_model: GatedModel, mask: Mask, rows: list[Example], hardened: _Hardening
) -> Trained:
    """Train the weights on the final mask; the weights before stay if they were better."""
    learning = gated_model.learning
    before = {name: tensor.detach().clone() for name, tensor in gated_model.tensors().items()}
    state = learning.state
    fitted = train(
        FitWeights(gated_model, mask),
        Data(rows, learning.task, learning.model, learning.device),
        Schedule(_epochs(learning)[1], learning.batch_size, patience=learning.patience),
        seed=learning.seed,
        state=None if state is None else state.with_name(f"{state.stem}-fit{state.suffix}"),
        report=learning.report,
        progress=learning.progress,
    )
    if fitted.best is None or fitted.best >= hardened.hard_loss:
        with torch.no_grad():
            for name, tensor in gated_model.tensors().items():
                tensor.copy_(before[name])
    return fitted


def _signature(method: str, gates: Gates, learning: Learning, rows: int) -> str:
    parts = [method, gates.signature()]
    if learning.keep is not None:
        parts.append("keep:" + ",".join(f"{kind}={n}" for kind, n in learning.keep.items()))
    parts.append("floor:" + ",".join(f"{kind}={n}" for kind, n in learning.floors.items()))
    if any(units_of(layer.kind) == NEURONS for layer in gates.layout.gated):
        parts.append(f"multiple:{learning.multiples[NEURONS]}")
    parts.append(f"weights:{learning.weights}")
    if learning.weights != "none":
        parts.append(f"learning-rate:{learning.learning_rate:g}")
    parts += [f"epochs:{learning.epochs}", f"patience:{learning.patience}"]
    parts += [f"batch:{learning.batch_size}", f"rows:{rows}", f"seed:{learning.seed}"]
    return "|".join(parts)


def _describe(
    method: str,
    learning: Learning,
    mask: Mask,
    trained: Trained,
    fitted: Trained | None,
    hardened: _Hardening,
    rows: tuple[int, int],
) -> str:
    epochs = trained.history[-1]["epoch"]
    best = f", best after {trained.best_epoch}" if trained.best_epoch not in (0, epochs) else ""
    along = {"none": "", "encoder": " and the encoder's weights", "all": " and all weights"}
    rate = f" (learning rate {learning.learning_rate:g})" if learning.weights != "none" else ""
    parts = [
        f"{method}: gates{along[learning.weights]}{rate} learned on {rows[0]} rows for "
        f"{epochs} epochs{best}; {mask} kept",
        f"gates {hardened.mean:.3f} from open or closed on average, {hardened.largest:.3f} at most",
        f"loss on {rows[1]} held-out rows {hardened.relaxed_loss:.4f} with soft gates, "
        f"{hardened.hard_loss:.4f} with the final mask",
    ]
    if learning.keep is None and mask.count() == mask.total():
        parts.append("no head was removed; a larger penalty removes some")
    if not hardened.reached:
        parts.append("the gates had not settled at the wanted number of units; train longer")
    if abs(hardened.hard_loss - hardened.relaxed_loss) > _NOTABLE * hardened.relaxed_loss:
        change = 100 * (hardened.hard_loss / hardened.relaxed_loss - 1)
        parts.append(f"making the gates hard changed it by {change:+.0f} %: more epochs may help")
    if fitted is not None:
        if fitted.best is not None and fitted.best < hardened.hard_loss:
            parts.append(f"{fitted.best:.4f} after fitting the weights to the mask")
        else:
            parts.append("fitting the weights to the mask gained nothing and was dropped")
    return "; ".join(parts)
