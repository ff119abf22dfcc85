"""Runs a study: opens and checks what it looks at, computes, and writes its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from compressor.errors import InputError, UsageError
from compressor.importance import ScoringJob, ScoringMethod
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import trim_memory
from compressor.model.sublayers import Mask, Scores, Sublayer
from compressor.options.table import opened
from compressor.pipeline import inputs
from compressor.pipeline.score import score
from compressor.progress import SILENT, Progress
from compressor.report import phrases
from compressor.report.plots import plot_style
from compressor.request.sections import CalibrationData
from compressor.request.validate import check_options, require_rows
from compressor.storage import staging
from compressor.storage.files import require_directory
from compressor.storage.version import __version__
from compressor.study.options import MeasuringStudy, StudyRequest
from compressor.study.output import PREFIX, Result, write_result
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
        examples = inputs.encode(rows, self.checkpoint, self.task, self.progress)
        return self.task.batches(examples, self.checkpoint.model)

    def score(self, method: ScoringMethod, rows: Rows | None) -> Scores:
        """Scores of all heads on rows, which methods that use the weights alone do without."""
        on = "" if rows is None else f" on {len(rows.sources)} rows"
        self.progress.message(f"scoring {self.checkpoint.name} with {method.name}{on} …")
        examples = [] if rows is None else inputs.encode(rows, self.checkpoint, self.task)
        source = inputs.ModelAndRows(
            self.checkpoint, examples, rows,
            device=self.device, seed=self.seed, progress=self.progress,
        )  # fmt: skip
        full = Mask.full(self.layers)
        return score(full, source=source, method=method, sublayers=self.layers)

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


def run_study(request: StudyRequest, output: Path, progress: Progress = SILENT) -> Result:
    """Run a study and write `study-NAME.json`, `.md`, `.png` and `.svg` to `output`.

    Raises:
        InputError: the directory holds something else than other studies, or this one complete.
    """
    require_directory(output)
    for path in sorted(output.iterdir()) if output.exists() else ():
        # The JSON file is written last: without it the other three are of a study that was killed.
        is_done = path.name == f"{PREFIX}{request.name}.json"
        if is_done or not path.name.startswith((PREFIX, staging.PREFIX)):
            raise InputError(
                f"{output} holds {path.name} already; choose another --output",
                id="output-not-empty",
            )
    model, rows = _open(request, progress)
    # The name becomes part of the ids in the SVG, which are random without it.
    with plot_style(f"{PREFIX}{request.name}"):
        result: Result = opened(request.function)(model, rows, request)
        parts = {"calibration": rows.calibration, "test": rows.test}
        data = {
            "schema": 1,
            "study": request.name,
            "tool_version": __version__,
            "model": model.checkpoint.name,
            "revision": model.checkpoint.revision,
            "heads": {layer.name: layer.units for layer in model.layers},
            "seed": model.seed,
            "shared_rows": rows.shared,
            **{name: facts_of(part) for name, part in parts.items() if part is not None},
            **result.data,
        }
        sentences = list(result.sentences)
        if data.get("at_floor", False):
            sentences.append(
                "With all heads the metric is at its floor, what chance gives, so nothing can be "
                "concluded from what changes or does not."
            )
        if rows.shared and rows.test is not None:
            sentences.append(f"{phrases.shared_rows(rows.shared, len(rows.test.sources))}.")
        result = replace(result, data=data, sentences=sentences)
        write_result(result, output / f"{PREFIX}{request.name}")
    return result


def _open(request: StudyRequest, progress: Progress) -> tuple[StudiedModel, inputs.DataRows]:
    """The dense model, the last of several, and the rows that the request names."""
    device = inputs.pick_device(request.device, progress)
    checkpoint = inputs.load(request.checkpoints()[-1])
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
    rows = inputs.read(request.data, checkpoint, task, progress, tokenizers)
    inputs.warn_of_shared_rows(rows, progress)
    return StudiedModel(checkpoint, request.seed, device, progress), rows


def facts_of(rows: Rows) -> dict[str, Any]:
    """Which rows they are, for the JSON file."""
    return {"files": rows.files, "rows": len(rows.sources), "sha256": rows.sha256}
