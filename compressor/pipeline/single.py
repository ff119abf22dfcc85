"""`compress score`, `prune` and `export`: the functions of a run in shorter lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from compressor.export import checkpoint as exporting
from compressor.export import layouts
from compressor.export.cut_vocabulary import CHECKING, check_cut, cut_vocabulary
from compressor.export.exported import export_bytes, export_dense
from compressor.export.saved import save_model
from compressor.model.checkpoint import Checkpoint
from compressor.model.location import fingerprint_of_weights
from compressor.model.sublayers import Mask, Scores
from compressor.options import inputs
from compressor.options.requests import ExportRequest, PruneRequest, ScoreRequest
from compressor.options.sections import ModelSection
from compressor.options.validate import (
    check_options,
    check_score,
    check_texts,
    require_token_units,
)
from compressor.progress import SILENT, Progress
from compressor.recovery.planning import open_recovery, prepare_recovery
from compressor.recovery.pruned import prune_units, recover_units
from compressor.report.scores_file import require_counts, require_weights
from compressor.selection.by_scores import score_units, units_by_scores
from compressor.steps.context import Context
from compressor.steps.results import Check
from compressor.steps.store import open_steps
from compressor.steps.values import DENSE, ChosenUnits
from compressor.storage.names import BASE, ONNXRUNTIME
from compressor.storage.outputs import require_new, whole_output
from compressor.tasks import TASKS
from compressor.tasks.engines import pick_device, require_engines
from compressor.tasks.opened import with_rows
from compressor.tasks.texts import TextFile


def score_checkpoint(request: ScoreRequest, progress: Progress = SILENT) -> Scores:
    """Score the units of a dense checkpoint that `--prune` names.

    Raises:
        UsageError: the method, or the units, do not go with the model.
        InputError: the model or the rows cannot be used.
    """
    device = pick_device(request.device, progress)
    checkpoint = inputs.load(request.model)
    request.method.check_task(TASKS[checkpoint.task])
    check_score(request, checkpoint)
    opened = inputs.with_calibration(request.data, checkpoint, progress)
    context = Context(device, request.seed, progress)
    scores = score_units(request.method, request.prune, opened=opened, context=context)
    return replace(scores, weights=weights_of(request.model))


def prune_checkpoint(
    request: PruneRequest, scores: Scores, output: Path, progress: Progress = SILENT
) -> tuple[Mask, Check, str]:
    """Remove the least important units, recover what is left, and save.

    Returns:
        The mask, the check of the pruned model, and what the recovery did.
    """
    require_new(output)
    model, data = request.model, request.data
    methods = request.recovery
    if scores.weights:
        require_weights(scores, model.path, weights_of(model))
    device = pick_device(request.device, progress)
    checkpoint = inputs.load(model)
    check_options(methods, TASKS[checkpoint.task], checkpoint.name)
    opened = inputs.with_calibration(data, checkpoint, progress)
    planned = open_recovery(methods, opened, inputs.reading(data, checkpoint), progress)
    budget = request.only_budget
    require_token_units(budget.asks_for_tokens, checkpoint)
    require_counts(scores, model.path, checkpoint.mask.with_tokens().counts())
    mask = units_by_scores(budget, scores, checkpoint.layers)
    needed = export_bytes(checkpoint.model, [BASE])
    with (
        TemporaryDirectory(prefix="compress-") as folder,
        open_steps(Path(folder), {}, progress, lambda: needed) as steps,
        whole_output(output, needed, "saving the pruned checkpoint") as making,
    ):
        context, dense = Context(device, request.seed, progress, steps), None
        if planned.text is not None and opened.task.learns_from_answers:
            title, into = "exporting the dense model to answer the text", steps.state / DENSE
            dense = steps.do(export_dense, [ONNXRUNTIME], title=title, into=into, opened=opened)
        recovery = prepare_recovery(planned, dense, context)
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
        UsageError: a precision that the layout does not have.
        InputError: `output` holds something already, or the layout cannot hold the checkpoint.
        VerificationError: a graph differs from PyTorch by more than its precision's tolerance.
    """
    names, engines = request.export.precision, request.export.engines
    if request.layout != "compress":
        layouts.require_precision(request.layout, names)
        layouts.require_place(request.layout, output)
        checkpoint = inputs.load(request.model, dense=False)
        texts = _texts_to_keep(request, checkpoint, progress)
        smaller, checks = _cut(request, checkpoint, texts, progress)
        return [*checks, *layouts.export_layout(smaller, request.layout, names[0], output)]
    precisions = exporting.precisions_of(names, request.device)
    exporting.require_place(output)
    checkpoint = inputs.load(request.model, dense=False)
    require_engines(engines, TASKS[checkpoint.task])
    kept, scored = _texts_to_keep(request, checkpoint, progress)
    rows = inputs.calibration_rows(request.data, checkpoint, progress)
    exporting.require_place_of(checkpoint, kept, output)
    smaller, checks = _cut(request, checkpoint, (kept, scored), progress)
    opened, save = with_rows(smaller, rows, progress=progress), kept is not None
    options = opened, scored, engines, precisions, output, request.device
    return [*checks, *exporting.export_opened(*options, save=save)]


def _texts_to_keep(
    request: ExportRequest, checkpoint: Checkpoint, progress: Progress
) -> tuple[TextFile | None, TextFile | None]:
    """The texts whose tokens encoders and decoders keep, if given; both checked."""
    check_texts(request.export, checkpoint)
    reading = inputs.reading(request.data, checkpoint)
    return inputs.texts_to_keep(request.export, TASKS[checkpoint.task], reading, progress)


def _cut(
    request: ExportRequest,
    checkpoint: Checkpoint,
    texts: tuple[TextFile | None, TextFile | None],
    progress: Progress,
) -> tuple[Checkpoint, list[Check]]:
    """The checkpoint with the tokens of some texts alone, if given; and checks of it."""
    cut = cut_vocabulary(checkpoint, *texts, request.export.keep_languages, progress)
    if cut.kept is not None:
        progress.message(f"{CHECKING} …")
    return cut.checkpoint, check_cut(cut, progress)


def weights_of(model: ModelSection) -> str:
    """A fingerprint of the files of a checkpoint's weights."""
    return fingerprint_of_weights(model.path, model.revision, model.allow_pickle)
