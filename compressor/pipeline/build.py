"""Building models: units removed, the rest repaired, saved, exported; every step is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor import parallel
from compressor.budgets import Choice
from compressor.budgets.path import UnitCosts
from compressor.errors import VerificationError
from compressor.export import export_model, graph_bytes
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE, BYTES_PER_WEIGHT
from compressor.export.precisions import compare_precision, expect_answers, write_precision
from compressor.export.source_text import embedding_rows
from compressor.export.task_graphs import Network
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.depth import without_skipped
from compressor.model.memory import release, trim_memory
from compressor.model.saving import round_to, save_checkpoint
from compressor.model.stored_weights import weight_files
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.surgery import prune, verify_surgery
from compressor.model.weights import count_parameters
from compressor.pipeline.choose import chosen_model
from compressor.pipeline.engines import delivered
from compressor.pipeline.inputs import Fitted, Probe, TargetTokens
from compressor.pipeline.repair import Repair
from compressor.pipeline.stages import DENSE, stage
from compressor.request.plan import ArtifactPlan
from compressor.results import Check, Ranking, Variant
from compressor.runtime.vocabulary import count_output_tokens
from compressor.storage.workspace import Workspace
from compressor.tasks import TASKS

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Pruned:
    """A smaller model that was repaired and saved.

    Args:
        checkpoint: the dense one's, with the smaller model and the units that it has.
        checks: pruned equals masked, reloaded equals saved.
        recovery: what the repair did, in words; empty if nothing.
    """

    checkpoint: Checkpoint
    checks: list[Check]
    recovery: str


def save_pruned(
    repair: Repair,
    source: nn.Module,
    choice: Choice,
    budget: str,
    probe: Probe,
    directory: Path,
    name: str = "model",
) -> Pruned:
    """Remove units, repair what is left, save it; each step is checked against the one before.

    Args:
        source: what the units are cut from; not changed.
        budget: in words, for the record beside the weights.
        name: of the model, see `Repair.run`.
    """
    checkpoint = repair.checkpoint
    pruned = prune(source, checkpoint.layers, choice.mask)
    cut = without_skipped(checkpoint, pruned, choice.mask).model
    check = parallel.on_main(
        lambda: verify_surgery(source, cut, checkpoint.layers, choice.mask, probe.inputs)
    )
    repaired = repair.run(pruned, choice.mask, name)
    trim_memory()
    small = without_skipped(checkpoint, repaired.model, choice.mask)
    round_to(small.model, checkpoint.dtype)  # so that checks are of what is stored
    record = pruning_facts(checkpoint, choice.mask, choice.scores, budget, repair.seed)
    record |= {"selection": choice.text, "recovery": repaired.text or "none"}
    parallel.on_main(lambda: save_checkpoint(checkpoint, small.model, record, directory))
    reloaded = parallel.on_main(lambda: verify_reload(small, directory, probe))
    return Pruned(small, [check, reloaded], repaired.text)


@dataclass(frozen=True)
class Builder:
    """Makes the artifacts of plans.

    Args:
        probe: what every build is compared on.
        tokens: that decoders of pruned models score.
        engines: to export for, and to compare with.
    """

    workspace: Workspace
    repair: Repair
    probe: Probe
    tokens: TargetTokens
    costs: UnitCosts
    engines: Sequence[str] = (ONNXRUNTIME,)

    def build(self, plan: ArtifactPlan, choice: Choice, directory: Path) -> Variant:
        """Remove units, repair, save, export."""
        checkpoint, probe, mask = self.repair.checkpoint, self.probe, choice.mask
        tokens = self.tokens.tokens
        source = chosen_model(self.workspace, plan, checkpoint)
        budget = plan.budget.text
        pruned = save_pruned(self.repair, source, choice, budget, probe, directory, plan.name)
        small = pruned.checkpoint
        network = Network(small, small.model, small.mask, tokens)
        exported = parallel.on_main(
            lambda: export_model(
                network, probe.batches, probe.texts, directory, delivered(self.engines), probe.pairs
            )
        )
        share = self.costs.share(mask, None if tokens is None else len(tokens))
        checks, recovery = [*pruned.checks, *exported], pruned.recovery or "none"
        built = parallel.on_main(
            lambda: describe(
                plan.name, small.model, mask, share, budget, directory, directory, checks,
                choice.text, recovery,
            )
        )  # fmt: skip
        release(small.model, keep=source)  # whose weights it shares where nothing was removed
        return _with_scores(built, choice.scores)


@stage("build")
def build(workspace: Workspace, plan: ArtifactPlan, choice: Choice, builder: Builder) -> Variant:
    """The artifact of a plan."""
    with workspace.making(plan.directory) as making:
        built = builder.build(plan, choice, making)
    return built.model_copy(update={"directory": plan.directory.as_posix()})


def _with_scores(model: Variant, scores: Scores) -> Variant:
    values = {name: list(v) for name, v in scores.values.items() if units_of(name) == "heads"}
    scoring = Ranking(
        method=scores.method, signature=scores.signature, cost=dict(scores.cost), values=values
    )
    return model.model_copy(update={"scoring": scoring})


@stage("dense")
def export_dense(
    workspace: Workspace,
    checkpoint: Checkpoint,
    probe: Probe,
    costs: UnitCosts,
    directory: Path,
    engines: Sequence[str],
) -> Variant:
    """Export the dense model, to be compared with, and describe it."""
    full = Mask.full(checkpoint.layers)
    with workspace.making(directory) as making:
        tokens = TASKS[checkpoint.task].graphs.output_tokens(checkpoint)
        network = Network(checkpoint, checkpoint.model, full, tokens)
        checks = export_model(network, probe.batches, probe.texts, making, engines, probe.pairs)
    return describe(
        DENSE, checkpoint.model, full, costs.share(full), "all units", directory,
        checkpoint.directory, checks,
    )  # fmt: skip


@stage("precision")
def export_precision(
    workspace: Workspace,
    model: Variant,
    precision: str,
    checkpoint: Checkpoint,
    fitted: Fitted,
    probe: Probe,
    device: str,
) -> Variant:
    """Write one more precision of an exported model and compare it with the float32 network.

    It is compared on the device that is measured on, if that has kernels for the precision.

    Args:
        checkpoint: the dense one.
    """
    directory = Path(model.directory)
    with workspace.making(directory) as making:
        # Before another model is opened: it takes memory.
        examples = fitted.examples if fitted.calibrated else ()
        write_precision(directory, precision, examples, making, device)
    if model.name == DENSE:
        expected = expect_answers(checkpoint.model.eval(), probe.inputs, directory, precision)
    else:
        auto_class = checkpoint.entry.auto_class
        opened = open_checkpoint(
            model.directory, task=checkpoint.task, auto_class=auto_class, verify=False
        )
        expected = expect_answers(opened.model, probe.inputs, directory, precision)
        release(opened.model)
    checks = compare_precision(expected, directory, precision, device, real=True)
    made = {
        "name": f"{model.name}-{precision}",
        "precision": precision,
        "base": model.name,
        "default": False,  # until it is measured
        "onnx_bytes": graph_bytes(directory, precision),
        "scoring": None,
        "checks": checks,
    }
    return model.model_copy(update=made)


def export_bytes(model: nn.Module, precisions: Sequence[str]) -> int:
    """About how large the graphs of a model are, in all the precisions together."""
    return sum(count_parameters(model) * BYTES_PER_WEIGHT[name] for name in precisions)


def written_bytes(model: nn.Module, precisions: Sequence[str], artifacts: int) -> int:
    """About how much a run writes: graphs of the dense model, weights and graphs of artifacts.

    An upper estimate, since it takes the pruned models for as large as the dense one.
    """
    graphs = export_bytes(model, precisions)
    return graphs + artifacts * (graphs + export_bytes(model, [BASE]))


def pruning_facts(
    checkpoint: Checkpoint, mask: Mask, scores: Scores, budget: str, seed: int
) -> dict[str, Any]:
    """The contents of `units.json`: which units are left, and why these."""
    return {
        "schema": 2,
        "model": checkpoint.published_name,
        "revision": checkpoint.revision,
        "task": checkpoint.task,
        "method": scores.method,
        "signature": scores.signature,
        "budget": budget,
        "seed": seed,
        "units": mask.totals(),
        "kept": mask.to_json(),
        **({"dropped_layers": sorted(mask.dropped)} if mask.dropped else {}),
        "scores": {name: _rounded(name, values) for name, values in scores.values.items()},
    }


def _rounded(name: str, scores: Sequence[float]) -> list[float]:
    """Scores of thousands of neurons with six digits, of heads as they are."""
    return list(scores) if units_of(name) == "heads" else [float(f"{x:.6g}") for x in scores]


def verify_reload(checkpoint: Checkpoint, directory: Path, probe: Probe) -> Check:
    """Compare a model and its tokenizer with the files that they were saved to.

    Raises:
        VerificationError: weights differ in a single bit, or a text has other tokens.
    """
    import torch

    opened = open_checkpoint(str(directory), verify=False)
    tokenizers = TokenizerProbe.of(checkpoint, probe.texts, probe.pairs)
    tokenizers.check_saved(directory, opened.tokenizer)
    loaded, saved = opened.model.state_dict(), checkpoint.model.state_dict()
    if set(saved) != set(loaded) or not all(torch.equal(saved[k], loaded[k]) for k in saved):
        raise VerificationError(
            f"the checkpoint in {directory} does not load back as it was saved; please report this",
            id="reloaded-differs",
        )
    detail = f"{len(saved)} tensors, bit for bit"
    return Check(name="reloaded equals saved", largest_difference=0.0, tolerance=0.0, detail=detail)


def describe(
    name: str,
    model: nn.Module,
    mask: Mask,
    macs_share: float,
    budget: str,
    directory: Path,
    checkpoint: Path,
    checks: Sequence[Check],
    selection: str = "",
    recovery: str = "none",
) -> Variant:
    """The facts of an exported float32 model.

    Args:
        directory: with its graphs.
        checkpoint: directory with its weights.
    """
    weights = weight_files(checkpoint, allow_pickle=True)  # that were loaded already
    tokens = count_output_tokens(directory)
    rows, stored = (None, None) if tokens else embedding_rows(model)
    return Variant(
        name=name,
        directory=directory.as_posix(),
        budget=budget,
        kept={name: mask.kept(name) for name in mask.keep if units_of(name) == "heads"},
        heads={name: n for name, n in mask.totals().items() if units_of(name) == "heads"},
        neurons={name: n for name, n in mask.totals().items() if units_of(name) == "neurons"},
        kept_neurons={name: n for name, n in mask.counts().items() if units_of(name) == "neurons"},
        dropped_layers=[layer for layer in mask.layers() if layer in mask.dropped],
        macs_share=macs_share,
        parameters=count_parameters(model),
        checkpoint_bytes=sum(path.stat().st_size for path in weights),
        onnx_bytes=graph_bytes(directory),
        output_tokens=tokens,
        embedding_rows=rows,
        embedding_bytes=stored,
        precision=BASE,
        selection=selection,
        recovery=recovery,
        checks=list(checks),
    )
