"""What all studies share: the model, the rows, resumable stages, scoring and measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from compressor.errors import InputError, UsageError
from compressor.evaluation import compare_rows, main_metric, metrics_of, with_tokenizers
from compressor.importance import ScoringJob
from compressor.model.checkpoint import Checkpoint
from compressor.model.location import checkpoint_files, resolve
from compressor.model.memory import trim_memory
from compressor.model.sublayers import Mask, Scores, Sublayer
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
from compressor.request.sections import CalibrationData, ModelSection
from compressor.request.validate import check_options, require_rows
from compressor.storage.files import require_directory
from compressor.storage.hashes import fingerprint
from compressor.storage.version import __version__
from compressor.storage.workspace import STATE, Workspace, open_workspace
from compressor.study.effects import Effect
from compressor.study.options import MeasuringStudy, StudyRequest
from compressor.study.output import PREFIX
from compressor.study.shared import shared
from compressor.tasks import TASKS, Batch, Rows, Task, count_shared
from compressor.tasks.tables import read_lines

Request = TypeVar("Request", bound=StudyRequest, covariant=True)


@dataclass(frozen=True)
class Job(Generic[Request]):
    """The inputs of a study, opened.

    Args:
        checkpoint: dense; of several the last.
        rows: `calibration`, `other` and `test`, as far as they are given.
        shared_rows: how many test rows are calibration rows too.
    """

    request: Request
    checkpoint: Checkpoint
    rows: Mapping[str, Rows]
    shared_rows: int
    device: str
    workspace: Workspace
    progress: Progress

    @property
    def task(self) -> Task:
        return TASKS[self.checkpoint.task]

    @property
    def metric(self) -> str:
        """The main metric of the test rows, for example `bleu`."""
        return metrics_of(self.rows["test"])[0]

    def facts(self) -> dict[str, Any]:
        """What was studied, for the JSON file."""
        sources = {
            name: {"files": given.files, "rows": len(given.sources), "sha256": given.sha256}
            for name, given in self.rows.items()
        }
        return {
            "schema": 1,
            "study": self.request.name,
            "tool_version": __version__,
            "model": self.checkpoint.name,
            "revision": self.checkpoint.revision,
            "heads": {layer.name: layer.units for layer in self.checkpoint.attention},
            "seed": self.request.seed,
            "shared_rows": self.shared_rows,
            **sources,
        }


def prepare(request: StudyRequest, output: Path, progress: Progress) -> Job[StudyRequest]:
    """Open and check everything before the first long computation."""
    _require_output(output)
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
    check_options([request.data], task, checkpoint.name)
    if isinstance(request.data, CalibrationData):
        require_rows(request.scoring, [], request.data)
    rows = _read(request, checkpoint, task, progress)
    calibration, test = rows.get("calibration"), rows.get("test")
    shared_rows = count_shared(test, calibration) if calibration and test else 0
    warn_of_shared_rows(DataRows(calibration, test, shared_rows), progress)
    # Only studies that read these files have the options.
    pruned, conllu = (getattr(request, name, None) for name in ("pruned", "conllu"))
    others = [*request.checkpoints[:-1], *([] if pruned is None else [pruned])]
    directories = [checkpoint.directory, *map(resolve, others)]
    if conllu is not None:
        for _ in read_lines(conllu):
            pass  # raises InputError if it cannot be read
    # All that results depend on: a directory that was begun with something else is refused.
    identity = {
        "study": request.name,
        **request.model_dump(mode="json"),
        "device": device,
        "version": __version__,
        "weights": [fingerprint(checkpoint_files(directory)) for directory in directories],
        "data_sha256": {name: given.sha256 for name, given in rows.items()},
        "tokenizers": {name: dict(given.tokenizers) for name, given in rows.items()},
        "conllu_sha256": None if conllu is None else fingerprint([Path(conllu)]),
    }
    root = output / STATE / f"{PREFIX}{request.name}"
    workspace = open_workspace(root, identity, progress, output)
    return Job(request, checkpoint, rows, shared_rows, device, workspace, progress)


def _require_output(output: Path) -> None:
    """Check that studies can be written to a directory.

    Raises:
        InputError: it holds something other than studies, or cannot be written.
    """
    require_directory(output)
    # Studies of several kinds may share a directory, and with it scores and answers.
    if not output.exists() or any((output / STATE).glob(f"{PREFIX}*")):
        return
    if any(path.name != STATE for path in output.iterdir()):
        raise InputError(
            f"{output} is not empty and holds no study; choose another --output",
            id="output-not-empty",
        )


def open_model(request: StudyRequest, path: str) -> Checkpoint:
    """A dense checkpoint, opened as the request says.

    Raises:
        InputError: it cannot be loaded, or has lost heads already.
    """
    # A request that names several checkpoints has other fields, and a list as its `path`.
    names = set(ModelSection.model_fields) & set(type(request.model).model_fields) - {"path"}
    return load(ModelSection(path=path, **{x: getattr(request.model, x) for x in names}))


def _read(
    request: StudyRequest, checkpoint: Checkpoint, task: Task, progress: Progress
) -> dict[str, Rows]:
    """The rows of a request's files, as far as it names them.

    Those to measure on settle how metrics split texts.
    """
    columns = request.data
    specs = {name: getattr(columns, name, None) for name in ("calibration", "other", "test")}
    rows = {
        name: task.read_rows(
            spec,
            labels=task.label_names(checkpoint.model.config),
            minimum=MINIMUM_ROWS,
            limit=getattr(columns, "test_rows" if name == "test" else "calibration_rows"),
            progress=lambda done: progress.update("rows read", done, None),
            **columns.columns(),
        )
        for name, spec in specs.items()
        if spec is not None
    }
    if not isinstance(request, MeasuringStudy):
        return {name: with_tokenizers(given) for name, given in rows.items()}
    check_options([request.evaluation], task, checkpoint.name)
    test = with_tokenizers(rows["test"], request.evaluation.tokenizers, progress.message)
    return {name: replace(given, tokenizers=test.tokenizers) for name, given in rows.items()}


def make_batches(job: Job[StudyRequest], checkpoint: Checkpoint, rows: Rows) -> list[Batch]:
    """Batches of all rows on the CPU; reports how many rows had to be cut."""
    examples = encode(rows, checkpoint, job.task, job.progress)
    batches: list[Batch] = job.task.batches(examples, checkpoint.model)
    return batches


def score(
    job: Job[StudyRequest],
    checkpoint: Checkpoint,
    rows: Rows | None,
    name: str = "scores",
    title: str = "",
) -> Scores:
    """Scores of all heads by the study's method, a stage of its own, shared between studies."""
    method = job.request.scoring
    assert method is not None

    def compute() -> dict[str, Any]:
        # Some methods look at the weights alone.
        fitted = Fitted([], None)
        if rows is not None:
            fitted = Fitted(encode(rows, checkpoint, job.task), rows)
        layers, seed = checkpoint.attention, job.request.seed
        scorer = Scorer(method, checkpoint, layers, fitted, seed, job.device, job.progress)
        return scorer.score(Mask.full(layers)).to_json()

    options = {"method": method.model_dump(mode="json"), "seed": job.request.seed}
    key = _cache_key(checkpoint, job, rows) | options
    scores = job.workspace.stage(
        name,
        title or f"scoring with {method.name}",
        lambda: _shared(job, "scores", key, compute, dict[str, Any]),
        dict[str, Any],
    )
    return Scores.from_json(scores)


def _cache_key(checkpoint: Checkpoint, job: Job[StudyRequest], rows: Rows | None) -> dict[str, Any]:
    """What scores and answers depend on, whatever the study."""
    # Nothing of the study itself: others then find what they would compute alike.
    return {
        "version": __version__,
        "weights": fingerprint(checkpoint_files(checkpoint.directory)),
        "task": checkpoint.task,
        "rows": rows and rows.sha256,
        "labels": rows and rows.labels,
        "tokenizers": rows and dict(rows.tokenizers),
        "device": job.device,
    }


def _shared(
    job: Job[StudyRequest],
    kind: str,
    key: Mapping[str, Any],
    compute: Callable[[], Any],
    check: Any,
) -> Any:
    """See `compressor.study.shared`; studies have workspaces side by side."""
    return shared(job.workspace.root.parent, kind, key, compute, check, job.progress)


@contextmanager
def _on_device(job: Job[StudyRequest], model: nn.Module) -> Iterator[None]:
    # On the device only while it is needed: studies have several models.
    model.to(job.device)
    try:
        yield
    finally:
        model.to("cpu")
        trim_memory()


@contextmanager
def scoring(
    job: Job[StudyRequest],
    model: nn.Module,
    layers: Sequence[Sublayer],
    batches: Sequence[Batch],
    steps: str = "passes",
) -> Iterator[ScoringJob]:
    """A model, on the study's device within the block, with batches to look at its heads on.

    Args:
        steps: what progress counts.
    """
    with _on_device(job, model):
        yield ScoringJob(
            model=model,
            layers=layers,
            mask=Mask.full(layers),
            batches=batches,
            task=job.task,
            tokenizer=job.checkpoint.tokenizer,
            device=job.device,
            progress=lambda done, total: job.progress.update(steps, done, total),
        )


def answer(
    job: Job[MeasuringStudy],
    checkpoint: Checkpoint,
    batches: Sequence[Batch],
    mask: Mask | None = None,
    model: nn.Module | None = None,
) -> list[str]:
    """What a model answers to all rows, in their order.

    Args:
        mask: without the heads to silence; None keeps all.
        model: to use instead of the checkpoint's.
    """
    model = checkpoint.model if model is None else model
    # A head with a gate of 0 equals a removed one, and the model stays whole.
    gates = {} if mask is None else mask_gates(mask)
    done, total = 0, sum(len(batch.rows) for batch in batches)
    by_row = [""] * total  # batches are sorted by length
    beams = job.request.evaluation.num_beams
    with _on_device(job, model), gated(model, checkpoint.attention, gates):
        for batch in batches:
            answers = job.task.predict(model, batch.to(job.device), checkpoint.tokenizer, beams)
            for row, text in zip(batch.rows, answers, strict=True):
                by_row[row] = text
            done += len(batch.rows)
            job.progress.update("rows", done, total)
    return by_row


def judge(job: Job[MeasuringStudy], dense: Sequence[str], answers: Sequence[str]) -> Effect:
    """The metric's change from the dense model's answers to the test rows."""
    evaluation, test = job.request.evaluation, job.rows["test"]
    comparisons = compare_rows(
        test, dense, answers, resamples=evaluation.resamples, seed=job.request.seed
    )
    main = next(one for one in comparisons if one.metric == job.metric)
    return Effect(
        dense=main.dense,
        value=main.pruned,
        difference=main.difference,
        interval=main.interval,
        p=main.p_value,
        metrics={one.metric: one.pruned for one in comparisons},
        at_floor=main.at_floor,
    )


def dense_answers(
    job: Job[MeasuringStudy], batches: Sequence[Batch]
) -> tuple[list[str], dict[str, Any]]:
    """The dense model's answers to the test rows, and their value in the main metric.

    The answers are shared between studies.
    """
    rows = job.rows["test"]
    key = _cache_key(job.checkpoint, job, rows) | {"beams": job.request.evaluation.num_beams}

    def compute() -> list[str]:
        return answer(job, job.checkpoint, batches)

    answers: list[str] = job.workspace.stage(
        "answers-dense",
        f"evaluating all heads on {len(rows.sources)} rows",
        lambda: _shared(job, "answers", key, compute, list[str]),
        list[str],
    )
    value, signature = main_metric(rows, answers)
    searches = "--num-beams" in job.task.options
    beams = f"|beams:{job.request.evaluation.num_beams or 1}" if searches else ""
    return answers, {"metric": job.metric, "dense": value, "signature": f"{signature}{beams}"}
