"""What a checkpoint is made of, and hence the most that removing heads can gain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from compressor.export.vocabulary import output_tokens
from compressor.model.checkpoint import Checkpoint
from compressor.model.weights import count_parameters
from compressor.throughput.limits import WorkSize, operations, total_macs
from compressor.throughput.shapes import ModelShape, shape_of

SHAPES = ((16, 16), (16, 128), (16, 512))  # (batch, tokens)


@dataclass(frozen=True)
class KindFacts:
    """One kind of attention: layers, heads left in each, and the parameters these own."""

    kind: str
    layers: int
    heads: list[int]
    head_dim: int
    parameters: int


@dataclass(frozen=True)
class Inspection:
    """All that `compress inspect` shows."""

    model: str
    revision: str | None
    model_type: str
    task: str
    dtype: str
    parameters: int
    kinds: list[KindFacts]
    parameter_share: float  # of all parameters, those that go with the heads
    macs: list[dict[str, Any]]  # per shape: share of multiply-adds, most that can be gained


def inspect_checkpoint(checkpoint: Checkpoint) -> Inspection:
    """Count what the attention heads of a checkpoint own.

    A head owns its rows of the query, key and value projections with their biases, and its
    columns of the output projection; the output bias stays when all heads are gone.
    """
    kinds = [_kind_facts(checkpoint, kind) for kind in checkpoint.mask.kinds()]
    parameters = count_parameters(checkpoint.model)
    config: dict[str, Any] = checkpoint.model.config.to_dict()  # type: ignore[union-attr,operator]
    tokens = output_tokens(checkpoint)
    scored = None if tokens is None else len(tokens)
    dense = shape_of(config, checkpoint.mask.counts(), checkpoint.layers[0].unit_width, scored)
    return Inspection(
        model=checkpoint.name,
        revision=checkpoint.revision,
        model_type=str(config["model_type"]),
        task=checkpoint.entry.task,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        parameters=parameters,
        kinds=kinds,
        parameter_share=sum(k.parameters for k in kinds) / parameters,
        macs=[_share(dense, *shape) for shape in SHAPES],
    )


def _kind_facts(checkpoint: Checkpoint, kind: str) -> KindFacts:
    layers = [layer for layer in checkpoint.layers if layer.kind == kind]
    heads = [len(checkpoint.mask.kept(layer.name)) for layer in layers]
    owned = 0
    for layer, count in zip(layers, heads, strict=True):
        if count:
            linears = layer.inputs.values()
            owned += sum(
                p.numel()
                for path in linears
                for p in checkpoint.model.get_submodule(path).parameters()
            )
            owned += checkpoint.model.get_submodule(layer.output).weight.numel()  # type: ignore[operator]
    return KindFacts(kind, len(layers), heads, layers[0].unit_width, owned)


def _share(dense: ModelShape, batch: int, tokens: int) -> dict[str, Any]:
    """Multiply-adds with all heads that there are, and with none at all."""
    target = tokens if dense.task == "translation" else 0
    size = WorkSize(batch, tokens, target)
    none_left = replace(
        dense,
        encoder_heads=(0,) * len(dense.encoder_heads),
        decoder_heads=(0,) * len(dense.decoder_heads),
        cross_heads=(0,) * len(dense.cross_heads),
    )
    full, none = (total_macs(operations(shape, size)) for shape in (dense, none_left))
    return {
        "batch_size": batch,
        "source_tokens": tokens,
        "target_tokens": target,
        "attention_share": 1 - none / full,
        "most_speedup": full / none,
    }
