"""Train gates, decide on the mask, and fine-tune trained weights with it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from compressor import parallel
from compressor.budgets.units import NEURONS
from compressor.importance import TrainedWeights
from compressor.learned_masks import Learned, LearnedMask, LearningJob
from compressor.learned_masks.base import GateLayout, Gates, distance_from_hard
from compressor.model.layers import layer_paths
from compressor.model.modes import skip_mask_inspection
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.surgery import gated
from compressor.parallel import sharding
from compressor.tasks import Batch
from compressor.training.data import TrainingRows, batches_of_rank, hold_out
from compressor.training.loop import Problem, Schedule, train
from compressor.training.state import Trained

FITTING = 0.25  # share of the epochs for fine-tuning trained weights with the final mask
_NOTABLE = 0.05  # relative change of the loss by making the gates hard, which the report mentions


@sharding.translate_rank_errors()
def run(method: LearnedMask, job: LearningJob) -> Learned:
    """Train the gates, decide on the mask, and fit trained weights to it; see `learn`.

    Fitting that does not lower the loss on the held-out rows is undone.
    """
    gates = method.make_gates(GateLayout(job.layers, job.keep, job.floors, job.multiples), job)
    began = time.perf_counter()
    rows, held = hold_out(job.examples, job.seed)
    data = TrainingRows(rows, job.task, job.model, job.device)
    trains = method.train_weights != "none"
    weight_epochs = max(1, round(FITTING * method.epochs)) if trains else 0
    gate_epochs = method.epochs - weight_epochs

    def fit(problem: Problem, epochs: int, state: Path | None) -> Trained:
        schedule = Schedule(epochs, job.batch_size, patience=method.waits)
        return train(problem, data, schedule, job.seed, state, job.report, job.progress)

    with _model(method, job) as model:
        batches = batches_of_rank(job.task, held, job.model)
        gated_model = GatedModel(model, gates.layout, method, job, batches)
        trained = fit(LearnGates(gated_model, gates), gate_epochs, job.state)
        hard_loss, sentences = _harden(gated_model, gates, trained, gate_epochs)
        mask, steps = gates.mask(), trained.steps
        if gated_model.parameters:
            before = {name: x.detach().clone() for name, x in gated_model.tensors().items()}
            state = job.state and job.state.with_stem(f"{job.state.stem}-fit")
            gated_model.gates = gates.layout.flat(mask).to(job.device)
            fitted = fit(gated_model, weight_epochs, state)
            steps += fitted.steps
            if fitted.best is not None and fitted.best < hard_loss:
                sentences.append(f"{fitted.best:.4f} after fitting the weights to the mask")
            else:
                with torch.no_grad():
                    for name, tensor in gated_model.tensors().items():
                        tensor.copy_(before[name])
                sentences.append("fitting the weights to the mask gained nothing and was dropped")
    cost = {"seconds": time.perf_counter() - began, "training_steps": float(steps)}
    values = gates.layout.score_values(gates.values)
    signature = _signature(method, gates, gated_model.rate, job, len(rows))
    description = _describe(method, gated_model.rate, mask, trained, len(rows))
    learned = sharding.gathered(model, job.model)
    scores = Scores(values, method.name, signature, cost)
    return Learned(mask, scores, learned, "; ".join([description, *sentences]))


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


def trained_parameters(model: nn.Module, which: TrainedWeights) -> dict[str, nn.Parameter]:
    """The weights to train, by name.

    Args:
        model: in which some parameters may be frozen already.
        which: `encoder` is a translator's encoder without what its decoder shares (embeddings), so
            that the decoder stays as it is; of an encoder with a head it is all but the head.
    """
    if which == "none":
        return {}
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if which == "all":
        return parameters
    translator = bool(model.config.is_encoder_decoder)  # type: ignore[union-attr]
    part: nn.Module = model.get_encoder() if translator else model.base_model  # type: ignore[operator,assignment]
    outside = set(model.modules()).difference(part.modules())
    elsewhere = {id(p) for module in outside for p in module.parameters(recurse=False)}
    unshared = {id(p) for p in part.parameters()} - elsewhere
    return {name: p for name, p in parameters.items() if id(p) in unshared}


class GatedModel(Problem):
    """The model to train, and its loss with some gates.

    Used as a `Problem`, it is the training of the weights alone, with the final mask.

    Args:
        model: on the job's device; only the trained weights require gradients.
        layout: the position of each unit's gate.
        options: which weights are trained, at what rate.
        job: the task and the device.
        held: this rank's batches to validate on.
    """

    gates: Tensor  # of the final mask

    def __init__(
        self,
        model: nn.Module,
        layout: GateLayout,
        options: LearnedMask,
        job: LearningJob,
        held: Sequence[Batch],
    ) -> None:
        self.model = model
        self.layout = layout
        self.held = held
        self.task = job.task
        self.device = job.device
        self.rate = options.learning_rate or job.task.learning_rate
        self.parameters = trained_parameters(model, options.train_weights)
        kept = {id(parameter) for parameter in self.parameters.values()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in kept)

    @override
    def groups(self) -> list[dict[str, Any]]:
        # Weight matrices with weight decay, biases and normalization without.
        matrices = [p for p in self.parameters.values() if p.dim() > 1]
        vectors = [p for p in self.parameters.values() if p.dim() <= 1]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "lr": self.rate},
            {"params": vectors, "lr": self.rate, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {f"weights.{name}": parameter for name, parameter in self.parameters.items()}

    @override
    def loss(self, batch: Batch, progress: float, whole: Batch | None = None) -> Tensor:
        return self.loss_with(batch, self.gates, whole)

    @override
    def validate(self, progress: float) -> float:
        return self.held_out_loss(self.gates)

    @override
    def status(self) -> str:
        return "weights on the final mask"

    def loss_with(self, batch: Batch, gates: Tensor, whole: Batch | None = None) -> Tensor:
        """Loss as in `Problem`, with some gates.

        If weights are trained, with dropout, as in fine-tuning.

        Args:
            batch: on the device.
            gates: [n].
            whole: the larger batch that this is a part of, if it is one.
        """
        self.model.train(bool(self.parameters))
        gating = gated(self.model, self.layout.gated, self.layout.split(gates))
        with gating, skip_mask_inspection(self.device):
            loss: Tensor = self.task.loss(self.model, batch)
        return loss / self.task.loss_terms((whole or batch).host)

    @torch.no_grad()
    def held_out_loss(self, gates: Tensor) -> float:
        """Mean loss on the held-out rows of all ranks, without dropout, in nats per loss term.

        Args:
            gates: [n].
        """
        total, terms = 0.0, 0
        self.model.eval()
        with gated(self.model, self.layout.gated, self.layout.split(gates)):
            for batch in self.held:
                loss = float(self.task.loss(self.model, batch.to(self.device)))
                if not batch.spare:
                    total += loss
                    terms += self.task.loss_terms(batch)
        return parallel.total(total) / parallel.total(terms)


class LearnGates(Problem):
    """The training of gates, and of weights along with them, validated with the hard mask."""

    def __init__(self, gated_model: GatedModel, gates: Gates) -> None:
        self.gated_model, self.gates = gated_model, gates
        self._progress = 0.0

    @override
    def groups(self) -> list[dict[str, Any]]:
        return self.gates.groups() + self.gated_model.groups()

    @override
    def tensors(self) -> dict[str, Tensor]:
        return self.gates.tensors() | self.gated_model.tensors()

    @override
    def loss(self, batch: Batch, progress: float, whole: Batch | None = None) -> Tensor:
        loss = self.gated_model.loss_with(batch, self.gates.draw(progress), whole)
        terms = self.gated_model.task.loss_terms
        share = 1.0 if whole is None else terms(batch.host) / terms(whole.host)
        return loss + self.gates.penalty(progress) * share

    @override
    def take_step(self) -> None:
        self.gates.take_step()

    @override
    def validate(self, progress: float) -> float | None:
        self._progress = progress
        if not self.gates.converged(progress):
            return None
        mask = self.gates.mask()
        value = self.gated_model.held_out_loss(self.gated_model.layout.flat(mask))
        return value + self.gates.mask_penalty(mask)

    @torch.no_grad()
    @override
    def status(self) -> str:
        largest, mean = distance_from_hard(self.gates.without_noise(self._progress))
        return (
            f"{self.gates.status(self._progress)}, gates {mean:.3f} from open or closed "
            f"({largest:.3f} at most)"
        )


def _harden(
    gated_model: GatedModel, gates: Gates, trained: Trained, epochs: int
) -> tuple[float, list[str]]:
    """Compare the relaxed gates with the hard mask.

    Args:
        gated_model: the model, with the best weights.
        gates: with the best values.
        trained: the training of the gates.
        epochs: of the whole training of the gates.

    Returns:
        The held-out loss with the hard mask, in nats per term, and sentences for the report.
    """
    done = (trained.best_epoch or trained.history[-1]["epoch"]) / epochs
    with torch.no_grad():
        relaxed = gates.without_noise(done)
    mask, (largest, mean) = gates.mask(), distance_from_hard(relaxed)
    soft = gated_model.held_out_loss(relaxed)
    hard = gated_model.held_out_loss(gates.layout.flat(mask))
    rows = parallel.total(sum(len(batch.rows) for batch in gated_model.held if not batch.spare))
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
    parts += [f"epochs:{method.epochs}", f"patience:{method.waits}"]
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
