"""What a run needs before it starts: options checked, rows loaded, budgets planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor import __version__
from compressor.budgets.counts import check_possible, parse_floors
from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.export.metadata import max_source_tokens
from compressor.export.precision_names import precisions_to_export
from compressor.export.target_text import count_lines, tokens_of_text
from compressor.export.vocabulary import output_tokens
from compressor.files import fingerprint, require_directory, sha256_of
from compressor.importance import METHODS, Scoring, score_heads
from compressor.importance.confidence import boundary_ids
from compressor.learned_masks import LEARNED
from compressor.model.checkpoint import Checkpoint, checkpoint_files, open_checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.pipeline.plan import Plan, plan_budgets
from compressor.pipeline.recipe import MINIMUM_ROWS, Recipe
from compressor.pipeline.validate import (
    COLUMNS,
    check_method,
    refuse_unused,
    require_calibration,
)
from compressor.pipeline.workspace import Workspace, open_workspace
from compressor.progress import Progress
from compressor.recovery import RECOVERIES, check_recovery, parse_recovery
from compressor.report import rules as gate
from compressor.report import sentences
from compressor.results import Source
from compressor.runtime.session import choose_device
from compressor.tasks import (
    Example,
    Rows,
    Task,
    count_shared,
    count_truncated,
    get_task,
    read_rows,
)

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Context:
    """All that the stages share."""

    recipe: Recipe
    checkpoint: Checkpoint
    full: Mask
    floors: Mapping[str, int]
    plans: Sequence[Plan]
    calibration: Rows | None
    test: Rows | None
    shared_rows: int  # test rows whose texts are calibration rows too
    examples: list[Example]  # of the calibration rows, or of the test rows without those
    task: Task
    device: str
    precisions: Sequence[str]  # float32 first
    target_text: Source | None
    tokens: list[int] | None  # that decoders of pruned models shall score; None: all
    workspace: Workspace
    progress: Progress

    @property
    def rows(self) -> Rows:
        """The rows that `examples` were made from."""
        rows = self.calibration or self.test
        assert rows is not None
        return rows


def require_measurements(recipe: Recipe, rules: Sequence[gate.Rule]) -> None:
    """Refuse, before anything is computed, rules about what this run will not measure."""
    if recipe.speedup is not None:
        _require_timing(recipe, recipe.speedup)
        if recipe.target_text is not None:
            raise UsageError(
                f"--target-text does not go with --speedup {recipe.speedup:g}, which is about "
                "heads alone; leave it out, and give it to `compress export` afterwards"
            )
    if recipe.drop_budgets and recipe.test is None:
        raise UsageError(f"--max-drop {recipe.drop_budgets[0]:g} needs --test FILE to search on")
    for rule in rules:
        if isinstance(rule, gate.MaxDrop) and recipe.test is None:
            raise UsageError(f"--max-drop {rule.text} needs --test FILE to measure quality on")
        if isinstance(rule, gate.MinSpeedup):
            if not recipe.bench:
                raise UsageError(f"--min-speedup {rule.text} needs throughput; drop --no-bench")
            if rule.batch_size not in (None, *recipe.batch_size):
                raise UsageError(
                    f"--min-speedup {rule.text}: batch size {rule.batch_size} is not measured; "
                    "add it to --batch-size"
                )


def _require_metrics(rules: Sequence[gate.Rule], task: str) -> None:
    """Refuse rules about metrics of another task, before anything is computed."""
    there = get_task(task).metrics
    for rule in rules:
        if isinstance(rule, gate.MaxDrop) and rule.metric not in there:
            raise UsageError(
                f"--max-drop {rule.text} is of another task; for {task}, give a drop of "
                f"{' or '.join(there)}"
            )


def _require_timing(recipe: Recipe, speedup: float) -> None:
    if not recipe.bench:
        raise UsageError(f"--speedup {speedup:g} needs throughput; drop --no-bench")
    if recipe.at_batch not in recipe.batch_size:
        raise UsageError(
            f"--speedup {speedup:g}: batch size {recipe.at_batch} is not measured; add it to "
            "--batch-size, or choose another --at-batch"
        )


def pick_device(wanted: str, progress: Progress) -> str:
    """The device to compute on with torch and onnxruntime alike.

    Raises:
        EnvironmentProblem: a named device that one of the two cannot use.
    """
    device = choose_device(wanted)
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        problem = f"onnxruntime can use the GPU, but torch {torch.__version__} cannot"
        if wanted == "cuda":
            raise EnvironmentProblem(f"{problem}; install a CUDA build of torch, or --device cpu")
        progress.message(f"{problem}: everything runs on the CPU")
        device = "cpu"
    return device


def prepare(
    recipe: Recipe, output: Path, progress: Progress, rules: Sequence[gate.Rule] = ()
) -> Context:
    """Check everything that can be checked before the first long computation.

    Args:
        rules: of the gate that the run's report will be held to.
    """
    require_directory(output)
    device = pick_device(recipe.device, progress)
    precisions = precisions_to_export(recipe.precision, device)
    checkpoint = open_checkpoint(
        recipe.model,
        revision=recipe.revision,
        allow_pickle=recipe.allow_pickle,
        trust_remote_code=recipe.trust_remote_code,
    )
    if checkpoint.heads:
        raise InputError(
            f"{recipe.model} has lost heads already; give the checkpoint it was made from "
            f"({checkpoint.heads.get('model')})"
        )
    if recipe.task not in (None, checkpoint.entry.task):
        raise UsageError(
            f"--task {recipe.task} does not fit {recipe.model}, a {checkpoint.entry.task} model"
        )
    _require_metrics(rules, checkpoint.entry.task)
    if recipe.target_text is not None:
        require_target(checkpoint, recipe.target_text)
    full = Mask.full(checkpoint.layers)
    floors = parse_floors(recipe.floor, full)
    plans = plan_budgets(recipe, full, output)
    for plan in plans:
        check_possible(plan.budget, floors, full)
    calibration, test = read_data(recipe, checkpoint)
    shared = warn_of_shared_rows(calibration, test, progress)
    refuse_unused(recipe, checkpoint.entry.task)
    task = get_task(checkpoint.entry.task)
    rows = calibration or test
    assert rows is not None
    examples = task.encode(rows, checkpoint.tokenizer, max_source_tokens(checkpoint))
    require_rows_to_train(recipe, len(examples))
    cut = count_truncated(examples)
    if cut:
        progress.message(
            f"{cut} of {len(examples)} rows are longer than the model allows and were cut"
        )
    identity = {
        **recipe.model_dump(exclude={"max_drop", "min_speedup"}),
        "max_drop": recipe.drop_budgets,  # the rest are rules, which may change
        "device": device,
        "version": __version__,
        "weights": fingerprint(checkpoint_files(checkpoint.directory)),
        "calibration_sha256": calibration and calibration.sha256,
        "test_sha256": test and test.sha256,
        "target_text_sha256": recipe.target_text and sha256_of(Path(recipe.target_text)),
    }
    workspace = open_workspace(output, identity, progress)
    return Context(
        recipe, checkpoint, full, floors, plans, calibration, test, shared, examples, task,
        device, precisions, *_output_tokens(recipe, checkpoint, workspace, progress), workspace,
        progress,
    )  # fmt: skip


def require_rows_to_train(recipe: Recipe, rows: int) -> None:
    """Raise `InputError` if a recipe trains something and has too few calibration rows for it."""
    methods = parse_recovery(recipe.recover)
    if recipe.method in LEARNED or any(RECOVERIES[name].trains for name in methods):
        from compressor.training import require_enough

        require_enough(rows)


def _output_tokens(
    recipe: Recipe, checkpoint: Checkpoint, workspace: Workspace, progress: Progress
) -> tuple[Source | None, list[int] | None]:
    """The text that says what decoders shall score, if one is given, and these tokens."""
    if recipe.target_text is None:
        return None, output_tokens(checkpoint)
    path = Path(recipe.target_text)

    def compute() -> dict[str, Any]:
        lines = count_lines(path)
        seen = tokens_of_text(
            path, checkpoint.tokenizer, lambda done: progress.update("target text", done, lines)
        )
        source = Source(files=[path.as_posix()], rows=lines, sha256=sha256_of(path))
        return {"source": source.model_dump(), "tokens": output_tokens(checkpoint, seen)}

    found = workspace.stage("target-text", f"cutting {path.name} into tokens", compute)
    return Source.model_validate(found["source"]), found["tokens"]


def require_target(checkpoint: Checkpoint, path: str) -> None:
    """Refuse `--target-text` where it cannot do anything, before anything is written.

    Raises:
        UsageError: the model does not translate.
        InputError: the file cannot be read, or holds no text.
    """
    if checkpoint.entry.task != "translation":
        raise UsageError(
            f"--target-text {path} is for translators, and {checkpoint.name} is a "
            f"{checkpoint.entry.task} model; leave it out"
        )
    count_lines(Path(path))


def read_data(recipe: Recipe, checkpoint: Checkpoint) -> tuple[Rows | None, Rows | None]:
    """Calibration and test rows, as far as they are given.

    Raises:
        UsageError: the method needs calibration rows, or there are no rows at all.
        InputError: malformed data, with file and line.
    """
    check_method(recipe.method, masks=True)
    require_calibration(recipe.method, recipe.calibration)
    check_recovery(recipe.recover, recipe.calibration is not None)
    if recipe.calibration is None and recipe.test is None:
        raise UsageError("give --calibration FILE or --test FILE: builds are checked on its rows")
    entry = checkpoint.entry
    columns = {name: getattr(recipe, name) for name in COLUMNS}
    labels = get_task(entry.task).label_names(checkpoint.model.config)

    def read(spec: str | None, limit: int | None) -> Rows | None:
        if spec is None:
            return None
        return read_rows(
            entry.task, spec, labels=labels, minimum=MINIMUM_ROWS, limit=limit, **columns
        )

    return (
        read(recipe.calibration, recipe.calibration_rows),
        read(recipe.test, recipe.test_rows),
    )


def warn_of_shared_rows(calibration: Rows | None, test: Rows | None, progress: Progress) -> int:
    """How many test rows are calibration rows too; says so if there are any."""
    if calibration is None or test is None:
        return 0
    shared = count_shared(test, calibration)
    if shared:
        progress.message(
            f"warning: {sentences.shared_rows(shared, len(test.sources))}; give other --test rows"
        )
    return shared


def score_checkpoint_heads(
    recipe: Recipe,
    checkpoint: Checkpoint,
    examples: Sequence[Example],
    mask: Mask,
    device: str,
    progress: Progress,
    references: Sequence[str] = (),
    model: nn.Module | None = None,
) -> Scores:
    """Run the recipe's scoring method over encoded calibration rows on a device.

    Args:
        model: one of the checkpoint's shape, to be scored in its place.
        references: the right answer to every row that `examples` were made from.
    """
    task, model = get_task(checkpoint.entry.task), model or checkpoint.model
    method = METHODS[recipe.method]
    scoring = Scoring(
        model=model.to(device),
        layers=checkpoint.layers,
        mask=mask,
        batches=task.batches(examples, model) if method.needs_rows else [],
        task=task,
        tokenizer=checkpoint.tokenizer,
        references=references,
        seed=recipe.seed,
        device=device,
        special_ids=boundary_ids(checkpoint.tokenizer),
        progress=lambda done, total: progress.update("scoring", done, total),
    )
    try:
        options = {name: getattr(recipe, name) for name in method.options}
        return score_heads(recipe.method, scoring, **options)
    finally:
        model.to("cpu")
