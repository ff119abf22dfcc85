"""Exporting models, dense and recovered, in all precisions and engines, and their facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.budgets.unit_costs import UnitCosts
from compressor.export.candidate_graphs import add_candidates
from compressor.export.precision_names import BYTES_PER_WEIGHT
from compressor.export.precisions import compare_precision, expect_answers, write_precision
from compressor.export.task_graphs import Network, export_model, graph_bytes
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.location import weight_files
from compressor.model.memory import release
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.token_selection import hands_on_fewer
from compressor.model.token_tables import count_tokens
from compressor.model.weights import count_parameters
from compressor.recovery.pruned import recovered_checkpoint
from compressor.runtime.artifact import CPU_ONLY
from compressor.runtime.engines import engine_class
from compressor.runtime.opening import count_output_tokens, read_artifact
from compressor.steps.context import Context
from compressor.steps.results import Check, Ranking, Variant
from compressor.steps.values import DENSE, DecoderTokens, Exported, Saved
from compressor.storage.names import BASE, ONNXRUNTIME
from compressor.tasks import TASKS
from compressor.tasks.opened import ModelAndRows

if TYPE_CHECKING:
    from torch import nn


def export_graphs(
    checkpoint: Checkpoint,
    tokens: list[int] | None,
    engines: Sequence[str],
    directory: Path,
    opened: ModelAndRows,
) -> list[Check]:
    """Write float32 graphs, and what engines need beside them, and compare them with PyTorch.

    Args:
        checkpoint: dense or pruned.
        tokens: that a decoder scores; None for all.
        engines: to export for.
        directory: of the artifact.
        opened: the rows to check on.

    Raises:
        VerificationError: a graph differs by more than its tolerance.
    """
    network = Network(checkpoint, checkpoint.model, checkpoint.mask, tokens)
    texts, pairs = opened.texts
    return export_model(network, opened.batches, texts, directory, engines, pairs)


def export_dense(engines: Sequence[str], *, directory: Path, opened: ModelAndRows) -> Exported:
    """Export the dense model, to be compared with; errors as those of `export_graphs`."""
    checkpoint = opened.checkpoint
    tokens = opened.task.graphs.output_tokens(checkpoint)
    checks = export_graphs(checkpoint, tokens, engines, directory, opened)
    model = describe(
        checkpoint.model,
        Mask.full(checkpoint.layers),
        graphs=directory,
        weights=checkpoint.directory,
        name=DENSE,
        budget="all units",
        macs_share=1.0,
        checks=checks,
    )
    return Exported(directory, model)


def export_saved(
    saved: Saved,
    scored: DecoderTokens,
    engines: Sequence[str] = (ONNXRUNTIME,),
    *,
    directory: Path,
    opened: ModelAndRows,
    costs: UnitCosts,
) -> Exported:
    """Export a recovered model that was saved; errors as those of `export_graphs`.

    Args:
        saved: the model, as a checkpoint.
        scored: the tokens that a decoder scores.
        engines: of the run; those that run dense models alone are left out.
        directory: of the artifact.
        opened: the dense model, and the rows to check on.
        costs: multiply-adds of what may go.
    """
    recovered, chosen = saved.recovered, saved.recovered.chosen
    tokens, candidates = scored.tokens, scored.candidates
    count = None if tokens is None else len(tokens)
    small = recovered_checkpoint(recovered, opened)
    exported = export_graphs(small, tokens, pruned_engines(engines), directory, opened)
    if candidates is not None:
        add_candidates(directory, candidates.table)
        graphs = opened.task.graphs
        exported += graphs.check_candidates(directory, BASE, opened.inputs, small.model)
    model = describe(
        small.model,
        chosen.mask,
        graphs=directory,
        weights=saved.directory,
        name=chosen.name,
        budget=chosen.budget,
        macs_share=costs.share(chosen.mask, count),
        selection=chosen.text,
        recovery=recovered.text or "none",
        scoring=_ranking(chosen.scores),
        candidates=None if candidates is None else candidates.facts,
        checks=[recovered.pruned.check, saved.check, *exported],
    )
    release(small.model, keep=opened.checkpoint.model)
    return Exported(directory, model)


def _ranking(scores: Scores) -> Ranking:
    """Scores for reports, which show those of heads."""
    return Ranking(
        method=scores.method,
        signature=scores.signature,
        cost=dict(scores.cost),
        values={n: list(v) for n, v in scores.values.items() if units_of(n) == "heads"},
    )


def export_precision(
    exported: Exported,
    precision: str,
    *,
    directory: Path,
    opened: ModelAndRows,
    context: Context,
) -> Exported:
    """Write an exported model's graphs in one more precision; they are not checked yet."""
    examples = opened.examples if opened.calibrated else ()
    write_precision(exported.directory, precision, examples, directory, context.device)
    scores_candidates = precision in CPU_ONLY  # as `write_precision` decides
    model = _another_build(
        exported.model,
        name=f"{exported.model.name}-{precision}",
        precision=precision,
        candidates=exported.model.candidates if scores_candidates else None,
        onnx_bytes=graph_bytes(directory, precision),
    )
    return Exported(exported.directory, model)


def check_precision(exported: Exported, *, opened: ModelAndRows, context: Context) -> list[Check]:
    """Compare an exported precision with the float32 network.

    On the device that is measured on, if that has kernels for the precision.
    """
    directory, precision = exported.directory, exported.model.precision
    if exported.model.family == DENSE:
        network = opened.checkpoint.model.eval()
    else:
        network = open_checkpoint(str(directory), verify=False).model
    expected = expect_answers(network, opened.inputs, directory, precision)
    release(network, keep=opened.checkpoint.model)
    checks = compare_precision(expected, directory, precision, context.device, real=True)
    if exported.model.candidates is not None:
        checks += opened.task.graphs.check_candidates(directory, precision, opened.inputs)
    return checks


def other_forms(
    exported: Exported,
    precisions: Sequence[str],
    engines: Sequence[str],
    *,
    opened: ModelAndRows,
    context: Context,
) -> list[Exported]:
    """The other precisions, and other engines, of a model that was exported in float32.

    Args:
        exported: the model in float32.
        precisions: all of the run, float32 first.
        engines: all of the run.
        opened: the dense model, and the rows to check on and to fit int8 on.
        context: with the device that is measured on.
    """
    steps, forms = context.steps, list[Exported]()
    for precision in precisions[1:]:
        what = f"{exported.model.name} in {precision}"
        written = steps.do(
            export_precision,
            exported,
            precision,
            title=f"exporting {what}",
            into=exported.directory,
            opened=opened,
            context=context,
        )
        checks = steps.do(
            check_precision, written, title=f"checking {what}", opened=opened, context=context
        )
        model = written.model.model_copy(update={"checks": checks})
        forms.append(Exported(written.directory, model))
    return forms + engine_builds(exported, engines, context.device)


def engine_builds(exported: Exported, engines: Sequence[str], device: str) -> list[Exported]:
    """A model exported in float32 in the run's other engines, in all precisions to measure."""
    directory, name = exported.directory, exported.model.name
    artifact = read_artifact(directory)
    if name != DENSE:
        engines = pruned_engines(engines)
    return [
        Exported(
            directory,
            _another_build(
                exported.model,
                name="-".join([name, engine, *([precision] * (precision != BASE))]),
                precision=precision,
                engine=engine,
                candidates=None,
            ),
        )
        for engine in engines
        if engine != ONNXRUNTIME
        for precision in TASKS[artifact.task].engine(engine).measured(directory, artifact, device)
    ]


def pruned_engines(engines: Sequence[str]) -> list[str]:
    """Those of the engines that run pruned models."""
    return [name for name in engines if not engine_class(name).dense_only]


def _another_build(model: Variant, **facts: Any) -> Variant:
    """A float32 model in another precision or engine; it is no default until it is measured."""
    other = {"base": model.name, "default": False, "scoring": None, "checks": []}
    return model.model_copy(update=other | facts)


def export_bytes(model: nn.Module, precisions: Sequence[str]) -> int:
    """About how large the graphs of a model are, in all the precisions together."""
    return sum(count_parameters(model) * BYTES_PER_WEIGHT[name] for name in precisions)


def describe(model: nn.Module, mask: Mask, *, graphs: Path, weights: Path, **facts: Any) -> Variant:
    """The facts of a model exported in float32.

    Args:
        model: the network.
        mask: the units of the dense model that it has.
        graphs: the directory that its graphs are in.
        weights: the directory that its checkpoint is in.
        facts: more of them.
    """
    heads, neurons = (
        {name: n for name, n in mask.totals().items() if units_of(name) == units}
        for units in ("heads", "neurons")
    )
    tenths = mask.handed_on()
    tokens = count_output_tokens(graphs)
    rows, token_weights = count_tokens(model)
    files = weight_files(weights, allow_pickle=True)  # that were loaded already
    measured: dict[str, Any] = {
        "directory": "",
        "kept": {name: mask.kept(name) for name in heads},
        "heads": heads,
        "neurons": neurons,
        "kept_neurons": {name: n for name, n in mask.counts().items() if name in neurons},
        "handed_on": list(tenths) if hands_on_fewer(tenths) else [],
        "dropped_layers": [layer for layer in mask.layers() if layer in mask.dropped],
        "parameters": count_parameters(model),
        "checkpoint_bytes": sum(path.stat().st_size for path in files),
        "onnx_bytes": graph_bytes(graphs),
        "output_tokens": tokens,
        "embedding_rows": rows,
        "embedding_bytes": 4 * token_weights,  # in float32
        "precision": BASE,
        "recovery": "none",
    }
    return Variant(**measured | facts)
