"""Single steps of a run, for `compress score`, `prune` and `export` and for Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.budgets import Choice, Counts
from compressor.budgets.units import select
from compressor.errors import InputError, UsageError, did_you_mean
from compressor.export import export_model
from compressor.export.ctranslate2 import STORED
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.optimum import export_optimum
from compressor.export.precision_names import AUTO, BASE, precisions_to_export
from compressor.export.precisions import add_precision, require_within
from compressor.export.source_text import cut_vocabulary
from compressor.export.target_text import tokens_of_text
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.pipeline.build import export_bytes, save_pruned
from compressor.pipeline.engines import require_engines
from compressor.pipeline.inputs import (
    Fitted,
    Probe,
    encode,
    load,
    make_probe,
    open_text_option,
    pick_device,
    read,
    synthetic_probe,
)
from compressor.pipeline.repair import (
    Repair,
    answered_by_pytorch,
    open_text,
    require_earlier,
    require_rows_to_train,
    text_beams,
)
from compressor.pipeline.score import Scorer
from compressor.pipeline.scores_file import require_weights, weights_of
from compressor.progress import SILENT, Progress
from compressor.request.recipe import ExportRequest, PruneRequest, ScoreRequest
from compressor.request.validate import check_options, check_texts, require_rows
from compressor.results import Check
from compressor.runtime.engines.ctranslate2 import CTranslate2
from compressor.runtime.session import choose_device
from compressor.storage.files import require_directory
from compressor.storage.outputs import require_new, whole_output
from compressor.storage.staging import require_free
from compressor.tasks import TASKS, Example, Task
from compressor.tasks.texts import SOURCE, TARGET

if TYPE_CHECKING:
    pass


def score_checkpoint(request: ScoreRequest, progress: Progress = SILENT) -> Scores:
    """Score every unit of a dense checkpoint with a method and calibration rows."""
    require_rows(request.method, [], request.data)
    device = pick_device(request.device, progress)
    checkpoint = load(request.model)
    task = TASKS[checkpoint.task]
    check_options([request.data], task, checkpoint.name)
    request.method.check_task(task)
    rows = read(request.data, checkpoint, task, progress).calibration
    fitted = Fitted([], None)
    if rows is not None:
        fitted = Fitted(encode(rows, checkpoint, task), rows)
    sublayers = [x for x in checkpoint.layers if request.prune in ("both", units_of(x.kind))]
    scorer = Scorer(request.method, checkpoint, sublayers, fitted, request.seed, device, progress)
    return replace(scorer.score(), weights=weights_of(request.model))


def require_scores(scores: Scores, budget: Counts, full: Mask) -> None:
    """Raise `UsageError` if a budget counts units that the scores say nothing about."""
    missing = budget.units(full) - {units_of(name) for name in scores.values}
    if missing:
        raise UsageError(
            f"{budget.text}: the scores are not of {' and '.join(sorted(missing))}; make them with "
            "`compress score --prune both`",
            id="scores-missing",
        )


def prune_checkpoint(
    request: PruneRequest, scores: Scores, output: Path, progress: Progress = SILENT
) -> tuple[Mask, Check, str]:
    """Remove the least important units, repair what is left, and save.

    Returns:
        The mask, the check of the cut (before the repair, on random ragged batches), and what the
        repair did, in words; empty if nothing.
    """
    require_new(output)
    require_rows(None, request.recovery, request.data)
    if request.data.calibration is not None and not request.recovery:
        raise UsageError(
            f"--calibration {request.data.calibration} is for the repair; add --recover "
            "reconstruct, or leave it out",
            id="option-without-use",
        )
    require_weights(scores, request.model)
    device = pick_device(request.device, progress)
    checkpoint = load(request.model)
    task = TASKS[checkpoint.task]
    check_options([request.data, *request.recovery], task, checkpoint.name)
    rows = read(request.data, checkpoint, task, progress).calibration
    examples = [] if rows is None else encode(rows, checkpoint, task)
    require_rows_to_train(request.recovery, len(examples))
    require_earlier(request.recovery)
    text = open_text(request.recovery, rows, task, checkpoint, request.data, progress)
    full = Mask.full(checkpoint.layers)
    if not {name: len(v) for name, v in scores.values.items()}.items() <= full.counts().items():
        raise UsageError(
            f"the scores are of another model than {request.model.path}: its sublayers differ; "
            "make new ones with `compress score`",
            id="scores-of-another-model",
        )
    budgets = request.budget.each()
    if len(budgets) != 1:
        raise UsageError(
            "say once how many units to keep, for example --keep 0.5", id="budget-twice"
        )
    budget = budgets[0]
    require_scores(scores, budget, full)
    limits = budget.limits(full)
    budget.require_possible(limits)
    mask = select(scores, full, budget.amounts(full), limits.floors, limits.multiples)
    beams = text_beams(request.recovery)
    needed = export_bytes(checkpoint.model, [BASE])
    with (
        answered_by_pytorch(text, beams, checkpoint, device, progress) as translated,
        whole_output(output, needed, "saving the pruned checkpoint") as making,
    ):
        repair = Repair(
            request.recovery, checkpoint, examples, request.seed, device, progress, text=translated
        )
        probe = synthetic_probe(checkpoint, task)
        choice = Choice(mask, scores)
        pruned = save_pruned(repair, checkpoint.model, choice, budget.text, probe, making)
    return mask, pruned.checks[0], pruned.recovery


def export_checkpoint(
    request: ExportRequest, output: Path, layout: str = "compress"
) -> list[Check]:
    """Export a checkpoint, dense or pruned; checked on random ragged batches.

    Args:
        layout: `compress` for this tool's own runtime, in `output/onnx`; `optimum` for the ONNX
            Runtime loaders of Hugging Face optimum, in `output` itself, float32 alone;
            `ctranslate2` for `ctranslate2.Translator`, in `output` itself, in one precision.

    Calibration rows are for int8: the ranges of its activations are taken from them, and its
    answers to them are compared. Without rows each token has a scale of its own.

    `output` may be the checkpoint's own directory, as long as it has no `onnx` directory. The
    runtime's default stays float32, since no test rows say what other precisions lose.

    Raises:
        UsageError: an unknown layout, or a precision that it does not have.
        InputError: `output` holds something already, or the layout cannot hold the checkpoint.
        VerificationError: a graph differs from PyTorch by more than its precision's tolerance.
    """
    if layout not in LAYOUTS:
        raise UsageError(
            f"--layout {layout!r} is unknown; use {', '.join(LAYOUTS)}"
            + did_you_mean(layout, LAYOUTS),
            id="name-unknown",
        )
    if (other := LAYOUTS[layout]) is not None:
        return other(request, output)
    precisions = _check_export(request, output)
    checkpoint = load(request.model, dense=False)
    task = TASKS[checkpoint.task]
    check_options([request.data], task, checkpoint.name)
    require_engines(request.export.engines, task)
    given = {SOURCE: request.export.source_text, TARGET: request.export.target_text}
    paths = {option: None if text is None else Path(text) for option, text in given.items()}
    _require_place(output, checkpoint, paths[SOURCE])
    check_texts(paths, request.data.columns(), task, checkpoint.name)
    source, target = (
        open_text_option(path, option, task, request.data) for option, path in paths.items()
    )
    if source is not None:
        checkpoint = cut_vocabulary(checkpoint, source)
    seen = None if target is None else tokens_of_text(target, checkpoint.tokenizer)
    tokens = task.graphs.output_tokens(checkpoint, seen)
    probe = synthetic_probe(checkpoint, task)
    examples, compared = _rows_to_compare(request, checkpoint, task, probe)
    with whole_output(output, export_bytes(checkpoint.model, precisions), "exporting") as making:
        network = Network(checkpoint, checkpoint.model, checkpoint.mask, tokens)
        texts, pairs, engines = compared.texts, compared.pairs, request.export.engines
        checks = export_model(network, probe.batches, texts, making, engines, pairs)
        for precision in precisions[1:]:
            # Most processors compute fp16 graphs in float32: a GPU tells more, where there is one.
            device = choose_device(request.device) if precision == "fp16" else "cpu"
            found = add_precision(
                checkpoint.model, compared.inputs, making, precision, device, examples
            )
            require_within(found, precision)
            checks += found
    return checks


def _require_place(output: Path, checkpoint: Checkpoint, source: Path | None) -> None:
    """Check that graphs may be written there; beside a checkpoint they have all of its tokens."""
    if output.resolve() != checkpoint.directory.resolve():
        require_new(output)
    elif source is not None:
        raise UsageError(
            f"--source-text {source} leaves tokens out of the graphs, which the checkpoint in "
            f"{output} has; choose another --output",
            id="options-exclude-each-other",
        )


def _check_export(request: ExportRequest, output: Path) -> tuple[str, ...]:
    """The precisions to export; raises if the request contradicts itself or would overwrite."""
    # Nothing is timed here, so every precision that is named can be made on every machine.
    names = request.export.precision
    device = choose_device(request.device) if names == [AUTO] else "cpu"
    precisions = precisions_to_export(names, device)
    require_rows(None, [], request.data)
    if request.data.calibration is not None and "int8" not in precisions:
        raise UsageError(
            f"--calibration {request.data.calibration} is for int8; add --precision int8, or leave "
            "it out",
            id="option-without-use",
        )
    require_directory(output)
    require_free(output)
    if (output / "onnx").exists():
        raise InputError(
            f"{output / 'onnx'} is there already; choose another --output", id="output-not-empty"
        )
    return precisions


def _rows_to_compare(
    request: ExportRequest, checkpoint: Checkpoint, task: Task, synthetic: Probe
) -> tuple[list[Example], Probe]:
    """The calibration rows, and a probe of them; none, and the random one, where none are given."""
    rows = read(request.data, checkpoint, task).calibration
    if rows is None:
        return [], synthetic
    examples = encode(rows, checkpoint, task)
    return examples, make_probe(rows, examples, checkpoint.model, task)


def _require_plain(request: ExportRequest, layout: str) -> None:
    """Refuse options that a layout other than this tool's own has no use for."""
    export = request.export
    if export.engines != [ONNXRUNTIME]:
        raise UsageError(
            f"--engines {','.join(export.engines)} is for --layout compress; leave it out, or "
            f"leave out --layout {layout}",
            id="options-exclude-each-other",
        )
    texts = {"--source-text": export.source_text, "--target-text": export.target_text}
    for flag, text in texts.items():
        if text is not None:
            raise UsageError(
                f"{flag} {text} is not possible with --layout {layout}, whose loaders know one "
                "numbering of tokens; leave it out, or use --layout compress",
                id="options-exclude-each-other",
            )
    if request.data.calibration is not None:
        raise UsageError(
            f"--calibration {request.data.calibration} does nothing with --layout {layout}; leave "
            "it out",
            id="option-without-use",
        )


def _export_optimum(request: ExportRequest, output: Path) -> list[Check]:
    if request.export.precision != [BASE]:
        raise UsageError(
            f"--precision {','.join(request.export.precision)} is not possible with --layout "
            f"optimum, which has {BASE} alone; leave --precision out, or use --layout compress",
            id="options-exclude-each-other",
        )
    _require_plain(request, "optimum")
    # Also where the output is the checkpoint's own directory: both have a config.json.
    require_new(output)
    checkpoint = load(request.model, dense=False)
    probe = synthetic_probe(checkpoint, TASKS[checkpoint.task])
    with whole_output(output, export_bytes(checkpoint.model, [BASE]), "exporting") as making:
        return export_optimum(checkpoint, probe.batches, making)


def _export_ctranslate2(request: ExportRequest, output: Path) -> list[Check]:
    if len(request.export.precision) != 1 or request.export.precision[0] not in STORED:
        raise UsageError(
            f"--layout ctranslate2 stores one precision, {', '.join(STORED)}; give that one",
            id="options-exclude-each-other",
        )
    (precision,) = request.export.precision
    _require_plain(request, "ctranslate2")
    require_new(output)
    CTranslate2.library()
    checkpoint = load(request.model, dense=False)
    graphs = TASKS[checkpoint.task].graphs
    probe = synthetic_probe(checkpoint, TASKS[checkpoint.task])
    network = Network(checkpoint, checkpoint.model, checkpoint.mask)
    needed = 2 * export_bytes(checkpoint.model, [BASE])
    with whole_output(output, needed, "exporting") as making:
        return graphs.export_ctranslate2(network, making, precision, probe.inputs)


# Name -> what writes it; None: this tool's own.
LAYOUTS = {"compress": None, "optimum": _export_optimum, "ctranslate2": _export_ctranslate2}
