"""What every study starts from: the model, the rows, a place for partial results; and measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from compressor import __version__
from compressor.errors import InputError
from compressor.evaluation import compare
from compressor.export.metadata import max_source_tokens
from compressor.files import fingerprint
from compressor.importance.ablation import measure
from compressor.model.checkpoint import Checkpoint, checkpoint_files, open_checkpoint, resolve
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import gated, mask_gates
from compressor.pipeline.context import pick_device, score_checkpoint_heads, warn_of_shared_rows
from compressor.pipeline.recipe import MINIMUM_ROWS, Recipe
from compressor.pipeline.validate import check_method, require_calibration
from compressor.pipeline.workspace import STATE, Workspace, open_workspace
from compressor.progress import Progress
from compressor.study import Options
from compressor.study.output import PREFIX, require_ours
from compressor.tasks import Batch, Example, Rows, Task, count_truncated, get_task, read_rows
from compressor.tasks.tables import read_text

RECORD = "run.json"  # the file in which a workspace keeps whose it is


@dataclass(frozen=True)
class Job:
    """All that a study has to work with; `checkpoint` is dense (of several, the last)."""

    options: Options
    checkpoint: Checkpoint
    calibration: Rows | None
    other: Rows | None
    test: Rows | None
    shared_rows: int  # test rows whose texts are calibration rows too
    device: str
    workspace: Workspace
    progress: Progress

    @property
    def recipe(self) -> Recipe:
        return self.options.recipe

    @property
    def task(self) -> Task:
        return get_task(self.checkpoint.entry.task)

    @property
    def metric(self) -> str:
        """`bleu` or `accuracy`."""
        return self.task.main_metric

    def facts(self) -> dict[str, Any]:
        """What was studied, for the JSON file."""
        rows = {"calibration": self.calibration, "other": self.other, "test": self.test}
        sources = {
            name: {"files": found.files, "rows": len(found.sources), "sha256": found.sha256}
            for name, found in rows.items()
            if found is not None
        }
        return {
            "schema": 1,
            "study": self.options.study,
            "tool_version": __version__,
            "model": self.checkpoint.name,
            "revision": self.checkpoint.revision,
            "heads": {layer.name: layer.units for layer in self.checkpoint.layers},
            "seed": self.recipe.seed,
            "shared_rows": self.shared_rows,
            **sources,
        }


def prepare(options: Options, output: Path, progress: Progress) -> Job:
    """Open and check everything before the first long computation."""
    recipe = options.recipe
    require_ours(output)
    device = pick_device(recipe.device, progress)
    checkpoint = open_dense(recipe, recipe.model)
    calibration = _read(recipe, checkpoint, recipe.calibration, recipe.calibration_rows)
    other = _read(recipe, checkpoint, options.other, recipe.calibration_rows)
    test = _read(recipe, checkpoint, recipe.test, recipe.test_rows)
    shared = warn_of_shared_rows(calibration, test, progress)
    models = [checkpoint.directory, *map(resolve, options.checkpoints[:-1])]
    if options.pruned is not None:
        models.append(resolve(options.pruned))
    conllu = None if options.conllu is None else fingerprint([_file(options.conllu)])
    identity = {
        **recipe.model_dump(),
        **{n: v for n, v in vars(options).items() if n != "recipe"},
        "device": device,
        "version": __version__,
        "weights": [fingerprint(checkpoint_files(d)) for d in models],
        "data_sha256": [rows and rows.sha256 for rows in (calibration, other, test)],
        "conllu_sha256": conllu,
    }
    workspace = open_workspace(output / STATE / f"{PREFIX}{options.study}", identity, progress)
    return Job(options, checkpoint, calibration, other, test, shared, device, workspace, progress)


def discard_unused(workspace: Workspace, output: Path) -> None:
    """Forget a study that failed before its first result, so that it can be corrected."""
    record, *others = sorted(workspace.state.iterdir(), key=lambda path: path.name != RECORD)
    if record.name != RECORD or others:
        return
    record.unlink()
    for directory in (workspace.state, *workspace.state.parents):
        if directory == output or any(directory.iterdir()):
            return
        directory.rmdir()


def open_dense(recipe: Recipe, model: str) -> Checkpoint:
    """A dense checkpoint with the recipe's loading options.

    Raises:
        InputError: it cannot be loaded, or has lost heads already.
    """
    checkpoint = open_checkpoint(
        model,
        revision=recipe.revision,
        allow_pickle=recipe.allow_pickle,
        trust_remote_code=recipe.trust_remote_code,
    )
    if checkpoint.heads:
        raise InputError(f"{model} has lost heads already; give the dense checkpoint")
    return checkpoint


def _file(path: str) -> Path:
    read_text(path)  # says what is wrong with it
    return Path(path)


def _read(
    recipe: Recipe, checkpoint: Checkpoint, spec: str | None, limit: int | None
) -> Rows | None:
    if spec is None:
        return None
    task = checkpoint.entry.task
    return read_rows(
        task,
        spec,
        source_column=recipe.source_column,
        target_column=recipe.target_column,
        text_column=recipe.text_column,
        text_pair_column=recipe.text_pair_column,
        label_column=recipe.label_column,
        labels=get_task(task).label_names(checkpoint.model.config),
        minimum=MINIMUM_ROWS,
        limit=limit,
    )


def encode_rows(job: Job, checkpoint: Checkpoint, rows: Rows) -> list[Example]:
    """All rows as tokens; says how many rows had to be cut."""
    examples: list[Example] = job.task.encode(
        rows, checkpoint.tokenizer, max_source_tokens(checkpoint)
    )
    cut = count_truncated(examples)
    if cut:
        job.progress.message(
            f"{cut} of {len(examples)} rows are longer than the model allows and were cut"
        )
    return examples


def make_batches(job: Job, checkpoint: Checkpoint, rows: Rows) -> list[Batch]:
    """Batches of all rows on the CPU; says how many rows had to be cut."""
    examples = encode_rows(job, checkpoint, rows)
    batches: list[Batch] = job.task.batches(examples, checkpoint.model)
    return batches


def require_rows(job: Job) -> None:
    """Refuse a scoring method that is not there, or that has no rows.

    Raises:
        UsageError: either.
    """
    check_method(job.recipe.method)
    require_calibration(job.recipe.method, job.recipe.calibration)


def score(job: Job, checkpoint: Checkpoint, rows: Rows | None, name: str, title: str) -> Scores:
    """Scores of all heads by the recipe's method, a stage of its own."""

    def compute() -> dict[str, Any]:
        examples = []
        if rows is not None:
            examples = job.task.encode(rows, checkpoint.tokenizer, max_source_tokens(checkpoint))
        full = Mask.full(checkpoint.layers)
        references = [] if rows is None else rows.targets
        scores = score_checkpoint_heads(
            job.recipe, checkpoint, examples, full, job.device, job.progress, references
        )
        return scores.to_json()

    return Scores.from_json(job.workspace.stage(name, title, compute))


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
        mask: heads to silence; None for none.
        model: another one than the checkpoint's.
    """
    model = checkpoint.model if model is None else model
    found = [""] * rows
    gates = {} if mask is None else mask_gates(mask)
    done = 0
    model.to(job.device)
    try:
        with gated(model, checkpoint.layers, gates):
            for batch in batches:
                answers = job.task.predict(
                    model, batch.to(job.device), checkpoint.tokenizer, job.recipe.num_beams
                )
                for row, text in zip(batch.rows, answers, strict=True):
                    found[row] = text
                done += len(batch.rows)
                job.progress.update("rows", done, rows)
    finally:
        model.to("cpu")
    return found


def judge(job: Job, dense: Sequence[str], answers: Sequence[str]) -> dict[str, Any]:
    """The metric's change from `dense` on the test rows, see `compressor.evaluation.compare`.

    Returns:
        `dense`, `value`, `difference` and its 95 % `interval`, in points; `p`, two-sided; and
        `metrics`, all metrics of the task.
    """
    assert job.test is not None
    recipe = job.recipe
    found = compare(
        job.test.task, dense, answers, job.test.targets,
        resamples=recipe.resamples, seed=recipe.seed,
    )  # fmt: skip
    main = next(one for one in found if one.metric == job.metric)
    return {
        "dense": main.dense,
        "value": main.pruned,
        "difference": main.difference,
        "interval": list(main.interval),
        "p": main.p_value,
        "metrics": {one.metric: one.pruned for one in found},
    }


def dense_answers(job: Job, batches: Sequence[Batch]) -> tuple[list[str], dict[str, Any]]:
    """The whole model's answers to the test rows, and what its metric says of them."""
    rows = job.test
    assert rows is not None
    answers: list[str] = job.workspace.stage(
        "answers-dense",
        f"evaluating all heads on {len(rows.sources)} rows",
        lambda: answer(job, job.checkpoint, batches, len(rows.sources)),
    )
    value, signature = measure(job.checkpoint.model, answers, rows.targets)
    search = "" if job.metric != "bleu" else f"|beams:{job.recipe.num_beams or 1}"
    return answers, {"metric": job.metric, "dense": value, "signature": f"{signature}{search}"}
