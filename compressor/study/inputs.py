"""The model and the rows that a study looks at, opened and checked before it computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from compressor.errors import UsageError
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
from compressor.report import phrases
from compressor.request.sections import CalibrationData
from compressor.request.validate import check_options, require_rows
from compressor.storage.version import __version__
from compressor.study.options import MeasuringStudy, StudyRequest
from compressor.tasks import TASKS, Batch, Rows, Task


@dataclass(frozen=True)
class StudiedModel:
    """A dense checkpoint, and where to compute with it."""

    checkpoint: Checkpoint
    seed: int
    device: str
    progress: Progress

    @property
    def task(self) -> Task:
        return TASKS[self.checkpoint.task]

    @property
    def layers(self) -> list[Sublayer]:
        """All attention layers."""
        return self.checkpoint.attention

    def batches(self, rows: Rows) -> list[Batch]:
        """Batches of all rows on the CPU; reports how many rows had to be cut."""
        examples = encode(rows, self.checkpoint, self.task, self.progress)
        return self.task.batches(examples, self.checkpoint.model)

    def score(self, method: ScoringMethod, rows: Rows | None) -> Scores:
        """Scores of all heads on rows, which methods that use the weights alone do without."""
        on = "" if rows is None else f" on {len(rows.sources)} rows"
        self.progress.message(f"scoring {self.checkpoint.name} with {method.name}{on} …")
        examples = [] if rows is None else encode(rows, self.checkpoint, self.task)
        return score(
            Mask.full(self.layers), given=ModelAndRows(self.checkpoint, examples, rows),
            method=method, sublayers=self.layers, seed=self.seed, device=self.device,
            progress=self.progress,
        )  # fmt: skip

    @contextmanager
    def scoring(
        self,
        batches: Sequence[Batch],
        layers: Sequence[Sublayer] | None = None,
        mask: Mask | None = None,
        network: nn.Module | None = None,
    ) -> Iterator[ScoringJob]:
        """A job on batches, by default with all heads; its network is on the device in the block.

        `mask` silences heads; `network` replaces the checkpoint's.
        """
        layers = self.layers if layers is None else layers
        network = self.checkpoint.model if network is None else network
        # On the device only while it is needed: studies have several models.
        network.to(self.device)
        try:
            yield ScoringJob(
                model=network,
                layers=layers,
                mask=mask or Mask.full(layers),
                batches=batches,
                task=self.task,
                tokenizer=self.checkpoint.tokenizer,
                device=self.device,
                progress=lambda done, total: self.progress.update("passes", done, total),
            )
        finally:
            network.to("cpu")
            trim_memory()


def open_inputs(request: StudyRequest, progress: Progress) -> tuple[StudiedModel, DataRows]:
    """The dense model, the last of several, and the rows that the request names."""
    device = pick_device(request.device, progress)
    checkpoint = load(request.checkpoints()[-1])
    task = TASKS[checkpoint.task]
    if not (task.has_answers and task.one_example_per_row):
        raise UsageError(
            f"{checkpoint.name} is a model for {task.name}, and studies need rows that are read in "
            "one pass and have right answers; compare artifacts with `compress evaluate`",
            id="study-for-other-tasks",
        )
    evaluation = request.evaluation if isinstance(request, MeasuringStudy) else None
    check_options([request.data, evaluation], task, checkpoint.name)
    if isinstance(request.data, CalibrationData):
        recovery = getattr(request, "recovery", [])
        require_rows(getattr(request, "method", None), recovery, request.data)
    tokenizers = None if evaluation is None else evaluation.tokenizers
    rows = read(request.data, checkpoint, task, progress, tokenizers)
    warn_of_shared_rows(rows, progress)
    return StudiedModel(checkpoint, request.seed, device, progress), rows


def facts(study: str, model: StudiedModel, rows: DataRows) -> dict[str, Any]:
    """What was studied, for the JSON file."""
    parts = {"calibration": rows.calibration, "test": rows.test}
    return {
        "schema": 1,
        "study": study,
        "tool_version": __version__,
        "model": model.checkpoint.name,
        "revision": model.checkpoint.revision,
        "heads": {layer.name: layer.units for layer in model.layers},
        "seed": model.seed,
        "shared_rows": rows.shared,
        **{name: facts_of(part) for name, part in parts.items() if part is not None},
    }


def facts_of(rows: Rows) -> dict[str, Any]:
    """Which rows they are, for the JSON file."""
    return {"files": rows.files, "rows": len(rows.sources), "sha256": rows.sha256}


def caveats(data: Mapping[str, Any], rows: DataRows) -> list[str]:
    """Sentences about what the study cannot show."""
    sentences = []
    if data.get("at_floor", False):
        sentences.append(
            "With all heads the metric is at its floor, what chance gives, so nothing can be "
            "concluded from what changes or does not."
        )
    if rows.shared and rows.test is not None:
        sentences.append(f"{phrases.shared_rows(rows.shared, len(rows.test.sources))}.")
    return sentences
