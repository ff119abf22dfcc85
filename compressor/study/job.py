"""What all studies share: the model, the rows, resumable stages, scoring and measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from compressor.evaluation import compare, main_metric
from compressor.importance import ScoringMethod
from compressor.model.checkpoint import Checkpoint
from compressor.model.location import checkpoint_files, resolve
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import gated, mask_gates
from compressor.options.bounds import MINIMUM_ROWS
from compressor.pipeline.inputs import (
    DataRows,
    Fitted,
    encode,
    load,
    pick_device,
    warn_of_shared_rows,
)
from compressor.pipeline.score import Scorer
from compressor.progress import Progress
from compressor.request.sections import CalibrationData, Columns, ModelSection
from compressor.request.validate import check_options, require_rows
from compressor.storage.hashes import fingerprint
from compressor.storage.version import __version__
from compressor.storage.workspace import STATE, Workspace, open_workspace
from compressor.study.options import StudyRequest, Testing
from compressor.study.output import PREFIX, require_output
from compressor.tasks import TASKS, Batch, Rows, Task, count_shared, count_truncated
from compressor.tasks.tables import read_text

RECORD = "run.json"  # the file in which a workspace keeps the options of its run


@dataclass(frozen=True)
class Job:
    """The inputs of a study, opened; `checkpoint` is dense, of several the last."""

    request: StudyRequest
    checkpoint: Checkpoint
    calibration: Rows | None
    other: Rows | None
    test: Rows | None
    shared_rows: int  # test rows whose texts are calibration rows too
    device: str
    workspace: Workspace
    progress: Progress

    @property
    def seed(self) -> int:
        return self.request.seed

    @property
    def testing(self) -> Testing:
        """How quality is measured."""
        return getattr(self.request, "evaluation", Testing())

    @property
    def method(self) -> ScoringMethod:
        """The scoring method of a study that scores."""
        assert self.request.scoring is not None
        return self.request.scoring

    @property
    def task(self) -> Task:
        return TASKS[self.checkpoint.task]

    @property
    def metric(self) -> str:
        """The main metric of the task, for example `bleu`."""
        return self.task.main_metric

    def facts(self) -> dict[str, Any]:
        """What was studied, for the JSON file."""
        rows = {"calibration": self.calibration, "other": self.other, "test": self.test}
        sources = {
            name: {"files": given.files, "rows": len(given.sources), "sha256": given.sha256}
            for name, given in rows.items()
            if given is not None
        }
        return {
            "schema": 1,
            "study": self.request.name,
            "tool_version": __version__,
            "model": self.checkpoint.name,
            "revision": self.checkpoint.revision,
            "heads": {layer.name: layer.units for layer in self.checkpoint.attention},
            "seed": self.seed,
            "shared_rows": self.shared_rows,
            **sources,
        }


def prepare(request: StudyRequest, output: Path, progress: Progress) -> Job:
    """Open and check everything before the first long computation."""
    require_output(output)
    device = pick_device(request.device, progress)
    checkpoint = open_model(request, request.checkpoints[-1])
    task = TASKS[checkpoint.task]
    columns = request.rows
    check_options([columns], task, checkpoint.name)
    if isinstance(columns, CalibrationData):
        require_rows(request.scoring, [], columns)
    calibration, other, test = (
        _read(columns, checkpoint, task, name) for name in ("calibration", "other", "test")
    )
    shared = count_shared(test, calibration) if calibration and test else 0
    warn_of_shared_rows(DataRows(calibration, test, shared), progress)
    pruned, conllu = (getattr(request, name, None) for name in ("pruned", "conllu"))
    others = [*request.checkpoints[:-1], *([] if pruned is None else [pruned])]
    directories = [checkpoint.directory, *map(resolve, others)]
    identity = {
        "study": request.name,
        **request.model_dump(mode="json"),
        "device": device,
        "version": __version__,
        "weights": [fingerprint(checkpoint_files(directory)) for directory in directories],
        "data_sha256": [rows and rows.sha256 for rows in (calibration, other, test)],
        "conllu_sha256": None if conllu is None else fingerprint([_file(conllu)]),
    }
    root = output / STATE / f"{PREFIX}{request.name}"
    workspace = open_workspace(root, identity, progress, output)
    return Job(request, checkpoint, calibration, other, test, shared, device, workspace, progress)


def discard_unused(workspace: Workspace, output: Path) -> None:
    """Remove the state of a study that failed before its first result.

    Its options can then be corrected without another output directory.
    """
    record, *others = sorted(workspace.state.iterdir(), key=lambda path: path.name != RECORD)
    if record.name != RECORD or others:
        return
    record.unlink()
    for directory in (workspace.state, *workspace.state.parents):
        if directory == output or any(directory.iterdir()):
            return
        directory.rmdir()


def open_model(request: StudyRequest, path: str) -> Checkpoint:
    """A dense checkpoint, opened as the request says.

    Raises:
        InputError: it cannot be loaded, or has lost heads already.
    """
    return load(ModelSection(path=path, **request.access.access()))


def _file(path: str) -> Path:
    read_text(path)  # raises InputError if it cannot be read
    return Path(path)


def _read(columns: Columns, checkpoint: Checkpoint, task: Task, name: str) -> Rows | None:
    """The rows of one of a request's files; None where it has none of that name."""
    spec = getattr(columns, name, None)
    if spec is None:
        return None
    return task.read_rows(
        spec,
        labels=task.label_names(checkpoint.model.config),
        minimum=MINIMUM_ROWS,
        limit=getattr(columns, "test_rows" if name == "test" else "calibration_rows"),
        **columns.columns(),
    )


def make_batches(job: Job, checkpoint: Checkpoint, rows: Rows) -> list[Batch]:
    """Batches of all rows on the CPU; reports how many rows had to be cut."""
    examples = encode(rows, checkpoint, job.task)
    cut = count_truncated(examples)
    if cut:
        job.progress.message(
            f"{cut} of {len(examples)} rows are longer than the model allows and were cut"
        )
    batches: list[Batch] = job.task.batches(examples, checkpoint.model)
    return batches


def score(job: Job, checkpoint: Checkpoint, rows: Rows | None, name: str, title: str) -> Scores:
    """Scores of all heads by the study's method, a stage of its own."""

    def compute() -> dict[str, Any]:
        fitted = Fitted([], [])
        if rows is not None:
            fitted = Fitted(encode(rows, checkpoint, job.task), rows.targets)
        scorer = Scorer(
            job.method, checkpoint, checkpoint.attention, fitted, job.seed, job.device, job.progress
        )
        scores = scorer.score(Mask.full(checkpoint.attention))
        return scores.to_json()

    return Scores.from_json(job.workspace.stage(name, title, compute, dict[str, Any]))


def answer(
    job: Job,
    checkpoint: Checkpoint,
    batches: Sequence[Batch],
    rows: int,
    mask: Mask | None = None,
    model: nn.Module | None = None,
) -> list[str]:
    """What a model answers to all rows, in their order.

    Args:
        rows: how many there are.
        mask: without the heads to silence; None keeps all.
        model: to use instead of the checkpoint's.
    """
    model = checkpoint.model if model is None else model
    by_row = [""] * rows  # batches are sorted by length
    gates = {} if mask is None else mask_gates(mask)
    done = 0
    model.to(job.device)
    try:
        with gated(model, checkpoint.attention, gates):
            for batch in batches:
                answers = job.task.predict(
                    model, batch.to(job.device), checkpoint.tokenizer, job.testing.num_beams
                )
                for row, text in zip(batch.rows, answers, strict=True):
                    by_row[row] = text
                done += len(batch.rows)
                job.progress.update("rows", done, rows)
    finally:
        model.to("cpu")
    return by_row


def judge(job: Job, dense: Sequence[str], answers: Sequence[str]) -> dict[str, Any]:
    """The metric's change from `dense` on the test rows, see `compressor.evaluation.compare`.

    Returns:
        `dense`, `value`, `difference` and its 95 % `interval`, in points; `p`, two-sided; and
        `metrics`, all metrics of the task.
    """
    assert job.test is not None
    comparisons = compare(
        job.test.task, dense, answers, job.test.targets,
        resamples=job.testing.resamples, seed=job.seed,
    )  # fmt: skip
    main = next(one for one in comparisons if one.metric == job.metric)
    return {
        "dense": main.dense,
        "value": main.pruned,
        "difference": main.difference,
        "interval": list(main.interval),
        "p": main.p_value,
        "metrics": {one.metric: one.pruned for one in comparisons},
    }


def dense_answers(job: Job, batches: Sequence[Batch]) -> tuple[list[str], dict[str, Any]]:
    """The dense model's answers to the test rows, and their value in the main metric."""
    rows = job.test
    assert rows is not None
    answers: list[str] = job.workspace.stage(
        "answers-dense",
        f"evaluating all heads on {len(rows.sources)} rows",
        lambda: answer(job, job.checkpoint, batches, len(rows.sources)),
        list[str],
    )
    labels = job.task.label_names(job.checkpoint.model.config)
    value, signature = main_metric(job.task.name, answers, rows.targets, labels)
    searches = "--num-beams" in job.task.options
    search = f"|beams:{job.testing.num_beams or 1}" if searches else ""
    return answers, {"metric": job.metric, "dense": value, "signature": f"{signature}{search}"}
