"""Fine-tuning of the pruned model with the dense one as its teacher (Hinton, Vinyals & Dean 2015).

The loss is the divergence of the student's predictions from the teacher's,

    KL(p_dense || p_pruned), the mean over real target tokens, or over rows for a classifier,

or 1 minus the cosine of their embeddings (`Task.divergence`), so no labels are used. Optionally,
`hidden` times the difference of the residual streams after every Transformer layer is added,

    mean over layers of  mean |h_dense - h_pruned|^2 / variance of h_dense,

over the real tokens that the pruned model has left (`compressor.recovery.hidden_states`).
docs/recovery.md has measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import override

from compressor import parallel
from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.layers import layer_paths
from compressor.model.modes import skip_mask_inspection
from compressor.model.sublayers import Mask, by_layer
from compressor.model.surgery import names_without_skipped
from compressor.parallel import sharding
from compressor.recovery import (
    BATCH_ROWS,
    MUON_BATCH_ROWS,
    Distill,
    Recovered,
    RecoveryJob,
)
from compressor.recovery.hidden_states import (
    block_tokens,
    difference,
    outputs_of,
    shared_tokens,
    variances,
)
from compressor.recovery.teacher import Teacher
from compressor.tasks import Batch
from compressor.training.data import TrainingRows, batches_of_rank, hold_out
from compressor.training.loop import Problem, Schedule, train
from compressor.training.optimizer import embedding_tables, parameter_groups, sparse_gradients
from compressor.training.precision import Precision, products_in
from compressor.training.text import Text


def with_earlier_weights(pruned: nn.Module, mask: Mask, directory: Path) -> nn.Module:
    """A copy of a pruned model with the weights of an artifact that keeps the same units.

    Args:
        pruned: the model; not changed.
        mask: the units of the dense model that it keeps.
        directory: of the artifact.

    Raises:
        InputError: it is no pruned checkpoint, keeps other units, or has weights of other shapes.
    """
    earlier = open_checkpoint(str(directory))
    if earlier.pruning is None or earlier.pruning.mask != mask:
        has = "no units.json" if earlier.pruning is None else str(earlier.pruning.mask)
        raise InputError(
            f"--distill-start {directory} keeps other units ({has}) than this pruned model "
            f"({mask}); use the options of that run, or leave --distill-start out",
            id="start-other-units",
        )
    model = deepcopy(pruned)
    weights, names = earlier.model.state_dict(), names_without_skipped(pruned)
    shapes = {names[name]: tensor.shape for name, tensor in model.state_dict().items()}
    if shapes != {name: weight.shape for name, weight in weights.items()}:
        raise InputError(
            f"--distill-start {directory} has weights of other shapes than this pruned model: it "
            "was made from another model, or with another --source-text; leave --distill-start out",
            id="start-other-shapes",
        )
    model.load_state_dict({name: weights[names[name]] for name in names})
    return model


def uses_muon(job: RecoveryJob) -> bool:
    """Whether Muon trains the matrices; on few rows, such as calibration rows, AdamW is better."""
    return job.text is not None and job.task.muon_on_text


def distill(method: Distill, job: RecoveryJob) -> Recovered:
    """Train a copy of the pruned model to match the dense model's predictions.

    Args:
        method: options, with what `on_device` and `for_task` have decided.
        job: the models, the calibration rows and, where one is given, a text.

    Returns:
        The weights with the lowest divergence on the held-out rows; those of the pruned model if
        training gained nothing.

    Raises:
        InputError: too few rows to hold some out, a loss that is not finite, or an earlier artifact
            that does not fit.
    """
    task = job.task
    rows, precision = method.batch, method.precision
    assert rows is not None
    assert precision is not None
    usual_rows = MUON_BATCH_ROWS if uses_muon(job) else BATCH_ROWS
    usual = task.learning_rate
    if job.text is not None:
        usual = task.text_learning_rate or usual
    # Gradient noise falls with the square root of the rows; for the scaling rule see Malladi et
    # al. 2022, "On the SDEs and scaling rules for Adam".
    rate = method.learning_rate or usual * math.sqrt(rows / usual_rows)
    hidden = task.hidden_weight if method.hidden is None else method.hidden
    if method.earlier is not None:
        job = replace(job, pruned=with_earlier_weights(job.pruned, job.mask, method.earlier))
    seconds = None if method.minutes is None else 60 * method.minutes
    schedule = Schedule(
        method.epochs, rows, patience=method.waits, steps=method.steps, seconds=seconds
    )
    done = _fine_tuned(job, schedule, rate, hidden, precision)
    since = "" if method.earlier is None else f"; started from the weights of {method.earlier}"
    return replace(done, text=done.text + since)


def _fine_tuned(
    job: RecoveryJob, schedule: Schedule, rate: float, hidden: float, precision: Precision
) -> Recovered:
    """Train with everything decided.

    Args:
        job: whose pruned model is the student to start from.
        schedule: how long to train.
        rate: peak learning rate.
        hidden: weight of the difference in hidden states; 0 leaves it out.
        precision: of products in training; validation is in float32.
    """
    learn, held = hold_out(job.examples, job.seed, job.text)
    pruned = job.pruned
    student = sharding.sharded(pruned, layer_paths(pruned), job.device)
    with sharding.shards_of(job.dense, layer_paths(job.dense), job.device) as dense:
        job = replace(job, dense=dense)
        batches = batches_of_rank(job.task, held, dense, job.device)
        problem = Distillation(job, student, batches, rate, hidden, precision)
        if parallel.shards():
            size = sum(map(sharding.local_bytes, (student, dense))) / 1e6
            job.report(f"  both models are sharded, {size:.1f} MB on rank 0 of {parallel.size()}")
        before = problem.validate(0.0)
        if job.text is not None and schedule.epochs > 1:
            problem.read_text(job.text)
        data = TrainingRows(learn, job.task, job.dense, job.device, job.text)
        with sparse_gradients(embedding_tables(student)):
            trained = train(problem, data, schedule, job.seed, job.state, job.report, job.progress)
    if trained.best is None or not trained.best < before:
        text = f"distill: nothing gained on {len(held)} held-out rows, weights not changed"
        return Recovered(pruned, text, trained.steps, trained.seconds)
    student.zero_grad()
    lines = "" if job.text is None else f" and {job.text.lines.rows} lines of text"
    if job.text is not None and job.text.copies:
        lines += f" with {job.text.copies} altered copies of each"
    products = "" if precision == "fp32" else f" with products in {precision}"
    text = (
        f"distill: fine-tuned with the dense model as teacher on {len(learn)} rows{lines} at "
        f"learning rate {rate:g}{products}, best after {trained.best_epoch} of "
        f"{trained.history[-1]['epoch']} epochs ({trained.steps} steps); divergence from it on "
        f"{len(held)} held-out rows {before:.4f} before, {trained.best:.4f} after"
    )
    model = sharding.gathered(student, pruned)
    return Recovered(model, text, trained.steps, trained.seconds)


class Distillation(Problem):
    """All floating-point weights of the student, validated by its divergence from the teacher.

    Args:
        job: the teacher (`dense`), the rows it answers, and the task.
        student: in evaluation mode, so without dropout; its weights change.
        held: this rank's batches to validate on, and to take variances of hidden states from.
        learning_rate: peak rate.
        hidden: weight of the difference in hidden states; 0 leaves it out.
        precision: of products in training; validation is in float32.
    """

    def __init__(
        self,
        job: RecoveryJob,
        student: nn.Module,
        held: list[Batch],
        learning_rate: float,
        hidden: float = 0.0,
        precision: Precision = "fp32",
    ) -> None:
        self.job = job
        self.student = student
        self.held = held
        self.learning_rate = learning_rate
        self.hidden = hidden
        self.precision = precision
        # The first sublayer of each layer: its kind says which tokens the layer processes.
        self.blocks = [x[0] for x in by_layer(job.layers).values()] if hidden else []

        def teacher_batches() -> Iterator[Batch]:
            batches = batches_of_rank(job.task, job.examples, job.dense, job.device)
            for done, batch in enumerate(batches):
                job.progress(done, len(batches))
                yield batch

        def held_states() -> Iterator[tuple[Tensor, ...]]:
            for batch in held if self.blocks else ():
                _, states = self.teacher.outputs(batch.to(job.device))
                if not batch.spare:
                    yield states

        self.teacher = Teacher(job.dense, job.task, teacher_batches(), self.blocks)
        self.variances = variances(held_states())
        self._parameters = {n: p for n, p in student.named_parameters() if p.is_floating_point()}
        for parameter in self._parameters.values():
            parameter.requires_grad_(True)

    def read_text(self, text: Text) -> None:
        """Keep the dense model's answers to a text, as far as they fit; the same as in a step."""
        with products_in(self.precision, self.job.device):
            cached = self.teacher.cache_text(text, self.job.progress)
        if cached < text.rows:
            self.job.report(
                f"  the dense model's answers to {cached:,} of {text.rows:,} texts fit into "
                "memory; it reads the others in every epoch"
            )

    @override
    def groups(self) -> list[dict[str, object]]:
        layers = layer_paths(self.student) if uses_muon(self.job) else ()
        weights = self._parameters.values()
        return parameter_groups(self.student, weights, layers, self.learning_rate, self.precision)

    @override
    def tables(self) -> list[Tensor]:
        return [table.weight for table in embedding_tables(self.student)]

    @override
    def tensors(self) -> dict[str, Tensor]:
        return dict(self._parameters)

    @override
    def loss(self, batch: Batch, progress: float, whole: Batch | None = None) -> Tensor:
        task = self.job.task
        device = self.job.device
        whole = (whole or batch).host
        with products_in(self.precision, device), skip_mask_inspection(device):
            target, whole_rows = self.teacher.outputs(batch)
            logits, states = outputs_of(self.student, task, batch, self.blocks)
        loss = task.divergence(task.predictions(logits), target) / task.loss_terms(whole)
        if not self.blocks:
            return loss
        target_states = shared_tokens(whole_rows, self.student, task, batch, self.blocks)
        masks = (block_tokens(task, whole, self.student, block) for block in self.blocks)
        tokens = [int(mask.sum()) for mask in masks]
        return loss + self.hidden * difference(states, target_states, self.variances, tokens)

    @torch.no_grad()
    @override
    def validate(self, progress: float) -> float:
        task, divergence = self.job.task, 0.0
        for batch in self.held:
            moved = batch.to(self.job.device)
            logits, _ = outputs_of(self.student, task, moved, ())
            target, _ = self.teacher.outputs(moved)
            part = float(task.divergence(task.predictions(logits), target))
            divergence += 0.0 if batch.spare else part
        counted = [batch for batch in self.held if not batch.spare]
        terms = parallel.total(sum(map(task.loss_terms, counted)))
        return parallel.total(divergence) / terms
