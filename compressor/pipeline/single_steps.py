"""Single steps of the context, for `compress score`, `prune` and `export` and for Python."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from compressor.budgets.counts import check_possible, parse_floors, select
from compressor.errors import InputError, UsageError
from compressor.export import export_model
from compressor.export.metadata import max_source_tokens
from compressor.export.optimum import export_optimum
from compressor.export.precision_names import AUTO, BASE, precisions_to_export
from compressor.export.precisions import add_precision, require_within
from compressor.export.target_text import tokens_of_text
from compressor.export.vocabulary import output_tokens
from compressor.files import require_directory
from compressor.importance import METHODS
from compressor.model.checkpoint import Checkpoint, open_checkpoint, round_to, save_checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune, verify_surgery
from compressor.pipeline.build import heads_facts, synthetic_probe
from compressor.pipeline.context import (
    pick_device,
    read_data,
    require_rows_to_train,
    require_target,
    score_checkpoint_heads,
)
from compressor.pipeline.plan import plan_budgets
from compressor.pipeline.recipe import Recipe
from compressor.pipeline.select import repair_checkpoint
from compressor.pipeline.validate import (
    check_method,
    refuse_unused_rows,
    refuse_unused_training,
)
from compressor.progress import SILENT, Progress
from compressor.recovery import NONE, check_recovery, parse_recovery
from compressor.results import Check
from compressor.runtime.session import choose_device
from compressor.tasks import Example, get_task

LAYOUTS = ("compress", "optimum")


def _open(recipe: Recipe) -> Checkpoint:
    return open_checkpoint(
        recipe.model,
        revision=recipe.revision,
        allow_pickle=recipe.allow_pickle,
        trust_remote_code=recipe.trust_remote_code,
    )


def _open_dense(recipe: Recipe) -> Checkpoint:
    checkpoint = _open(recipe)
    if checkpoint.heads:
        raise InputError(f"{recipe.model} has lost heads already; give the dense checkpoint")
    return checkpoint


def _require_new(output: Path) -> None:
    require_directory(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} exists and is not empty; choose another --output")


def score_checkpoint(recipe: Recipe, progress: Progress = SILENT) -> Scores:
    """Score every head of a dense checkpoint with the recipe's method and calibration rows."""
    check_method(recipe.method)
    device = pick_device(recipe.device, progress)
    checkpoint = _open_dense(recipe)
    examples: list[Example] = []
    references: list[str] = []
    if recipe.calibration is not None or METHODS[recipe.method].needs_rows:
        examples, references = _calibration(recipe, checkpoint)
    full = Mask.full(checkpoint.layers)
    return score_checkpoint_heads(recipe, checkpoint, examples, full, device, progress, references)


def _calibration(recipe: Recipe, checkpoint: Checkpoint) -> tuple[list[Example], list[str]]:
    """The calibration rows, encoded, and the right answer to each of them."""
    rows, _ = read_data(recipe.model_copy(update={"test": None, "recover": NONE}), checkpoint)
    assert rows is not None
    task = get_task(checkpoint.entry.task)
    examples = task.encode(rows, checkpoint.tokenizer, max_source_tokens(checkpoint))
    return examples, rows.targets


def read_scores(path: Path) -> Scores:
    """Read a file that `compress score` wrote.

    Raises:
        InputError: there is none, or it is something else.
    """
    try:
        return Scores.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(
            f"cannot read scores {path}: {error.strerror}; make them with `compress score`"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a scores file; make one with `compress score`") from error


def prune_checkpoint(
    recipe: Recipe, scores: Scores, output: Path, progress: Progress = SILENT
) -> tuple[Mask, Check, str]:
    """Remove the least important heads, repair what is left, and save.

    Returns:
        The mask, the check of the cut (before the repair, on random ragged batches), and what the
        repair did, in words; empty if nothing.
    """
    _require_new(output)
    check_recovery(recipe.recover, recipe.calibration is not None)
    refuse_unused_training(recipe)
    refuse_unused_rows(recipe)
    if recipe.calibration is not None and not parse_recovery(recipe.recover):
        raise UsageError(
            f"--calibration {recipe.calibration} is for the repair; add --recover reconstruct, or "
            "leave it out"
        )
    device = pick_device(recipe.device, progress)
    checkpoint = _open_dense(recipe)
    examples: list[Example] = []
    if parse_recovery(recipe.recover):
        examples, _ = _calibration(recipe, checkpoint)
        require_rows_to_train(recipe, len(examples))
    full = Mask.full(checkpoint.layers)
    if {name: len(values) for name, values in scores.values.items()} != full.counts():
        raise UsageError(f"the scores are of another model than {recipe.model}: its layers differ")
    (plan,) = plan_budgets(recipe, full, output)
    floors = parse_floors(recipe.floor, full)
    check_possible(plan.budget, floors, full)
    mask = select(scores, full, plan.budget.keep, floors)
    model = prune(checkpoint.model, checkpoint.layers, mask)
    probe = synthetic_probe(checkpoint, get_task(checkpoint.entry.task))
    inputs = [batch.inputs() for batch in probe.batches]
    check = verify_surgery(checkpoint.model, model, checkpoint.layers, mask, inputs)
    recovered = repair_checkpoint(recipe, checkpoint, examples, model, device, progress)
    model, done = recovered.model, recovered.text
    round_to(model, checkpoint.dtype)
    heads = heads_facts(checkpoint, mask, scores, plan.budget, recipe.seed)
    save_checkpoint(
        checkpoint, model, heads | {"selection": "", "recovery": done or "none"}, output
    )
    return mask, check, done


def export_checkpoint(recipe: Recipe, output: Path, layout: str = "compress") -> list[Check]:
    """Export a checkpoint, dense or pruned; checked on random ragged batches.

    Args:
        layout: `compress` for this tool's own runtime, in `output/onnx`; `optimum` for the ONNX
            Runtime loaders of Hugging Face optimum, in `output` itself, float32 alone.

    `output` may be the checkpoint's own directory, as long as it has no `onnx` directory. The
    runtime's default stays float32, since no test rows say what other precisions lose.

    Raises:
        UsageError: an unknown layout, or a precision that it does not have.
        InputError: `output` holds something already, or the layout cannot hold the checkpoint.
        VerificationError: a graph differs from PyTorch by more than its precision's tolerance.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"--layout {layout!r} is unknown; use {' or '.join(LAYOUTS)}")
    if layout == "optimum":
        return _export_optimum(recipe, output)
    # Nothing is timed here, so every precision that is named can be made on every machine.
    device = choose_device(recipe.device) if recipe.precision == [AUTO] else "cpu"
    precisions = precisions_to_export(recipe.precision, device)
    require_directory(output)
    if (output / "onnx").exists():
        raise InputError(f"{output / 'onnx'} is there already; choose another --output")
    checkpoint = _open(recipe)
    if output.resolve() != checkpoint.directory.resolve():
        _require_new(output)
    seen = None
    if recipe.target_text is not None:
        require_target(checkpoint, recipe.target_text)
        seen = tokens_of_text(Path(recipe.target_text), checkpoint.tokenizer)
    tokens = output_tokens(checkpoint, seen)
    probe = synthetic_probe(checkpoint, get_task(checkpoint.entry.task))
    inputs = [batch.inputs() for batch in probe.batches]
    with _made_whole(output) as making:
        checks = export_model(
            checkpoint, checkpoint.model, checkpoint.mask, probe.batches, probe.texts, making,
            tokens,
        )  # fmt: skip
        for precision in precisions[1:]:
            # Most processors compute fp16 graphs in float32: a GPU tells more, where there is one.
            place = choose_device(recipe.device) if precision == "fp16" else "cpu"
            found = add_precision(checkpoint.model, inputs, making, precision, place)
            require_within(found, precision)
            checks += found
    return checks


@contextmanager
def _made_whole(output: Path) -> Iterator[Path]:
    """A directory whose contents go to `output` when the block ends, and nowhere on an error."""
    is_new = not output.exists()
    output.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(prefix=".making-", dir=output) as making:
            yield Path(making)
            for made in Path(making).iterdir():
                made.rename(output / made.name)
    except BaseException:
        if is_new:
            shutil.rmtree(output)
        raise


def _export_optimum(recipe: Recipe, output: Path) -> list[Check]:
    if recipe.precision != [BASE]:
        raise UsageError(
            f"--precision {','.join(recipe.precision)} is not possible with --layout optimum, "
            f"which has {BASE} alone; leave --precision out, or use --layout compress"
        )
    if recipe.target_text is not None:
        raise UsageError(
            f"--target-text {recipe.target_text} is not possible with --layout optimum, whose "
            "loaders know one numbering of tokens; leave it out, or use --layout compress"
        )
    # Also where the output is the checkpoint's own directory: both have a config.json.
    _require_new(output)
    checkpoint = _open(recipe)
    probe = synthetic_probe(checkpoint, get_task(checkpoint.entry.task))
    with _made_whole(output) as making:
        return export_optimum(checkpoint, checkpoint.mask, probe.batches, making)
