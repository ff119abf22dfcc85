"""Saving and exporting models, each checked against the model before, and their facts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from compressor import parallel
from compressor.budgets import Choice
from compressor.errors import VerificationError
from compressor.export.precision_names import BASE, BYTES_PER_WEIGHT
from compressor.export.precisions import compare_precision, expect_answers, write_precision
from compressor.export.source_text import embedding_rows
from compressor.export.task_graphs import Network, export_model, graph_bytes
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.model.checkpoint import Checkpoint, open_checkpoint, round_to, save_checkpoint
from compressor.model.location import weight_files
from compressor.model.memory import release, trim_memory
from compressor.model.sublayers import Mask, units_of
from compressor.model.surgery import verify_surgery, without_skipped
from compressor.model.weights import count_parameters
from compressor.pipeline.engines import DENSE
from compressor.pipeline.inputs import CheckBatches, ModelAndRows
from compressor.recovery import Recovered
from compressor.results import Check, Variant
from compressor.runtime.artifact import count_output_tokens
from compressor.steps import Steps
from compressor.storage.files import written_at_once

if TYPE_CHECKING:
    from torch import nn


def verify(model: nn.Module, pruned: nn.Module, source: ModelAndRows, mask: Mask) -> Check:
    """Compare a pruned model with the one that it was cut from, its units masked."""
    checkpoint, inputs = source.checkpoint, source.check_batches.inputs
    cut = without_skipped(checkpoint, pruned, mask).model
    return parallel.on_main(lambda: verify_surgery(model, cut, checkpoint.layers, mask, inputs))


def save(
    dense: Checkpoint,
    recovered: Recovered,
    choice: Choice,
    check_batches: CheckBatches,
    directory: Path,
    *,
    budget: str,
    seed: int,
) -> tuple[Checkpoint, Check]:
    """Save a pruned model, which loads again bit for bit; its checkpoint, and the check of that."""
    trim_memory()
    mask, scores = choice.mask, choice.scores
    small = without_skipped(dense, recovered.model, mask)
    round_to(small.model, dense.dtype)  # so that checks are of what is stored
    record = {
        "schema": 2,
        "model": dense.published_name,
        "revision": dense.revision,
        "task": dense.task,
        "method": scores.method,
        "signature": scores.signature,
        "budget": budget,
        "seed": seed,
        "units": mask.totals(),
        "kept": mask.to_json(),
        **({"dropped_layers": sorted(mask.dropped)} if mask.dropped else {}),
        "scores": {name: _rounded(name, values) for name, values in scores.values.items()},
        "selection": choice.text,
        "recovery": recovered.text or "none",
    }
    parallel.on_main(lambda: save_checkpoint(dense, small.model, record, directory))
    return small, parallel.on_main(lambda: verify_reload(small, directory, check_batches))


def _rounded(name: str, scores: Sequence[float]) -> list[float]:
    """Scores of thousands of neurons with six digits, of heads as they are."""
    return list(scores) if units_of(name) == "heads" else [float(f"{x:.6g}") for x in scores]


def verify_reload(checkpoint: Checkpoint, directory: Path, check_batches: CheckBatches) -> Check:
    """Compare a model, bit for bit, and its tokenizer with the files that they were saved to."""
    import torch

    opened = open_checkpoint(str(directory), verify=False)
    tokenizers = TokenizerProbe.of(checkpoint, check_batches.texts, check_batches.pairs)
    tokenizers.check_saved(directory, opened.tokenizer)
    loaded, saved = opened.model.state_dict(), checkpoint.model.state_dict()
    if set(saved) != set(loaded) or not all(torch.equal(saved[k], loaded[k]) for k in saved):
        raise VerificationError(
            f"the checkpoint in {directory} does not load back as it was saved; please report this",
            id="reloaded-differs",
        )
    detail = f"{len(saved)} tensors, bit for bit"
    return Check(name="reloaded equals saved", largest_difference=0.0, tolerance=0.0, detail=detail)


def keep_weights(steps: Steps, artifact: str, model: nn.Module) -> str:
    """Keep the weights that belong to an artifact's choice of units; their SHA-256."""
    path = _weights_of(steps, artifact)

    def write() -> str:
        # Tied weights share memory, which the file format refuses: every name gets a copy.
        tensors = {n: t.to("cpu", copy=True).contiguous() for n, t in model.state_dict().items()}
        with written_at_once(path) as staged:
            save_file(tensors, staged)
        return steps.wrote(path)

    return parallel.on_main(write)


def chosen_model(steps: Steps, artifact: str, choice: Choice, checkpoint: Checkpoint) -> nn.Module:
    """What an artifact's units are cut from: the dense model, or the weights of its choice."""
    if not choice.weights:
        return checkpoint.model
    model = copy.deepcopy(checkpoint.model)
    model.load_state_dict(load_file(_weights_of(steps, artifact)))
    return model


def _weights_of(steps: Steps, artifact: str) -> Path:
    return steps.state / f"weights-{artifact}.safetensors"


def export(
    checkpoint: Checkpoint,
    tokens: list[int] | None,
    check_batches: CheckBatches,
    directory: Path,
    engines: Sequence[str],
) -> list[Check]:
    """Write float32 graphs, and what engines need beside them, and compare them with PyTorch."""
    network = Network(checkpoint, checkpoint.model, checkpoint.mask, tokens)
    on = check_batches
    return export_model(network, on.batches, on.texts, directory, engines, on.pairs)


def export_dense(
    *, source: ModelAndRows, directory: Path, engines: Sequence[str], steps: Steps
) -> Variant:
    """Export the dense model, to be compared with, and describe it."""
    checkpoint = source.checkpoint
    with steps.making(directory) as making:
        tokens = source.task.graphs.output_tokens(checkpoint)
        checks = export(checkpoint, tokens, source.check_batches, making, engines)
    full = Mask.full(checkpoint.layers)
    return describe(
        DENSE, checkpoint.model, full, 1.0, "all units", directory, checkpoint.directory, checks
    )


def export_precision(
    model: Variant,
    precision: str,
    *,
    source: ModelAndRows,
    device: str,
    steps: Steps,
) -> Variant:
    """Write one more precision of an exported model and compare it with the float32 network.

    It is compared on the device that is measured on, if that has kernels for the precision.
    """
    directory, checkpoint = Path(model.directory), source.checkpoint
    inputs = source.check_batches.inputs
    with steps.making(directory) as making:
        # Before another model is opened: it takes memory.
        examples = source.examples if source.calibrated else ()
        write_precision(directory, precision, examples, making, device)
    if model.name == DENSE:
        expected = expect_answers(checkpoint.model.eval(), inputs, directory, precision)
    else:
        auto_class = checkpoint.entry.auto_class
        opened = open_checkpoint(
            model.directory, task=checkpoint.task, auto_class=auto_class, verify=False
        )
        expected = expect_answers(opened.model, inputs, directory, precision)
        release(opened.model)
    checks = compare_precision(expected, directory, precision, device, real=True)
    update = {
        "name": f"{model.name}-{precision}",
        "precision": precision,
        "base": model.name,
        "default": False,  # until it is measured
        "onnx_bytes": graph_bytes(directory, precision),
        "scoring": None,
        "checks": checks,
    }
    return model.model_copy(update=update)


def export_bytes(model: nn.Module, precisions: Sequence[str]) -> int:
    """About how large the graphs of a model are, in all the precisions together."""
    return sum(count_parameters(model) * BYTES_PER_WEIGHT[name] for name in precisions)


def describe(
    name: str,
    model: nn.Module,
    mask: Mask,
    macs_share: float,
    budget: str,
    directory: Path,
    checkpoint: Path,
    checks: Sequence[Check],
) -> Variant:
    """The facts of an exported float32 model, with its graphs and its weights in directories."""
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
        recovery="none",
        checks=list(checks),
    )
