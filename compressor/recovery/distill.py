"""Fine-tuning of the cut model with the dense one as its teacher (Hinton, Vinyals & Dean 2015).

The loss is the divergence of the student's predictions from the teacher's,

    KL(p_dense || p_pruned), the mean over real target tokens, or over rows for a classifier,

so no labels are used (a translator reads its targets, as inputs of the decoder). A tenth of the
rows is held out; the weights that do best there are kept, and training stops when they get no
better. The student is trained without dropout: what it has to match is computed without, too.

Cost: a forward pass of the dense model over the calibration rows, whose results are kept
(`compressor.recovery.teacher`), and in each epoch a forward and backward pass of the pruned one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from compressor.recovery import Recovered, Recovery
from compressor.recovery.teacher import Teacher
from compressor.tasks import Batch
from compressor.training import Data, Problem, Schedule, Trained, hold_out, train


def recover(
    job: Recovery, epochs: int = 5, learning_rate: float = 1e-4, patience: int = 2
) -> Recovered:
    """Train a copy to predict what the dense model does; never worse on the held-out rows.

    Args:
        epochs, patience: see `compressor.training.Schedule`.
    """
    learn, held = hold_out(job.examples, job.seed)
    student = copy.deepcopy(job.pruned)
    problem = Distillation(job, student, job.task.batches(held, job.dense), learning_rate)
    before = problem.validate(0.0)
    trained = train(
        problem,
        Data(learn, job.task, job.dense, job.device),
        Schedule(epochs, patience=patience),
        seed=job.seed,
        state=job.state,
        report=job.report,
        progress=job.progress,
    )
    if trained.best is None or not trained.best < before:
        text = f"distill: nothing gained on {len(held)} held-out rows, weights as they were"
        return Recovered(job.pruned, text)
    student.zero_grad()
    return Recovered(student, _describe(trained, before, len(learn), len(held), learning_rate))


class Distillation(Problem):
    """All floating-point weights of the student, judged by its divergence from the teacher.

    Args:
        student: in evaluation mode; its weights change.
        held: batches to validate on.
    """

    def __init__(
        self, job: Recovery, student: nn.Module, held: list[Batch], learning_rate: float
    ) -> None:
        self.job, self.student, self.held = job, student, held
        self.learning_rate = learning_rate
        self.teacher = Teacher(job.dense, job.task, self._teacher_batches())
        self._parameters = {n: p for n, p in student.named_parameters() if p.is_floating_point()}
        for parameter in self._parameters.values():
            parameter.requires_grad_(True)

    def groups(self) -> list[dict[str, object]]:
        return [{"params": list(self._parameters.values()), "lr": self.learning_rate}]

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._parameters)

    def loss(self, batch: Batch, progress: float) -> Tensor:
        return self._divergence(batch) / self.job.task.loss_terms(batch)

    @torch.no_grad()
    def validate(self, progress: float) -> float:
        sums = [self._divergence(batch.to(self.job.device)) for batch in self.held]
        terms = sum(self.job.task.loss_terms(batch) for batch in self.held)
        return float(torch.stack(sums).sum()) / terms

    def _divergence(self, batch: Batch) -> Tensor:
        """KL(dense || pruned), summed over what the task's loss has terms for, in nats."""
        logits: Tensor = self.job.task.logits(self.student, batch)
        terms = logits[self.job.task.term_mask(batch)]  # [terms, vocabulary or labels]
        wanted = self.teacher.log_probabilities(batch)  # of the same shape
        return kl_div(log_softmax(terms.float(), -1), wanted, reduction="sum", log_target=True)

    def _teacher_batches(self) -> Iterator[Batch]:
        """The calibration rows for the teacher to read, with progress."""
        batches = self.job.task.batches(self.job.examples, self.job.dense)
        for done, batch in enumerate(batches):
            self.job.progress(done, len(batches))
            yield batch


def _describe(trained: Trained, before: float, rows: int, held: int, rate: float) -> str:
    epochs = f"{trained.best_epoch} of {trained.history[-1]['epoch']} epochs"
    return (
        f"distill: fine-tuned with the dense model as teacher on {rows} rows at learning rate "
        f"{rate:g}, best after {epochs}; divergence from it on {held} held-out rows "
        f"{before:.4f} before, {trained.best:.4f} after"
    )
