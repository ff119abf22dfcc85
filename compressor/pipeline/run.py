"""`compress run`, from its options to a finished report, and `score`, `prune` and `export`.

A run calls each step by its name, by `steps.do`, which keeps the result in `OUT/.compress`; a
stopped run goes on from there. The single commands call the same functions in shorter lists.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from compressor import parallel
from compressor.budgets import Choice, Limits
from compressor.errors import UsageError
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE
from compressor.export.precisions import add_precision, require_within
from compressor.export.source_text import cut_vocabulary
from compressor.export.vocabulary import tokens_of_text
from compressor.model.memory import release
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.surgery import prune
from compressor.pipeline.build import (
    chosen_model,
    describe,
    export,
    export_bytes,
    export_dense,
    export_precision,
    save,
    verify,
)
from compressor.pipeline.engines import DENSE, delivered, engine_builds, require_engines
from compressor.pipeline.evaluate import benchmark, choose_defaults, evaluate
from compressor.pipeline.inputs import (
    ModelAndRows,
    load,
    make_check_batches,
    pick_device,
    with_calibration,
)
from compressor.pipeline.layouts import check_export, check_place, layout_writer
from compressor.pipeline.publish import describe_run, publish, require_own_outputs, start
from compressor.pipeline.recover import (
    answered_by_pytorch,
    open_text,
    recover,
    require_trainable,
    text_beams,
    text_to_learn,
)
from compressor.pipeline.score import find_layers, require_weights, score, select_units, weights_of
from compressor.pipeline.search import RunEvaluator, choose, learn
from compressor.pipeline.setup import ArtifactPlan, RunSetup, TargetTokens, prepare, target_tokens
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
from compressor.results import Check, Ranking, Variant
from compressor.runtime.session import choose_device
from compressor.steps import Steps, open_steps
from compressor.storage.files import require_directory
from compressor.storage.outputs import require_new, whole_output
from compressor.tasks import TASKS


def run(
    recipe: Recipe,
    output: Path,
    command: str = "",
    progress: Progress = SILENT,
) -> Report:
    """Compress one checkpoint to one or more budgets; write artifacts and reports to `output`.

    With one budget `output` is the artifact; with several, each gets a directory below it.

    Raises:
        CompressError: see `compressor.errors`; nothing is half written, and calling again with
            the same recipe goes on from the last finished step.
    """
    require_directory(output)
    setup = prepare(resolve(recipe), load(recipe.model), output, progress)
    recipe = setup.recipe
    with open_steps(output, setup.identity(progress), progress, setup.written_bytes) as steps:
        parallel.on_main(lambda: require_own_outputs(steps, output, setup.artifacts))
        started = steps.do(start, title="reading inputs", command=command)
        tokens, limits = scored_tokens(setup, steps), without_layers(setup, steps)
        dense = steps.do(
            export_dense, title="exporting the dense model to compare with", source=setup.dense,
            directory=steps.state / DENSE, engines=setup.engines, steps=steps,
        )  # fmt: skip
        text, translations = text_to_learn(setup.text, recipe.recovery, dense, setup.device, steps)
        setup = replace(setup, tokens=tokens, limits=limits, text=text, translations=translations)
        models = [dense, *other_forms(dense, setup.dense, setup, steps)]
        search, method = None, recipe.method
        for artifact in setup.artifacts:
            build_candidate = partial(try_build, setup, steps)
            evaluator = RunEvaluator(steps, setup, artifact, dense, build_candidate)
            name = artifact.name
            title = artifact.budget.action(method.name if method.learns else "")
            if method.learns:
                choice = steps.do(learn, name, evaluator, title=title, shared=True)
            else:
                scores = evaluator.scores()
                choice = steps.do(choose, name, scores, evaluator, title=title, shared=True)
            if choice.text:
                progress.message(f"  {choice.text}")
            pruned = steps.do(
                build, name, choice, setup, title=build_title(choice, recipe), shared=True,
                artifact=artifact, making=steps.making(artifact.directory), steps=steps,
            )  # fmt: skip
            models += [pruned, *other_forms(pruned, setup.source, setup, steps)]
            search = choice.search
        dense, *builds = evaluate(models, setup, steps)
        throughput = benchmark(models, setup, steps)
        builds = choose_defaults(builds, throughput)
        report = describe_run(setup, started, dense, builds, throughput, search)
        outcomes = rules.check(report, gate_rules(recipe.gate), recipe.gate.inconclusive)
        report = report.model_copy(update={"gate": outcomes})
        parallel.on_main(lambda: publish(steps, report, setup))
    return without_paths(report, output)


def build(
    name: str,
    choice: Choice,
    setup: RunSetup,
    *,
    artifact: ArtifactPlan,
    making: AbstractContextManager[Path],
    steps: Steps,
) -> Variant:
    """Remove units, recover what is left, save and export; each is checked against the one before.

    Args:
        making: an empty directory, whose files go to the artifact's.
    """
    recipe, source, mask, scores = setup.recipe, setup.source, choice.mask, choice.scores
    checkpoint, checked_on, tokens = source.checkpoint, source.check_batches, setup.tokens.tokens
    model, budget = chosen_model(steps, name, choice, checkpoint), artifact.budget.text
    with making as folder:
        pruned = prune(model, checkpoint.layers, mask)
        check = verify(model, pruned, source, mask)
        recovered = recover(
            recipe.recovery, source, pruned, mask, seed=recipe.seed, device=setup.device,
            progress=steps.progress, text=setup.text, state=steps.scratch / "recovery.safetensors",
        )  # fmt: skip
        small, reloaded = save(
            checkpoint, recovered, choice, checked_on, folder, budget=budget, seed=recipe.seed
        )
        exported = parallel.on_main(
            lambda: export(small, tokens, checked_on, folder, delivered(setup.engines))
        )
        share = setup.costs.share(mask, None if tokens is None else len(tokens))
        checks = [check, reloaded, *exported]
        built = parallel.on_main(
            lambda: describe(name, small.model, mask, share, budget, folder, folder, checks)
        )
    release(small.model, keep=model)  # whose weights it shares where nothing was removed
    values = {name: list(v) for name, v in scores.values.items() if units_of(name) == "heads"}
    ranking = Ranking(
        method=scores.method, signature=scores.signature, cost=dict(scores.cost), values=values
    )
    update = {
        "selection": choice.text,
        "recovery": recovered.text or "none",
        "scoring": ranking,
        "directory": artifact.directory.as_posix(),
    }
    return built.model_copy(update=update)


def build_title(choice: Choice, recipe: Recipe) -> str:
    names = "+".join(method.name for method in recipe.recovery)
    recovery = f", recovering ({names})" if names else ""
    return f"removing units ({choice.mask} kept){recovery}, exporting, checking"


def try_build(setup: RunSetup, steps: Steps, name: str, choice: Choice, directory: Path) -> None:
    """Build a candidate of a search, which is not delivered."""
    artifact = replace(setup.artifacts[0], directory=directory)
    setup = replace(setup, engines=(ONNXRUNTIME,))
    build(name, choice, setup, artifact=artifact, making=nullcontext(directory), steps=steps)


def scored_tokens(setup: RunSetup, steps: Steps) -> TargetTokens:
    """The tokens that decoders of pruned models score: all, or those of a text."""
    if setup.target_text is None:
        return setup.tokens
    title = f"cutting {setup.target_text.path.name} into tokens"
    checkpoint, progress = setup.source.checkpoint, steps.progress
    return steps.do(
        target_tokens, setup.target_text, title=title, checkpoint=checkpoint, progress=progress
    )


def without_layers(setup: RunSetup, steps: Steps) -> Limits:
    """What may be removed, without the layers that go first."""
    limits, progress = setup.limits, steps.progress
    if not limits.to_drop:
        return limits
    divergences = steps.do(
        find_layers, limits.to_drop, (), title="finding the layers to drop", shared=True,
        source=setup.source, device=setup.device, progress=progress,
    )  # fmt: skip
    for name, divergence in divergences.items():
        progress.message(f"  without {name}: divergence {divergence:.3f}, without recovery")
    return replace(limits, dropped=frozenset(divergences))


def other_forms(
    model: Variant, source: ModelAndRows, setup: RunSetup, steps: Steps
) -> list[Variant]:
    """Other precisions, and other engines, of a model in float32."""
    return [
        steps.do(
            export_precision, model, name, title=f"exporting {model.name} in {name}, checking",
            source=source, device=setup.device, steps=steps,
        )
        for name in setup.precisions[1:]
    ] + engine_builds(model, setup.engines, setup.device)  # fmt: skip


def score_checkpoint(request: ScoreRequest, progress: Progress = SILENT) -> Scores:
    """Score every unit of a dense checkpoint with a method and calibration rows."""
    require_rows(request.method, [], request.data)
    device = pick_device(request.device, progress)
    checkpoint = load(request.model)
    request.method.check_task(TASKS[checkpoint.task])
    source = with_calibration(request.data, checkpoint, progress)
    sublayers = [x for x in checkpoint.layers if request.prune in ("both", units_of(x.kind))]
    scores = score(
        Mask.full(checkpoint.layers), source=source, method=request.method, sublayers=sublayers,
        seed=request.seed, device=device, progress=progress,
    )  # fmt: skip
    return replace(scores, weights=weights_of(request.model))


def prune_checkpoint(
    request: PruneRequest, scores: Scores, output: Path, progress: Progress = SILENT
) -> tuple[Mask, Check, str]:
    """Remove the least important units, recover what is left, and save.

    Returns:
        The mask, the check of the pruned model before the recovery, and what the recovery did.
    """
    methods, seed = request.recovery, request.seed
    require_new(output)
    require_rows(None, methods, request.data)
    if request.data.calibration is not None and not methods:
        raise UsageError(
            f"--calibration {request.data.calibration} is for the recovery; add --recover "
            "reconstruct, or leave it out",
            id="option-without-use",
        )
    require_weights(scores, request.model)
    device = pick_device(request.device, progress)
    checkpoint = load(request.model)
    check_options(methods, TASKS[checkpoint.task], checkpoint.name)
    source = with_calibration(request.data, checkpoint, progress)
    require_trainable(methods, len(source.examples))
    text = open_text(methods, source.rows, source.task, checkpoint, request.data, progress)
    budget, mask = select_units(request, scores, checkpoint)
    dense, needed = checkpoint.model, export_bytes(checkpoint.model, [BASE])
    with (
        answered_by_pytorch(text, text_beams(methods), checkpoint, device, progress) as translated,
        whole_output(output, needed, "saving the pruned checkpoint") as making,
    ):
        pruned = prune(dense, checkpoint.layers, mask)
        check = verify(dense, pruned, source, mask)
        recovered = recover(
            methods, source, pruned, mask, seed=seed, device=device, progress=progress,
            text=translated,
        )  # fmt: skip
        save(
            checkpoint, recovered, Choice(mask, scores), source.check_batches, making,
            budget=budget.text, seed=seed,
        )  # fmt: skip
    return mask, check, recovered.text


def export_checkpoint(request: ExportRequest, output: Path) -> list[Check]:
    """Export a checkpoint, dense or pruned; checked on random ragged batches.

    Args:
        request: its layout is `compress` for this tool's own runtime, in `output/onnx`; `optimum`
            for the ONNX Runtime loaders of Hugging Face optimum, in `output` itself, in float32
            and of models of one graph; `ctranslate2` for `ctranslate2.Translator`, in `output`
            itself, in one precision.

    Calibration rows are for int8: the ranges of its activations are taken from them, and its
    answers to them are compared. Without rows each token has a scale of its own.

    `output` may be the checkpoint's own directory, as long as it has no `onnx` directory. The
    runtime's default stays float32, since no test rows say what other precisions lose.

    Raises:
        UsageError: an unknown layout, or a precision that it does not have.
        InputError: `output` holds something already, or the layout cannot hold the checkpoint.
        VerificationError: a graph differs from PyTorch by more than its precision's tolerance.
    """
    other = layout_writer(request.layout)
    if other is not None:
        return other(request, output)
    precisions, engines = check_export(request, output), request.export.engines
    checkpoint = load(request.model, dense=False)
    task = TASKS[checkpoint.task]
    require_engines(engines, task)
    check_place(output, checkpoint, request.export.source_text)
    kept, scored = texts_to_keep(request.export, request.data, task, checkpoint.name)
    if kept is not None:
        checkpoint = cut_vocabulary(checkpoint, kept)
    seen = None if scored is None else tokens_of_text(scored, checkpoint.tokenizer)
    source = with_calibration(request.data, checkpoint)
    compared = random = source.check_batches
    if source.rows is not None:
        compared = make_check_batches(source.rows, source.examples, checkpoint.model, task)
    with whole_output(output, export_bytes(checkpoint.model, precisions), "exporting") as making:
        tokens = task.graphs.output_tokens(checkpoint, seen)
        checked_on = replace(compared, batches=random.batches)
        checks = export(checkpoint, tokens, checked_on, making, engines)
        for precision in precisions[1:]:
            # Most processors compute fp16 graphs in float32: a GPU tells more, where there is one.
            device = choose_device(request.device) if precision == "fp16" else "cpu"
            added = add_precision(
                checkpoint.model, compared.inputs, making, precision, device, source.examples
            )
            require_within(added, precision)
            checks += added
    return checks
