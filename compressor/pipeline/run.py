"""`compress run`: from its options to a finished report.

Every step is one call into one package and returns a value. Steps that take long are stages
(`compressor.pipeline.stages`): each leaves a record in `OUT/.compress`, from which a stopped run
goes on.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from compressor import parallel
from compressor.errors import InputError
from compressor.export.precision_names import BASE
from compressor.model.card import read_card
from compressor.model.location import checkpoint_files
from compressor.parallel import launch
from compressor.pipeline.artifacts import Inputs, begin, prepare, written_by_run
from compressor.pipeline.build import export_bytes
from compressor.pipeline.evaluate import Answering, benchmark, choose_defaults, evaluate
from compressor.pipeline.inputs import load, source_of_text
from compressor.pipeline.publish import describe_run, publish, require_own_outputs, start
from compressor.progress import SILENT, Progress
from compressor.report import rules
from compressor.report.schema import Report
from compressor.report.without_paths import without_paths
from compressor.request.plan import RunPlan
from compressor.request.recipe import Recipe
from compressor.request.resolve import resolve
from compressor.request.validate import check_model
from compressor.storage.disk import translate_disk_errors
from compressor.storage.files import require_directory
from compressor.storage.workspace import Workspace, open_workspace
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
            the same recipe goes on from the last finished stage.
    """
    require_directory(output)
    plan = resolve(recipe)
    checkpoint = load(plan.model)
    check_model(plan, checkpoint, TASKS[checkpoint.task], progress)
    inputs = prepare(plan, checkpoint, output, progress)
    model = checkpoint.model
    with translate_disk_errors(output, partial(export_bytes, model, [BASE]), lambda: "beginning"):
        workspace = open_run(plan, inputs, output, progress)
    needed = partial(written_by_run, inputs)
    with translate_disk_errors(output, needed, lambda: workspace.doing), workspace:
        report = _compress(plan, inputs, workspace, output, command)
        outcomes = rules.check(report, plan.rules, plan.inconclusive)
        report = report.model_copy(update={"gate": outcomes})
        recipes = {output: plan.to_yaml()}
        recipes |= {x.directory: plan.to_yaml(x.budget) for x in inputs.artifacts}
        known = plan.card.over(read_card(checkpoint.directory))
        parallel.on_main(
            lambda: publish(workspace, report, recipes, inputs.precisions, output, known)
        )
    return without_paths(report, output)


def open_run(plan: RunPlan, inputs: Inputs, output: Path, progress: Progress) -> Workspace:
    """Take an empty output directory, or go on with one that holds the same run."""
    files = checkpoint_files(inputs.dense.checkpoint.directory)
    identity = plan.identity(inputs.device, files, inputs.data.sha256(), progress)
    identity["tokenizers"] = dict(inputs.data.tokenizers)
    advice = "give all ranks the same options, model and data"
    launch.require_same(identity, advice, InputError, "ranks-differ-in-inputs")
    return open_workspace(output, identity, progress)


def _compress(
    plan: RunPlan,
    inputs: Inputs,
    workspace: Workspace,
    output: Path,
    command: str,
) -> Report:
    """Make and measure all models; the gate's outcomes are not in the report yet."""
    data, device, seed = inputs.data, inputs.device, plan.seed
    checkpoint = inputs.encoded.checkpoint
    parallel.on_main(lambda: require_own_outputs(workspace, output, inputs.artifacts))
    started = start(workspace, command)
    maker = begin(plan, inputs, workspace)
    dense, builds, search = maker.dense, maker.builds_of(maker.dense, inputs.dense), None
    for trials in maker.trials:
        choice, made = maker.artifact(trials)
        builds += made
        search = choice.search

    answering = Answering(device, plan.evaluation.num_beams)
    dense, builds = evaluate(
        workspace, dense, builds, data.test, answering, plan.evaluation.resamples, seed
    )
    throughput, settings = None, plan.throughput
    if settings is not None:
        config = checkpoint.model.config.to_dict()  # type: ignore[union-attr,operator]
        throughput = benchmark(workspace, [dense, *builds], data.timed, config, settings, device)
    builds = choose_defaults(builds, throughput)
    text = None if inputs.source_text is None else source_of_text(inputs.source_text)
    return describe_run(
        checkpoint, data, seed, started, dense, builds, throughput, search,
        maker.builder.tokens, text,
    )  # fmt: skip
