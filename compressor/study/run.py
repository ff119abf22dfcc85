"""Running a study, and what studies share.

A study is a function from a model, rows and a request to a `Result`; `run_study` is the only entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.importance import ScoringJob, ScoringMethod
from compressor.importance.scoring import score
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import trim_memory
from compressor.model.sublayers import KINDS, Mask, Scores, Sublayer, kind_of
from compressor.options import inputs
from compressor.options.table import import_object
from compressor.options.validate import check_options
from compressor.progress import SILENT, Progress
from compressor.report.plots import PLOT_FORMATS, plot_style, save_figure
from compressor.report.sentences import shared_rows, warning_of_shared_rows
from compressor.report.table import (
    ReportTable,
    bullets,
    escape,
    make_table,
    render_table,
    render_text,
)
from compressor.steps.context import Context
from compressor.storage import staging
from compressor.storage.files import require_directory, write_at_once, write_json
from compressor.storage.version import __version__
from compressor.study.options import MeasuringStudy, StudyRequest
from compressor.tasks import TASKS, Batch, Rows, Task
from compressor.tasks.engines import pick_device
from compressor.tasks.opened import DataRows, ModelAndRows, encode

PREFIX = "study-"

table = partial(make_table, words=Path(__file__).with_name("tables.toml"))


@dataclass(frozen=True)
class StudiedModel:
    """A dense checkpoint, and where to compute with it."""

    checkpoint: Checkpoint
    seed: int
    device: str
    progress: Progress

    @property
    def task(self) -> Task:
        """The task of the checkpoint."""
        return TASKS[self.checkpoint.task]

    @property
    def layers(self) -> list[Sublayer]:
        """Its attention sublayers, whose heads are studied."""
        return self.checkpoint.attention

    def batches(self, rows: Rows) -> list[Batch]:
        """Batches of all rows on the CPU; reports how many rows had to be truncated."""
        examples = encode(rows, self.checkpoint, self.task, self.progress)
        return self.task.batches(examples, self.checkpoint.model)

    def score(self, method: ScoringMethod, rows: Rows | None) -> Scores:
        """Score all heads.

        Args:
            method: the scoring method.
            rows: to score on; None for methods that look at the weights alone.
        """
        on = "" if rows is None else f" on {len(rows.sources)} rows"
        self.progress.message(f"scoring {self.checkpoint.name} with {method.name}{on} …")
        examples = [] if rows is None else encode(rows, self.checkpoint, self.task)
        opened = ModelAndRows(self.checkpoint, examples, rows)
        full = Mask.full(self.layers)
        return score(full, method, self.layers, opened=opened, context=self.context)

    @property
    def context(self) -> Context:
        """How it computes, for functions of the pipeline."""
        return Context(self.device, self.seed, self.progress)

    @contextmanager
    def scoring(
        self,
        batches: Sequence[Batch],
        layers: Sequence[Sublayer] | None = None,
        mask: Mask | None = None,
        network: nn.Module | None = None,
    ) -> Iterator[ScoringJob]:
        """A job to look at heads with; the model is on the device within the context.

        Args:
            batches: on the CPU.
            layers: whose heads are looked at; None for all attention.
            mask: heads that it removes are gated to zero; None for none.
            network: another network of the same model; None for the checkpoint's.
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
                progress=partial(self.progress.update, "passes"),
            )
        finally:
            network.to("cpu")
            trim_memory()


@dataclass(frozen=True)
class Result:
    """The result of a study, and how to show it."""

    title: str  # of the Markdown page
    data: dict[str, Any]  # all numbers, for the JSON file
    sentences: list[str]  # the conclusions from the tables
    tables: list[ReportTable]  # on the terminal and on the page
    figure: Figure
    details: Sequence[ReportTable] = ()  # longer tables, on the page alone

    def text(self) -> str:
        """The sentences and the short tables, for a terminal."""
        blocks = ["\n".join(self.sentences), tables_as_text(self.tables)]
        return "\n\n".join(filter(None, blocks))

    def write(self, stem: Path) -> None:
        """Write the plot as PNG and SVG in the current style, the Markdown page, and the JSON file.

        Args:
            stem: path without a suffix.
        """
        for suffix in PLOT_FORMATS:
            save_figure(self.figure, stem.with_suffix(suffix))
        plot = f"![{stem.name}.png]({stem.name}.png)"
        blocks = [f"# {escape(self.title)}", *bullets(self.sentences), plot]
        for shown in (*self.tables, *self.details):
            blocks += render_table(shown)
        write_at_once(stem.with_suffix(".md"), "\n\n".join(blocks) + "\n")
        # Last, because it says that the study is complete.
        write_json(stem.with_suffix(".json"), self.data)


def run_study(request: StudyRequest, output: Path, progress: Progress = SILENT) -> Result:
    """Run a study and write `study-NAME.json`, `.md`, `.png` and `.svg` to `output`.

    Args:
        request: of the study, with its options.
        output: may have other studies.
        progress: receives messages.

    Raises:
        InputError: the directory has something other than studies, or this one complete.
        UsageError: the study is not for models of this task, or needs rows that are not given.
    """
    require_directory(output)
    stem = output / f"{PREFIX}{request.name}"
    for path in sorted(output.iterdir()) if output.exists() else ():
        # The JSON file is written last: without it the other three are of a study that was killed.
        is_done = path == stem.with_suffix(".json")
        if is_done or not path.name.startswith((PREFIX, staging.PREFIX)):
            raise InputError(
                f"{output} holds {path.name} already; choose another --output",
                id="output-not-empty",
            )
    model, rows = _open(request, progress)
    # The name becomes part of the ids in the SVG, which are random without it.
    with plot_style(stem.name):
        result: Result = import_object(request.function)(model, rows, request)
        data = {
            "schema": 1,
            "study": request.name,
            "tool_version": __version__,
            "model": model.checkpoint.name,
            "revision": model.checkpoint.revision,
            "heads": {layer.name: layer.units for layer in model.layers},
            "seed": model.seed,
            "shared_rows": rows.shared,
            **({"calibration": facts_of(rows.calibration)} if rows.calibration else {}),
            **({"test": facts_of(rows.test)} if rows.test else {}),
            **result.data,
        }
        sentences = list(result.sentences)
        if data.get("at_floor", False):
            sentences.append(
                "With all heads the metric is at its floor, what chance gives, so nothing can be "
                "concluded from what changes or does not."
            )
        if rows.shared and rows.test is not None:
            sentences.append(f"{shared_rows(rows.shared, len(rows.test.sources))}.")
        result = replace(result, data=data, sentences=sentences)
        result.write(stem)
    return result


def _open(request: StudyRequest, progress: Progress) -> tuple[StudiedModel, DataRows]:
    """The dense model, the last of several, and the rows that the request names."""
    device = pick_device(request.device, progress)
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
    tokenizers = None if evaluation is None else evaluation.tokenizers
    reading = inputs.reading(request.data, checkpoint)
    rows = inputs.read(request.data, checkpoint, reading, progress, tokenizers)
    if warning := warning_of_shared_rows(rows):
        progress.message(warning)
    return StudiedModel(checkpoint, request.seed, device, progress), rows


def require_same_attention(checkpoint: Checkpoint, dense: Checkpoint) -> None:
    """Raise InputError if a checkpoint has other attention sublayers than the dense one."""
    if checkpoint.attention != dense.attention:
        raise InputError(
            f"{checkpoint.name} has other attention layers than {dense.name}; give checkpoints of "
            "one model",
            id="checkpoints-differ",
        )


def facts_of(rows: Rows) -> dict[str, Any]:
    """The files, the number and the fingerprint of some rows, for the JSON file."""
    return {"files": rows.files, "rows": len(rows.sources), "sha256": rows.sha256}


def tables_as_text(tables: Sequence[ReportTable]) -> str:
    """Tables with their captions, for a terminal."""
    return "\n\n".join(f"{x.caption}\n{render_text(x.columns, x.rows)}" for x in tables)


def by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Layer names by kind of sublayer, in the canonical order."""
    groups: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name in names:
        groups[kind_of(name)].append(name)
    return {kind: layers for kind, layers in groups.items() if layers}
