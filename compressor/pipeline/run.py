"""`compress run`, from its options to a finished report, and `score`, `prune` and `export`.

The single commands call the functions of a run in shorter lists.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from compressor import parallel
from compressor.budgets import Limits
from compressor.errors import InputError, UsageError
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import AUTO, BASE, precisions_to_export
from compressor.export.precisions import add_precision, require_within
from compressor.export.source_text import cut_vocabulary
from compressor.export.vocabulary import tokens_of_text
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.options.requests import ExportRequest, PruneRequest, Recipe, ScoreRequest
from compressor.options.validate import check_options, require_rows, texts_to_keep
from compressor.pipeline import inputs
from compressor.pipeline.build import prune_units, recover_units, save_model
from compressor.pipeline.choose import select_units
from compressor.pipeline.context import Context
from compressor.pipeline.evaluate import benchmark, choose_defaults, evaluate
from compressor.pipeline.export import (
    export_dense,
    export_graphs,
    export_saved,
    other_forms,
)
from compressor.pipeline.layouts import export_layout
from compressor.pipeline.publish import describe_run, gated, publish, run_metadata
from compressor.pipeline.recover import open_text, plan_recovery, require_trainable
from compressor.pipeline.score import (
    find_layers,
    other_weights,
    score,
    units_by_scores,
    weights_of,
)
from compressor.pipeline.setup import open_run, prepare
from compressor.pipeline.values import (
    DENSE,
    ChosenUnits,
    Measured,
    ModelAndRows,
    Opened,
    RecoveredModel,
)
from compressor.progress import SILENT, Progress
from compressor.report.publish import without_paths
from compressor.report.schema import Report
from compressor.results import Check
from compressor.runtime.session import choose_device
from compressor.steps import open_steps
from compressor.storage.files import require_directory
from compressor.storage.outputs import require_new, whole_output
from compressor.storage.staging import require_free
from compressor.tasks import TASKS
from compressor.tasks.texts import TextFile


def run(recipe: Recipe, output: Path, command: str = "", progress: Progress = SILENT) -> Report:
    """Compress one checkpoint to one or more budgets; write artifacts and reports to `output`.

    With one budget `output` is the artifact; with several, each gets a directory below it. The
    report shows `command`, which is what was typed, and files without their directories.

    Raises:
        CompressError: see `compressor.errors`; nothing is half written, and calling again with
            the same recipe goes on from the last finished step.
    """
    require_directory(output)
    plan, opened = prepare(recipe, output, progress)
    recipe, engines = plan.recipe, plan.engines
    source = opened.source
    with open_run(plan, opened, progress) as context:
        do, state = context.steps.do, context.steps.state
        started = do(run_metadata, title="reading inputs", command=command)
        tokens = scored_tokens(opened, context)
        limits = without_layers(opened, context)
        title = "exporting the dense model to compare with"
        dense = do(export_dense, engines, title=title, into=state / DENSE, opened=opened.dense)
        recovery = plan_recovery(recipe.recovery, opened.text, dense, context)
        models, search = [dense, *other_forms(dense, opened.dense, plan, context)], None
        for artifact in plan.artifacts:
            name, folder = artifact.name, artifact.directory
            chosen = select_units(artifact, limits, recovery, tokens, dense, plan, opened, context)
            title = f"removing units ({chosen.mask} kept)"
            pruned = do(prune_units, chosen, title=title, opened=source)
            recovered = RecoveredModel(pruned)
            if recovery.methods:
                recovered = do(
                    recover_units,
                    pruned,
                    recovery,
                    title=f"recovering ({recovery.names})",
                    shared=True,
                    into=state / name,
                    opened=source,
                    context=context,
                )
            title = f"saving {name}"
            saved = do(
                save_model, recovered, title=title, into=folder, opened=source, context=context
            )
            title, inputs_of_export = f"exporting {name}, checking", (saved, tokens, engines)
            exported = do(export_saved, *inputs_of_export, title=title, into=folder, opened=opened)
            models += [exported, *other_forms(exported, source, plan, context)]
            search = chosen.search
        whole, *builds = evaluate(models, opened.data.test, recipe.evaluation, context)
        throughput = benchmark(models, recipe.throughput, opened, context)
        measured = Measured(whole, choose_defaults(builds, throughput), throughput, search)
        report = gated(describe_run(plan, opened, started, measured), recipe.gate)
        parallel.on_main(lambda: publish(report, plan, opened, context))
    return without_paths(report, output)


def scored_tokens(opened: Opened, context: Context) -> list[int] | None:
    """The tokens that decoders of pruned models score: all (None), or those of a text."""
    file, source = opened.target_text, opened.source
    if file is None:
        return source.task.graphs.output_tokens(source.checkpoint)
    title = f"cutting {file.path.name} into tokens"
    return context.steps.do(target_tokens, file, title=title, opened=source, context=context)


def target_tokens(file: TextFile, *, opened: ModelAndRows, context: Context) -> list[int] | None:
    """The tokens of a text in the target language, and those that spell anything; None for all."""
    report = partial(context.progress.update, "target text", total=None)
    seen = tokens_of_text(file, opened.checkpoint.tokenizer, report)
    tokens: list[int] | None = opened.task.graphs.output_tokens(opened.checkpoint, seen)
    return tokens


def without_layers(opened: Opened, context: Context) -> Limits:
    """What may be removed, without the layers that go first."""
    limits, title = opened.limits, "finding the layers to drop"
    if not limits.to_drop:
        return limits
    inputs_of_search = limits.to_drop, ()
    divergences = context.steps.do(
        find_layers,
        *inputs_of_search,
        title=title,
        shared=True,
        opened=opened.source,
        context=context,
    )
    for name, divergence in divergences.items():
        context.progress.message(f"  without {name}: divergence {divergence:.3f}, without recovery")
    return limits.without_layers(list(divergences))


def score_checkpoint(request: ScoreRequest, progress: Progress = SILENT) -> Scores:
    """Score every unit of a dense checkpoint with a method and calibration rows."""
    require_rows(request.method, [], request.data)
    device = inputs.pick_device(request.device, progress)
    checkpoint = inputs.load(request.model)
    request.method.check_task(TASKS[checkpoint.task])
    opened = inputs.with_calibration(request.data, checkpoint, progress)
    sublayers = [x for x in checkpoint.layers if request.prune in ("both", units_of(x.kind))]
    full, context = Mask.full(checkpoint.layers), Context(device, request.seed, progress)
    scores = score(full, request.method, sublayers, opened=opened, context=context)
    return replace(scores, weights=weights_of(request.model))


def prune_checkpoint(
    request: PruneRequest, scores: Scores, output: Path, progress: Progress = SILENT
) -> tuple[Mask, Check, str]:
    """Remove the least important units, recover what is left, and save.

    Returns:
        The mask, the check of the pruned model, and what the recovery did.
    """
    methods, data = request.recovery, request.data
    require_new(output)
    require_rows(None, methods, data)
    if data.calibration is not None and not methods:
        raise UsageError(
            f"--calibration {data.calibration} is for the recovery; add --recover reconstruct, or "
            "leave it out",
            id="option-without-use",
        )
    if scores.weights and scores.weights != weights_of(request.model):
        raise other_weights(request.model)
    device = inputs.pick_device(request.device, progress)
    checkpoint = inputs.load(request.model)
    check_options(methods, TASKS[checkpoint.task], checkpoint.name)
    opened = inputs.with_calibration(data, checkpoint, progress)
    require_trainable(methods, len(opened.examples))
    text = open_text(methods, opened.rows, checkpoint, data, progress)
    budget, mask = units_by_scores(request, scores, checkpoint)
    needed = inputs.export_bytes(checkpoint.model, [BASE])
    with (
        TemporaryDirectory(prefix="compress-") as folder,
        open_steps(Path(folder), {}, progress, lambda: needed) as steps,
        whole_output(output, needed, "saving the pruned checkpoint") as making,
    ):
        context, dense = Context(device, request.seed, progress, steps), None
        if text is not None and opened.task.learns_from_answers:
            title, into = "exporting the dense model to answer the text", steps.state / DENSE
            dense = steps.do(export_dense, [ONNXRUNTIME], title=title, into=into, opened=opened)
        recovery = plan_recovery(methods, text, dense, context)
        pruned = prune_units(ChosenUnits("pruned", budget.text, mask, scores), opened=opened)
        recovered = recover_units(
            pruned, recovery, directory=Path(folder), opened=opened, context=context
        )
        save_model(recovered, directory=making, opened=opened, context=context)
    return mask, pruned.check, recovered.text


def export_checkpoint(
    request: ExportRequest, output: Path, progress: Progress = SILENT
) -> list[Check]:
    """Export a checkpoint, dense or pruned; checked on its calibration rows, or random batches.

    Ranges of int8 activations are taken from calibration rows; without any each token has a scale
    of its own. `output` may be the checkpoint's own directory, as long as it has no `onnx`
    directory. The runtime's default stays float32: no test rows say what other precisions lose.

    Raises:
        UsageError: an unknown layout, or a precision that it does not have.
        InputError: `output` holds something already, or the layout cannot hold the checkpoint.
        VerificationError: a graph differs from PyTorch by more than its precision's tolerance.
    """
    if request.layout != "compress":
        return export_layout(request, output)
    names, engines = request.export.precision, request.export.engines
    # Nothing is timed here, so every precision that is named can be made on every machine.
    device = choose_device(request.device) if names == [AUTO] else "cpu"
    precisions = precisions_to_export(names, device)
    require_rows(None, [], request.data)
    require_directory(output)
    require_free(output)
    if (output / "onnx").exists():
        raise InputError(
            f"{output / 'onnx'} is there already; choose another --output", id="output-not-empty"
        )
    checkpoint = inputs.load(request.model, dense=False)
    task = TASKS[checkpoint.task]
    inputs.require_engines(engines, task)
    kept, scored = texts_to_keep(request.export, request.data, checkpoint, progress)
    rows = inputs.calibration_rows(request.data, checkpoint, progress)
    if output.resolve() != checkpoint.directory.resolve():
        require_new(output)
    elif kept is not None:
        raise UsageError(
            f"--source-text {kept.path} leaves tokens out of the graphs, which the checkpoint in "
            f"{output} has; choose another --output",
            id="options-exclude-each-other",
        )
    if kept is not None:
        checkpoint = cut_vocabulary(checkpoint, kept)
    seen = None if scored is None else tokens_of_text(scored, checkpoint.tokenizer)
    opened = inputs.with_rows(checkpoint, rows, progress=progress)
    with whole_output(
        output, inputs.export_bytes(checkpoint.model, precisions), "exporting"
    ) as making:
        tokens = task.graphs.output_tokens(checkpoint, seen)
        checks = export_graphs(checkpoint, tokens, engines, making, opened)
        for precision in precisions[1:]:
            # Most processors compute fp16 graphs in float32: a GPU tells more, where there is one.
            device = choose_device(request.device) if precision == "fp16" else "cpu"
            added = add_precision(
                checkpoint.model, opened.inputs, making, precision, device, opened.examples
            )
            require_within(added, precision)
            checks += added
    return checks
