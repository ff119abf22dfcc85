"""The first steps of a run: the model, the rows, and everything that the stages share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compressor import __version__
from compressor.budgets.counts import check_possible
from compressor.errors import EnvironmentProblem, InputError
from compressor.export.metadata import max_source_tokens
from compressor.export.precision_names import precisions_to_export
from compressor.export.target_text import count_lines, tokens_of_text
from compressor.export.vocabulary import output_tokens
from compressor.importance import check_units
from compressor.learned_masks import check_size
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.location import checkpoint_files
from compressor.model.sublayers import Mask
from compressor.options.bounds import MINIMUM_ROWS
from compressor.pipeline.context import Context, DataRows, Probe
from compressor.pipeline.distill_text import open_text, text_sha256
from compressor.pipeline.stages import stage
from compressor.progress import Progress
from compressor.recovery import RECOVERIES
from compressor.report import sentences
from compressor.request.methods import RecoverySection
from compressor.request.plan import floors_of, multiples_of, plan_budgets, units_to_prune
from compressor.request.recipe import Recipe
from compressor.request.sections import CalibrationData, Data, MaxDrop, ModelSection
from compressor.results import Source
from compressor.runtime.session import choose_device
from compressor.storage.hashes import fingerprint, sha256_of
from compressor.storage.workspace import open_workspace
from compressor.tasks import (
    Example,
    Rows,
    Task,
    count_shared,
    count_truncated,
    read_rows,
    split_rows,
)

if TYPE_CHECKING:
    from torch import nn

CHECKED_BATCHES = 4
CHECKED_ROWS = 8  # per batch
# What tokenizers disagree about most easily: case, accents, digits, spaces, symbols.
SAMPLE_TEXTS = (
    "The kettle is still warm.",
    "At 7:45, 3.5 litres cost 12 euros - or do they?",
    "  Two  spaces, a\ttab and a naïve café.  ",
    "ÄÖÜ äöü ß “quoted” … 漢字 🙂",
    "",
)


def load(section: ModelSection, *, dense: bool = True) -> Checkpoint:
    """Open the checkpoint that a request names.

    Args:
        dense: refuse one that has lost units already.
    """
    return open_checkpoint(section.path, dense=dense, **section.access())


def read(section: CalibrationData, checkpoint: Checkpoint, task: Task) -> DataRows:
    """Calibration and test rows, as far as they are given.

    Raises:
        InputError: malformed data, with file and line.
    """
    labels = task.label_names(checkpoint.model.config)

    def rows(spec: str | None, limit: int | None) -> Rows | None:
        if spec is None:
            return None
        return read_rows(
            task.name, spec, labels=labels, minimum=MINIMUM_ROWS, limit=limit, **section.columns()
        )

    calibration = rows(section.calibration, section.calibration_rows)
    if not isinstance(section, Data):
        return DataRows(calibration, None)
    test = rows(section.test, section.test_rows)
    shared = count_shared(test, calibration) if calibration and test else 0
    return DataRows(calibration, test, shared)


def hold_out(data: DataRows, seed: int) -> DataRows:
    """The rows with the test rows in two: those to search on, and those held out as test rows.

    Raises:
        InputError: too few test rows for two parts.
    """
    assert data.test is not None
    search, test = split_rows(data.test, seed)
    counts = len(search.sources), len(test.sources)
    if min(counts) < MINIMUM_ROWS:
        raise InputError(
            f"{', '.join(data.test.files)}: too few test rows, {sum(counts)}, of which {counts[0]} "
            f"would be searched on and {counts[1]} held out; --max-drop needs {MINIMUM_ROWS} of "
            "each, and rows with the same text stay together",
            id="too-few-rows",
        )
    shared = count_shared(test, data.calibration) if data.calibration else 0
    return DataRows(data.calibration, test, shared, search)


def warn_of_shared_rows(data: DataRows, progress: Progress) -> None:
    """Tell how many test rows are calibration rows too, if there are any."""
    if data.shared and data.test is not None:
        text = sentences.shared_rows(data.shared, len(data.test.sources))
        progress.message(f"warning: {text}; give other --test rows")


def encode(rows: Rows, checkpoint: Checkpoint, task: Task) -> list[Example]:
    """Token ids of rows, as long as the model allows."""
    return task.encode(rows, checkpoint.tokenizer, max_source_tokens(checkpoint))


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
            raise EnvironmentProblem(
                f"{problem}; install a CUDA build of torch, or --device cpu",
                id="torch-without-cuda",
            )
        progress.message(f"{problem}: everything runs on the CPU")
        device = "cpu"
    return device


def require_rows_to_train(
    recovery: Sequence[RecoverySection], rows: int, *, learns: bool = False
) -> None:
    """Raise `InputError` if something is trained, and there are too few calibration rows for it.

    Args:
        learns: a mask is learned.
    """
    if learns or any(RECOVERIES[step.name].trains for step in recovery):
        from compressor.training import require_enough

        require_enough(rows)


def prepare(
    recipe: Recipe,
    checkpoint: Checkpoint,
    task: Task,
    data: DataRows,
    output: Path,
    progress: Progress,
) -> Context:
    """Check all that can be checked before the first long computation, and open the workspace."""
    device = pick_device(recipe.device, progress)
    full = Mask.full(checkpoint.layers)
    floors = floors_of(recipe.budget, full)
    multiples = multiples_of(recipe.budget, full)
    plans = plan_budgets(recipe, full, output)
    units = units_to_prune(recipe.budget, [plan.budget for plan in plans])
    for plan in plans:
        check_possible(plan.budget, floors, full, units)
        if recipe.learns:
            check_size(recipe.method.name, plan.budget.keep, full)
    if not recipe.learns:
        check_units(recipe.method.name, units)
    if isinstance(recipe.budget, MaxDrop):
        data = hold_out(data, recipe.seed)
    warn_of_shared_rows(data, progress)
    examples = encode(data.fitted, checkpoint, task)
    require_rows_to_train(recipe.recovery, len(examples), learns=recipe.learns)
    text = open_text(recipe.recovery, data.fitted, task, checkpoint)
    cut = count_truncated(examples)
    if cut:
        progress.message(
            f"{cut} of {len(examples)} rows are longer than the model allows and were cut"
        )
    identity = _identity(recipe, checkpoint, data, device)
    return Context(
        recipe=recipe,
        checkpoint=checkpoint,
        task=task,
        units=units,
        floors=floors,
        multiples=multiples,
        plans=plans,
        data=data,
        examples=examples,
        probe=make_probe(data.fitted, examples, checkpoint.model, task),
        device=device,
        precisions=precisions_to_export(recipe.export.precision, device),
        workspace=open_workspace(output, identity, progress),
        progress=progress,
        text=text,
    )


def _identity(
    recipe: Recipe, checkpoint: Checkpoint, data: DataRows, device: str
) -> dict[str, object]:
    """What must be the same for a stopped run to go on: all but the gate's rules and checks."""
    text = recipe.export.target_text
    return {
        **recipe.model_dump(mode="json", exclude={"gate": True, "model": {"verify"}}),
        "device": device,
        "version": __version__,
        "weights": fingerprint(checkpoint_files(checkpoint.directory)),
        "calibration_sha256": data.calibration and data.calibration.sha256,
        "test_sha256": data.test and data.test.sha256,
        "search_sha256": data.search and data.search.sha256,
        "target_text_sha256": text and sha256_of(Path(text)),
        "distill_text_sha256": text_sha256(recipe.recovery),
    }


@dataclass(frozen=True)
class TargetTokens:
    """The tokens that decoders of pruned models score.

    Args:
        source: the text that says which; None where none is given.
        tokens: None where all are scored.
    """

    source: Source | None
    tokens: list[int] | None


def target_tokens(context: Context) -> TargetTokens:
    """The tokens that decoders of pruned models shall score."""
    path = context.recipe.export.target_text
    if path is None:
        return TargetTokens(None, output_tokens(context.checkpoint))
    return _tokens_of_text(context, Path(path))


@stage("target-text")
def _tokens_of_text(context: Context, path: Path) -> TargetTokens:
    lines = count_lines(path)
    tokenizer, progress = context.checkpoint.tokenizer, context.progress
    seen = tokens_of_text(path, tokenizer, lambda done: progress.update("target text", done, lines))
    source = Source(files=[path.as_posix()], rows=lines, sha256=sha256_of(path))
    return TargetTokens(source, output_tokens(context.checkpoint, seen))


def make_probe(rows: Rows, examples: Sequence[Example], model: nn.Module, task: Task) -> Probe:
    """A few batches over the whole range of lengths, short and long rows side by side."""
    count = min(len(examples), CHECKED_BATCHES * CHECKED_ROWS)
    by_length = sorted(range(len(examples)), key=lambda i: (len(examples[i].source), i))
    chosen = [by_length[i * len(examples) // count] for i in range(count)]
    ragged = [chosen[i::CHECKED_BATCHES] for i in range(min(CHECKED_BATCHES, count))]
    batches = [
        batch
        for members in ragged
        for batch in task.batches(
            [examples[i] for i in members], model, batch_tokens=None, batch_size=CHECKED_ROWS
        )
    ]
    return Probe(batches, rows.sources)


def synthetic_probe(checkpoint: Checkpoint, task: Task) -> Probe:
    """A probe made of random tokens, for steps that are given no rows."""
    rng = random.Random(0)
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    special = set(tokenizer.all_special_ids)
    end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    ids = [i for i in range(len(tokenizer)) if i not in special]

    def sentence(length: int) -> tuple[int, ...]:
        return (*rng.choices(ids, k=length), end)

    examples = [
        Example(row, sentence(2 + row % 9), sentence(2 + row % 7) if task.generates else (0,))
        for row in range(CHECKED_ROWS * 2)
    ]
    batches = task.batches(examples, model, batch_tokens=None, batch_size=CHECKED_ROWS)
    return Probe(batches, SAMPLE_TEXTS)


def read_calibration(
    section: CalibrationData, checkpoint: Checkpoint, task: Task
) -> tuple[list[Example], list[str]]:
    """The calibration rows, encoded, and the right answer to each of them; none if none are given.

    Raises:
        InputError: malformed data.
    """
    rows = read(section, checkpoint, task).calibration
    if rows is None:
        return [], []
    return encode(rows, checkpoint, task), rows.targets
