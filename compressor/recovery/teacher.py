"""The dense model as a teacher that reads every row once, however many epochs the student needs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from compressor.tasks import Batch, Task


class Teacher:
    """What the dense model predicts for rows that come again in every epoch.

    Of a translator it keeps what the output projection reads, the last hidden states: the logits
    themselves are a vocabulary wide. Of a classifier it keeps the logits. As much is kept as the
    model's own weights take, in the order of `batches`; later rows are computed each time.

    Args:
        dense: in evaluation mode, on the device where batches will be; not changed.
        task: its task (see `compressor.tasks`).
        batches: the rows that will come, as few or as many in a batch as is efficient.
    """

    @torch.no_grad()
    def __init__(self, dense: nn.Module, task: Task, batches: Iterable[Batch]) -> None:
        self.dense, self.task = dense, task
        self.projection: nn.Module | None = dense.get_output_embeddings()  # type: ignore[operator]
        self.kept: dict[int, Tensor] = {}  # row -> [its loss terms, width]
        weights = list(dense.parameters())
        self.memory_left = sum(p.numel() * p.element_size() for p in weights)
        for batch in batches:
            if not self.memory_left:
                break
            self._remember(batch.to(weights[0].device))

    @torch.no_grad()
    def log_probabilities(self, batch: Batch) -> Tensor:
        """[loss terms, classes or vocabulary], float32; terms in the order of the batch."""
        if all(row in self.kept for row in batch.rows):
            logits = self._project(torch.cat([self.kept[row] for row in batch.rows]))
        else:
            logits = self.task.logits(self.dense, batch)[self.task.term_mask(batch)]
        return log_softmax(logits.float(), -1)

    def _remember(self, batch: Batch) -> None:
        terms = self.task.term_mask(batch)
        found = self._hidden(batch)[terms]
        for row, part in zip(batch.rows, found.split(_terms_per_row(terms)), strict=True):
            size = part.numel() * part.element_size()
            if size > self.memory_left:
                self.memory_left = 0
                return
            self.memory_left -= size
            self.kept[row] = part.clone()

    def _hidden(self, batch: Batch) -> Tensor:
        """What is kept, at every position: [batch, target, width] or [batch, labels]."""
        if self.projection is None:
            found: Tensor = self.task.logits(self.dense, batch)
            return found
        read: list[Tensor] = []
        hook = self.projection.register_forward_pre_hook(lambda _, args: read.append(args[0]))
        try:
            self.task.logits(self.dense, batch)
        finally:
            hook.remove()
        return read[-1]

    def _project(self, kept: Tensor) -> Tensor:
        if self.projection is None:
            return kept
        bias = getattr(self.dense, "final_logits_bias", None)
        logits: Tensor = self.projection(kept)
        return logits if bias is None else logits + bias


def _terms_per_row(terms: Tensor) -> list[int]:
    counts: list[int] = terms.reshape(len(terms), -1).sum(-1).tolist()
    return counts
