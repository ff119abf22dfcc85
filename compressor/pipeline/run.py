"""`compress run`, from its options to a finished report."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from compressor.evaluation.models import evaluate
from compressor.export.exported import export_dense, export_saved, other_forms
from compressor.export.saved import save_model
from compressor.options.recipe import Recipe
from compressor.pipeline.setup import open_run, prepare
from compressor.pipeline.vocabulary import decoder_tokens, with_fewer_tokens
from compressor.progress import SILENT, Progress
from compressor.recovery.planning import prepare_recovery
from compressor.recovery.pruned import prune_units, recover_units
from compressor.report.defaults import choose_defaults
from compressor.report.publish import without_paths
from compressor.report.rules import gated
from compressor.report.run_report import Measured, describe_run, publish, run_metadata
from compressor.report.schema import Report
from compressor.selection.choose import select_units
from compressor.selection.layers import without_layers
from compressor.steps.values import DENSE, RecoveredModel
from compressor.storage.files import require_directory
from compressor.throughput.models import benchmark_models


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
    engines, measuring = plan.engines, plan.measuring
    given = opened.inputs
    with open_run(plan, opened, progress) as context:
        do, state = context.steps.do, context.steps.state
        forms = partial(other_forms, precisions=plan.precisions, engines=engines, context=context)
        started = do(run_metadata, title="reading inputs", command=command)
        opened, checks = with_fewer_tokens(opened, plan, context)
        source = opened.source
        limits = without_layers(opened.prunable.limits, opened=source, context=context)
        title = "exporting the dense model to compare with"
        dense = do(export_dense, engines, title=title, into=state / DENSE, opened=opened.dense)
        recovery = prepare_recovery(opened.recovery, dense, context)
        scored = decoder_tokens(plan.candidates, recovery, opened, context)
        models, search = [dense, *forms(dense, opened=opened.dense)], None
        for artifact in plan.removal.artifacts:
            name, folder = artifact.name, artifact.directory
            choice = artifact, limits, recovery, scored, dense, measuring
            chosen = select_units(*choice, opened=opened.prunable, context=context)
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
            exported = do(
                export_saved,
                saved,
                scored,
                engines,
                title=f"exporting {name}, checking",
                into=folder,
                opened=source,
                costs=opened.prunable.costs,
            )
            models += [exported, *forms(exported, opened=source)]
            search = chosen.search
        beams, resamples = measuring.beams, measuring.resamples
        whole, *builds = evaluate(models, given.data.test, beams, resamples, plan.samples, context)
        config = source.configuration
        throughput = benchmark_models(models, measuring.timing, given.data.timed, config, context)
        measured = Measured(whole, choose_defaults(builds, throughput), throughput, search)
        report = describe_run(given, checks, started, measured, plan.seed, plan.samples)
        report = gated(report, plan.rules, plan.inconclusive)
        publish(report, output, plan.recipes, plan.card, plan.precisions, context)
    return without_paths(report, output)
