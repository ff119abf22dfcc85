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

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from compressor.recovery import Recovery
from compressor.recovery.teacher import Teacher
from compressor.tasks import Batch
from compressor.training import Data, Problem, Schedule, Trained, hold_out, train


def recover(job: Recovery) -> str:
    """Train `job.pruned` to predict what `job.dense` does; never worse on the held-out rows."""
    learn, held = hold_out(job.examples, job.seed)
    problem = _Imitation(job, job.task.batches(held, job.dense))
    before = problem.validate(0.0)
    trained = train(
        problem,
        Data(learn, job.task, job.dense, job.device),
        Schedule(job.epochs, patience=job.patience),
        seed=job.seed,
        state=job.state,
        report=job.report,
        progress=job.progress,
    )
    if trained.best is None or not trained.best < before:
        problem.restore()
        return f"distill: nothing gained on {len(held)} held-out rows, weights as they were"
    return _describe(trained, before, len(learn), len(held), job.learning_rate)


class _Imitation(Problem):
    def __init__(self, job: Recovery, held: list[Batch]) -> None:
        self.job, self.held = job, held
        job.dense.eval(), job.pruned.eval()
        self.teacher = Teacher(job.dense, job.task, self._told())
        self._parameters = {n: p for n, p in job.pruned.named_parameters() if p.is_floating_point()}
        for parameter in self._parameters.values():
            parameter.requires_grad_(True)
        self._first = {n: p.detach().clone() for n, p in self._parameters.items()}

    def groups(self) -> list[dict[str, object]]:
        return [{"params": list(self._parameters.values()), "lr": self.job.learning_rate}]

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._parameters)

    def loss(self, batch: Batch, progress: float) -> Tensor:
        return self._divergence(batch) / self.job.task.loss_terms(batch)

    @torch.no_grad()
    def validate(self, progress: float) -> float:
        sums = [self._divergence(batch.to(self.job.device)) for batch in self.held]
        terms = sum(self.job.task.loss_terms(batch) for batch in self.held)
        return float(torch.stack(sums).sum()) / terms

    @torch.no_grad()
    def restore(self) -> None:
        for name, value in self._first.items():
            self._parameters[name].copy_(value)

    def _divergence(self, batch: Batch) -> Tensor:
        """Summed KL(dense || pruned) over what the task's loss has terms for, in nats."""
        logits: Tensor = self.job.task.logits(self.job.pruned, batch)
        found = log_softmax(logits[self.job.task.term_mask(batch)].float(), -1)
        wanted = self.teacher.log_probabilities(batch)
        return kl_div(found, wanted, reduction="sum", log_target=True)

    def _told(self) -> Iterator[Batch]:
        """The calibration rows for the teacher, with progress."""
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
