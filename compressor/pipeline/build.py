"""What a run builds: descriptions of models, checks of what was saved, other precisions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import VerificationError
from compressor.export import export_model, graph_bytes
from compressor.export.precision_names import BASE, BYTES_PER_WEIGHT
from compressor.export.precisions import compare_precision, write_precision
from compressor.export.vocabulary import output_tokens
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.weights import count_parameters
from compressor.pipeline.context import Context
from compressor.pipeline.stages import DENSE, stage
from compressor.results import Check, Variant
from compressor.runtime.vocabulary import count_output_tokens

if TYPE_CHECKING:
    from torch import nn

_NOT_SAFETENSORS = "*.bin"


@stage("dense")
def export_dense(context: Context, directory: Path) -> Variant:
    """Export the dense model, to be compared with, and describe it."""
    checkpoint, probe = context.checkpoint, context.probe
    with context.workspace.making(directory) as making:
        checks = export_model(
            checkpoint, checkpoint.model, context.full, probe.batches, probe.texts, making,
            output_tokens(checkpoint),
        )  # fmt: skip
    stored = sum(path.stat().st_size for path in checkpoint.directory.glob("*.safetensors"))
    stored = stored or sum(p.stat().st_size for p in checkpoint.directory.glob(_NOT_SAFETENSORS))
    share = context.costs.share(context.full)
    return describe(
        DENSE, checkpoint.model, context.full, share, "all units", directory, stored, checks
    )


def export_precisions(context: Context, model: Variant) -> list[Variant]:
    """The other precisions that a run asks for of an exported float32 model."""
    wanted = [precision for precision in context.precisions if precision != model.precision]
    return [_export_precision(context, model, precision) for precision in wanted]


@stage("precision")
def _export_precision(context: Context, model: Variant, precision: str) -> Variant:
    """Write one more precision of an exported model and compare it with the float32 network.

    It is compared on the device that is measured on, if that has kernels for the precision.
    """
    directory = Path(model.directory)
    calibrated = context.data.calibration is not None
    examples = context.examples if calibrated else ()
    with context.workspace.making(directory) as making:
        # Before another model is opened: it takes memory.
        write_precision(directory, precision, examples, making)
    dense = model.name == DENSE
    opened = context.checkpoint if dense else open_checkpoint(model.directory, verify=False)
    inputs = [batch.inputs() for batch in context.probe.batches]
    checks = compare_precision(
        opened.model.eval(), inputs, directory, precision, context.device, real=True
    )
    made = {
        "name": f"{model.name}-{precision}",
        "precision": precision,
        "base": model.name,
        "default": False,  # until it is measured
        "onnx_bytes": graph_bytes(directory, precision),
        "checks": checks,
    }
    return model.model_copy(update=made)


def export_bytes(model: nn.Module, precisions: Sequence[str]) -> int:
    """About how large the graphs of a model are, in all the precisions together."""
    return sum(count_parameters(model) * BYTES_PER_WEIGHT[name] for name in precisions)


def written_bytes(context: Context) -> int:
    """About how much a run writes: graphs of the dense model, weights and graphs of each plan.

    An upper estimate, since it takes the pruned models for as large as the dense one.
    """
    model: nn.Module = context.checkpoint.model
    graphs = export_bytes(model, context.precisions)
    weights = count_parameters(model) * BYTES_PER_WEIGHT[BASE]
    return graphs + len(context.plans) * (graphs + weights)


def pruning_facts(
    checkpoint: Checkpoint, mask: Mask, scores: Scores, budget: str, seed: int
) -> dict[str, Any]:
    """The contents of `units.json`: which units are left, and why these."""
    return {
        "schema": 2,
        "model": checkpoint.name,
        "revision": checkpoint.revision,
        "method": scores.method,
        "signature": scores.signature,
        "budget": budget,
        "seed": seed,
        "units": mask.totals(),
        "kept": mask.to_json(),
        "scores": {name: _rounded(name, values) for name, values in scores.values.items()},
    }


def _rounded(name: str, scores: Sequence[float]) -> list[float]:
    """Scores of thousands of neurons with six digits, of heads as they are."""
    return list(scores) if units_of(name) == "heads" else [float(f"{x:.6g}") for x in scores]


def verify_reload(model: nn.Module, directory: Path) -> Check:
    """Compare a model with the checkpoint that it was saved to.

    Raises:
        VerificationError: they differ in a single bit.
    """
    import torch

    loaded = open_checkpoint(str(directory), verify=False).model.state_dict()
    saved = model.state_dict()
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
    checkpoint_bytes: int,
    checks: Sequence[Check],
    selection: str = "",
    recovery: str = "none",
) -> Variant:
    """The facts of an exported float32 model."""
    return Variant(
        name=name,
        directory=directory.as_posix(),
        budget=budget,
        kept={name: mask.kept(name) for name in mask.keep if units_of(name) == "heads"},
        heads={name: n for name, n in mask.totals().items() if units_of(name) == "heads"},
        neurons={name: n for name, n in mask.totals().items() if units_of(name) == "neurons"},
        kept_neurons={name: n for name, n in mask.counts().items() if units_of(name) == "neurons"},
        macs_share=macs_share,
        parameters=count_parameters(model),
        checkpoint_bytes=checkpoint_bytes,
        onnx_bytes=graph_bytes(directory),
        output_tokens=count_output_tokens(directory),
        precision=BASE,
        selection=selection,
        recovery=recovery,
        checks=list(checks),
    )
