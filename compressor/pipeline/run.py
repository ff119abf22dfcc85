"""`compress run`, from its options to a finished report, and `score`, `prune` and `export`.

The single commands call the functions of a run in shorter lists.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from compressor import parallel
from compressor.budgets import Choice, Limits
from compressor.errors import InputError, UsageError, did_you_mean
from compressor.export.ctranslate2 import STORED
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import AUTO, BASE, precisions_to_export
from compressor.export.precisions import add_precision, require_within
from compressor.export.source_text import cut_vocabulary
from compressor.export.task_graphs import Network
from compressor.export.vocabulary import tokens_of_text
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.surgery import prune
from compressor.pipeline import inputs
from compressor.pipeline.build import (
    build,
    engine_builds,
    export,
    export_dense,
    export_precision,
    save,
    verify,
)
from compressor.pipeline.finish import (
    benchmark,
    choose_defaults,
    describe_run,
    evaluate,
    publish,
    require_own_outputs,
    start,
)
from compressor.pipeline.recover import open_text, recover, require_trainable, text_to_learn
from compressor.pipeline.score import find_layers, other_weights, score, select_units, weights_of
from compressor.pipeline.search import RunEvaluator, choose, learn
from compressor.pipeline.setup import RunSetup, prepare
from compressor.progress import SILENT, Progress
from compressor.report import rules
from compressor.report.publish import without_paths
from compressor.report.schema import Report
from compressor.request.recipe import ExportRequest, PruneRequest, Recipe, ScoreRequest
from compressor.request.validate import (
    check_options,
    gate_rules,
    require_rows,
    resolve,
    texts_to_keep,
)
from compressor.results import Check, Variant
from compressor.runtime.engines.ctranslate2 import CTranslate2
from compressor.runtime.session import choose_device
from compressor.steps import Steps, open_steps
from compressor.storage.files import require_directory
from compressor.storage.outputs import require_new, whole_output
from compressor.storage.staging import require_free
from compressor.tasks import TASKS
from compressor.tasks.texts import TextFile

# Layouts of other programs: the precisions that each may store one of, and the package it needs.
OTHERS = {"optimum": ((BASE,), None), "ctranslate2": (tuple(STORED), CTranslate2)}


def run(recipe: Recipe, output: Path, command: str = "", progress: Progress = SILENT) -> Report:
    """Compress one checkpoint to one or more budgets; write artifacts and reports to `output`.

    With one budget `output` is the artifact; with several, each gets a directory below it.

    Raises:
        CompressError: see `compressor.errors`; nothing is half written, and calling again with
            the same recipe goes on from the last finished step.
    """
    require_directory(output)
    setup = prepare(resolve(recipe), inputs.load(recipe.model), output, progress)
    recipe, method, search = setup.recipe, setup.recipe.method, None
    with open_steps(output, setup.identity(), progress, setup.written_bytes) as steps:
        parallel.on_main(lambda: require_own_outputs(setup, steps))
        started = steps.do(start, title="reading inputs", command=command)
        setup = replace(
            setup, tokens=scored_tokens(setup, steps), limits=without_layers(setup, steps)
        )
        dense = steps.do(
            export_dense, title="exporting the dense model to compare with", source=setup.dense,
            engines=setup.engines, steps=steps,
        )  # fmt: skip
        text = text_to_learn(setup.text, recipe.recovery, dense, setup.device, steps)
        setup = replace(setup, text=text)
        models = [dense, *other_forms(dense, setup.dense, setup, steps)]
        for artifact in setup.artifacts:
            name, evaluator = artifact.name, RunEvaluator(steps, setup, artifact, dense)
            title = artifact.budget.action(method.name if method.learns else "")
            if method.learns:
                choice = steps.do(learn, name, evaluator, title=title, shared=True)
            else:
                scores = evaluator.scores()
                choice = steps.do(choose, name, scores, evaluator, title=title, shared=True)
            if choice.text:
                progress.message(f"  {choice.text}")
            names = "+".join(step.name for step in recipe.recovery)
            recovery = f", recovering ({names})" if names else ""
            title = f"removing units ({choice.mask} kept){recovery}, exporting, checking"
            making = steps.making(artifact.directory)
            pruned = steps.do(
                build, artifact, choice, setup, title=title, shared=True, making=making, steps=steps
            )
            models += [pruned, *other_forms(pruned, setup.source, setup, steps)]
            search = choice.search
        dense, *builds = evaluate(models, setup, steps)
        throughput = benchmark(models, setup, steps)
        builds = choose_defaults(builds, throughput)
        report = describe_run(setup, started, dense, builds, throughput, search)
        outcomes = rules.check(report, gate_rules(recipe.gate), recipe.gate.inconclusive)
        report = report.model_copy(update={"gate": outcomes})
        parallel.on_main(lambda: publish(report, setup, steps))
    return without_paths(report, output)


def scored_tokens(setup: RunSetup, steps: Steps) -> list[int] | None:
    """The tokens that decoders of pruned models score: all, or those of a text."""
    file = setup.target_text
    if file is None:
        return setup.tokens
    title = f"cutting {file.path.name} into tokens"
    return steps.do(target_tokens, file, title=title, source=setup.source)


def target_tokens(file: TextFile, *, source: inputs.ModelAndRows) -> list[int]:
    """The tokens of a text in the target language, and those that spell anything."""
    report = partial(source.progress.update, "target text", total=None)
    seen = tokens_of_text(file, source.checkpoint.tokenizer, report)
    tokens: list[int] = source.task.graphs.output_tokens(source.checkpoint, seen)
    return tokens


def without_layers(setup: RunSetup, steps: Steps) -> Limits:
    """What may be removed, without the layers that go first."""
    limits, title = setup.limits, "finding the layers to drop"
    if not limits.to_drop:
        return limits
    divergences = steps.do(
        find_layers, limits.to_drop, (), title=title, shared=True, source=setup.source
    )
    for name, divergence in divergences.items():
        steps.progress.message(f"  without {name}: divergence {divergence:.3f}, without recovery")
    return replace(limits, dropped=frozenset(divergences))


def other_forms(
    model: Variant, source: inputs.ModelAndRows, setup: RunSetup, steps: Steps
) -> list[Variant]:
    """Other precisions, and other engines, of a model in float32."""
    return [
        steps.do(
            export_precision, model, name, title=f"exporting {model.name} in {name}, checking",
            source=source, steps=steps,
        )
        for name in setup.precisions[1:]
    ] + engine_builds(model, setup.engines, setup.device)  # fmt: skip


def score_checkpoint(request: ScoreRequest, progress: Progress = SILENT) -> Scores:
    """Score every unit of a dense checkpoint with a method and calibration rows."""
    require_rows(request.method, [], request.data)
    device = inputs.pick_device(request.device, progress)
    checkpoint = inputs.load(request.model)
    request.method.check_task(TASKS[checkpoint.task])
    source = inputs.with_calibration(
        request.data, checkpoint, device=device, seed=request.seed, progress=progress
    )
    sublayers = [x for x in checkpoint.layers if request.prune in ("both", units_of(x.kind))]
    full = Mask.full(checkpoint.layers)
    scores = score(full, source=source, method=request.method, sublayers=sublayers)
    return replace(scores, weights=weights_of(request.model))


def prune_checkpoint(
    request: PruneRequest, scores: Scores, output: Path, progress: Progress = SILENT
) -> tuple[Mask, Check, str]:
    """Remove the least important units, recover what is left, and save.

    Returns the mask, the check of the pruned model, and what the recovery did.
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
    source = inputs.with_calibration(
        data, checkpoint, device=device, seed=request.seed, progress=progress
    )
    require_trainable(methods, len(source.examples))
    text = open_text(methods, source.rows, checkpoint, data, progress)
    budget, mask = select_units(request, scores, checkpoint)
    model, needed = checkpoint.model, inputs.export_bytes(checkpoint.model, [BASE])
    with (
        TemporaryDirectory(prefix="compress-") as folder,
        open_steps(Path(folder), {}, progress, lambda: needed) as steps,
        whole_output(output, needed, "saving the pruned checkpoint") as making,
    ):
        dense = None
        if text is not None and source.task.learns_from_answers:
            title = "exporting the dense model to answer the text"
            dense = steps.do(
                export_dense, title=title, source=source, engines=[ONNXRUNTIME], steps=steps
            )
        text = text_to_learn(text, methods, dense, device, steps)
        pruned = prune(model, checkpoint.layers, mask)
        check = verify(model, pruned, source, mask)
        recovered = recover(methods, source, pruned, mask, text=text)
        save(source, recovered, Choice(mask, scores), making, budget.text)
    return mask, check, recovered.text


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
    if output.resolve() != checkpoint.directory.resolve():
        require_new(output)
    elif kept is not None:
        raise UsageError(
            f"--source-text {kept.path} leaves tokens out of the graphs, which the checkpoint in "
            f"{output} has; choose another --output",
            id="options-exclude-each-other",
        )
    rows = inputs.calibration_rows(request.data, checkpoint, progress)
    if kept is not None:
        checkpoint = cut_vocabulary(checkpoint, kept)
    seen = None if scored is None else tokens_of_text(scored, checkpoint.tokenizer)
    source = inputs.with_rows(checkpoint, rows, progress=progress)
    with whole_output(
        output, inputs.export_bytes(checkpoint.model, precisions), "exporting"
    ) as making:
        tokens = task.graphs.output_tokens(checkpoint, seen)
        checks = export(checkpoint, tokens, source, making, engines)
        for precision in precisions[1:]:
            # Most processors compute fp16 graphs in float32: a GPU tells more, where there is one.
            device = choose_device(request.device) if precision == "fp16" else "cpu"
            added = add_precision(
                checkpoint.model, source.inputs, making, precision, device, source.examples
            )
            require_within(added, precision)
            checks += added
    return checks


def export_layout(request: ExportRequest, output: Path) -> list[Check]:
    """Write a layout of another program, to `output` itself."""
    layout, export, data = request.layout, request.export, request.data
    known = ("compress", *OTHERS)
    if layout not in OTHERS:
        raise UsageError(
            f"--layout {layout!r} is unknown; use {', '.join(known)}" + did_you_mean(layout, known),
            id="name-unknown",
        )
    precisions, engine = OTHERS[layout]
    if len(export.precision) != 1 or export.precision[0] not in precisions:
        raise UsageError(
            f"--layout {layout} stores one precision, {' or '.join(precisions)} alone; give that "
            "one, or use --layout compress",
            id="options-exclude-each-other",
        )
    engines = None if export.engines == [ONNXRUNTIME] else ",".join(export.engines)
    excluded, unused = "options-exclude-each-other", "option-without-use"
    for flag, value, id in (
        ("--engines", engines, excluded),
        ("--source-text", export.source_text, excluded),
        ("--target-text", export.target_text, excluded),
        ("--calibration", data.calibration, unused),
    ):
        if value is not None:
            raise UsageError(
                f"{flag} {value} does nothing with --layout {layout}; leave it out, or use "
                "--layout compress",
                id=id,
            )
    # Also where the output is the checkpoint's own directory: both have a config.json.
    require_new(output)
    if engine is not None:
        engine.library()
    checkpoint = inputs.load(request.model, dense=False)
    task = TASKS[checkpoint.task]
    task.graphs.require_layout(layout, checkpoint)
    batches = inputs.random_check_batches(checkpoint, task)
    needed = 2 * inputs.export_bytes(checkpoint.model, [BASE])
    with whole_output(output, needed, "exporting") as making:
        network = Network(checkpoint, checkpoint.model, checkpoint.mask)
        given = [batch.inputs() for batch in batches]
        return task.graphs.export_layout(network, making, export.precision[0], given)
