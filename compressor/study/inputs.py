"""What a study looks at: the dense model and the rows, opened and checked before it computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from compressor.errors import UsageError
from compressor.evaluation import metrics_of
from compressor.importance import ScoringJob, ScoringMethod
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import trim_memory
from compressor.model.sublayers import Mask, Scores, Sublayer
from compressor.pipeline.inputs import (
    DataRows,
    ModelAndRows,
    encode,
    load,
    pick_device,
    read,
    warn_of_shared_rows,
)
from compressor.pipeline.score import score
from compressor.progress import Progress
from compressor.request.sections import CalibrationData, ModelSection
from compressor.request.validate import check_options, require_rows
from compressor.storage.version import __version__
from compressor.study.options import MeasuringStudy, StudyRequest
from compressor.tasks import TASKS, Batch, Rows, Task


@dataclass(frozen=True)
class StudyInputs:
    """The inputs of a study, opened.

    Args:
        checkpoint: dense; of several the last.
        rows: calibration and test rows, as far as they are given.
    """

    study: str
    checkpoint: Checkpoint
    rows: DataRows
    seed: int
    device: str
    progress: Progress

    @property
    def task(self) -> Task:
        return TASKS[self.checkpoint.task]

    @property
    def metric(self) -> str:
        """The main metric of the test rows, for example `bleu`."""
        assert self.rows.test is not None
        return metrics_of(self.rows.test)[0]

    def facts(self) -> dict[str, Any]:
        """What was studied, for the JSON file."""
        rows = {"calibration": self.rows.calibration, "test": self.rows.test}
        return {
            "schema": 1,
            "study": self.study,
            "tool_version": __version__,
            "model": self.checkpoint.name,
            "revision": self.checkpoint.revision,
            "heads": {layer.name: layer.units for layer in self.checkpoint.attention},
            "seed": self.seed,
            "shared_rows": self.rows.shared,
            **{name: facts_of(given) for name, given in rows.items() if given is not None},
        }

    def batches(self, rows: Rows, checkpoint: Checkpoint | None = None) -> list[Batch]:
        """Batches of all rows on the CPU; reports how many rows had to be cut."""
        checkpoint = checkpoint or self.checkpoint
        examples = encode(rows, checkpoint, self.task, self.progress)
        batches: list[Batch] = self.task.batches(examples, checkpoint.model)
        return batches

    def score(
        self, method: ScoringMethod, rows: Rows | None, checkpoint: Checkpoint | None = None
    ) -> Scores:
        """Scores of all heads.

        Args:
            rows: to score on; None for methods that look at the weights alone.
            checkpoint: another one than the study's.
        """
        checkpoint = checkpoint or self.checkpoint
        on = "" if rows is None else f" on {len(rows.sources)} rows"
        self.progress.message(f"scoring {checkpoint.name} with {method.name}{on} …")
        examples = [] if rows is None else encode(rows, checkpoint, self.task)
        return score(
            Mask.full(checkpoint.attention), given=ModelAndRows(checkpoint, examples, rows),
            method=method, sublayers=checkpoint.attention, seed=self.seed, device=self.device,
            progress=self.progress,
        )  # fmt: skip

    @contextmanager
    def scoring(
        self,
        model: nn.Module,
        layers: Sequence[Sublayer],
        batches: Sequence[Batch],
        steps: str = "passes",
        mask: Mask | None = None,
    ) -> Iterator[ScoringJob]:
        """A model, on the study's device within the block, with batches to look at its heads on.

        Args:
            steps: what progress counts.
            mask: the heads that are not silenced; all by default.
        """
        # On the device only while it is needed: studies have several models.
        model.to(self.device)
        try:
            yield ScoringJob(
                model=model,
                layers=layers,
                mask=mask or Mask.full(layers),
                batches=batches,
                task=self.task,
                tokenizer=self.checkpoint.tokenizer,
                device=self.device,
                progress=lambda done, total: self.progress.update(steps, done, total),
            )
        finally:
            model.to("cpu")
            trim_memory()


def facts_of(rows: Rows) -> dict[str, Any]:
    """Which rows they are, for the JSON file."""
    return {"files": rows.files, "rows": len(rows.sources), "sha256": rows.sha256}


def open_inputs(request: StudyRequest, progress: Progress) -> StudyInputs:
    """Open and check everything that all studies have in common."""
    device = pick_device(request.device, progress)
    # Of the checkpoints of a training the last one, which the others are compared with.
    checkpoint = open_model(request, request.checkpoints[-1])
    task = TASKS[checkpoint.task]
    if not task.has_answers:
        raise UsageError(
            f"studies look at losses and answers, and {checkpoint.name}, a model for {task.name}, "
            "has no right answers to a text; compare its artifacts with `compress evaluate`",
            id="study-for-other-tasks",
        )
    if not task.one_example_per_row:
        raise UsageError(
            f"studies look at rows that are read in one pass, and long ones for {task.name} are "
            "read in parts; compare artifacts with `compress evaluate`",
            id="study-for-other-tasks",
        )
    tokenizers = None
    if isinstance(request, MeasuringStudy):
        check_options([request.evaluation], task, checkpoint.name)
        tokenizers = request.evaluation.tokenizers
    check_options([request.data], task, checkpoint.name)
    if isinstance(request.data, CalibrationData):
        require_rows(request.scoring, [], request.data)
    rows = read(request.data, checkpoint, task, progress, tokenizers)
    warn_of_shared_rows(rows, progress)
    return StudyInputs(request.name, checkpoint, rows, request.seed, device, progress)


def open_model(request: StudyRequest, path: str) -> Checkpoint:
    """A dense checkpoint, opened as the request says.

    Raises:
        InputError: it cannot be loaded, or has lost heads already.
    """
    # A request that names several checkpoints has other fields, and a list as its `path`.
    names = set(ModelSection.model_fields) & set(type(request.model).model_fields) - {"path"}
    return load(ModelSection(path=path, **{x: getattr(request.model, x) for x in names}))
