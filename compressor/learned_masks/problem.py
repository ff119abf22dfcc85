"""The two problems that are trained: gates (with weights or without), then weights alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.importance import TrainedWeights
from compressor.learned_masks.base import Gates, distance_from_hard
from compressor.learned_masks.layout import GateLayout
from compressor.learned_masks.method import LearnedMask, LearningJob
from compressor.model.surgery import gated
from compressor.tasks import Batch
from compressor.training.loop import Problem


def trained_parameters(model: nn.Module, which: TrainedWeights) -> dict[str, nn.Parameter]:
    """The weights to train, by name.

    `encoder` is a translator's encoder without the embeddings that the decoder shares, so that the
    decoder does not change; for a classifier, all but the classification head.
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

    As a `Problem`, it trains the weights with the final mask.
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
        self.model, self.layout, self.held = model, layout, held
        self.task, self.device = job.task, job.device
        self.rate = options.learning_rate or job.task.learning_rate
        self.parameters = trained_parameters(model, options.train_weights)
        kept = {id(parameter) for parameter in self.parameters.values()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in kept)

    def groups(self) -> list[dict[str, Any]]:
        """Weight matrices with weight decay, biases and normalization without."""
        rate = {"lr": self.rate}
        matrices = [p for p in self.parameters.values() if p.dim() > 1]
        vectors = [p for p in self.parameters.values() if p.dim() <= 1]
        groups = [{"params": matrices, **rate}, {"params": vectors, **rate, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def tensors(self) -> dict[str, Tensor]:
        return {f"weights.{name}": parameter for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def restore(self, before: Mapping[str, Tensor]) -> None:
        """Restore the weights from a copy of `tensors`."""
        for name, tensor in self.tensors().items():
            tensor.copy_(before[name])

    def loss(self, batch: Batch, progress: float, whole: Batch | None = None) -> Tensor:
        return self.loss_with(batch, self.gates, whole)

    def validate(self, progress: float) -> float:
        return self.held_out_loss(self.gates)

    def status(self) -> str:
        return "weights on the final mask"

    def loss_with(self, batch: Batch, gates: Tensor, whole: Batch | None = None) -> Tensor:
        """Loss as in `Problem`; with dropout if weights are trained, as in fine-tuning."""
        self.model.train(bool(self.parameters))
        with gated(self.model, self.layout.gated, self.layout.split(gates)):
            loss: Tensor = self.task.loss(self.model, batch)
        return loss / self.task.loss_terms(batch if whole is None else whole)

    @torch.no_grad()
    def held_out_loss(self, gates: Tensor) -> float:
        """Mean loss on the held-out rows, without dropout."""
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
    """Trains gates, and weights together with them; evaluated with the gates' hard mask."""

    def __init__(self, gated_model: GatedModel, gates: Gates) -> None:
        self.gated_model, self.gates = gated_model, gates
        self._progress = 0.0

    def groups(self) -> list[dict[str, Any]]:
        return self.gates.groups() + self.gated_model.groups()

    def tensors(self) -> dict[str, Tensor]:
        return self.gates.tensors() | self.gated_model.tensors()

    def loss(self, batch: Batch, progress: float, whole: Batch | None = None) -> Tensor:
        loss = self.gated_model.loss_with(batch, self.gates.draw(progress), whole)
        penalty = self.gates.penalty(progress)
        if penalty is None:
            return loss
        terms = self.gated_model.task.loss_terms
        return loss + penalty * (1.0 if whole is None else terms(batch) / terms(whole))

    def take_step(self) -> None:
        self.gates.take_step()

    def validate(self, progress: float) -> float | None:
        self._progress = progress
        if not self.gates.converged(progress):
            return None
        mask = self.gates.mask()
        value = self.gated_model.held_out_loss(self.gated_model.layout.flat(mask))
        return value + self.gates.mask_penalty(mask)

    @torch.no_grad()
    def status(self) -> str:
        largest, mean = distance_from_hard(self.gates.without_noise(self._progress))
        return (
            f"{self.gates.status(self._progress)}, gates {mean:.3f} from open or closed "
            f"({largest:.3f} at most)"
        )
