"""What a checkpoint is made of, and the most that removing its heads can gain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from compressor.export.vocabulary import output_tokens
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import units_of
from compressor.model.weights import count_parameters
from compressor.throughput.limits import WorkSize, operations, total_macs
from compressor.throughput.shapes import ModelShape, shape_of

SHAPES = ((16, 16), (16, 128), (16, 512))  # (batch size, tokens per row)


@dataclass(frozen=True)
class KindFacts:
    """One kind of attention.

    Args:
        layers: how many attention layers of the kind there are.
        heads: how many heads each of them has.
        parameters: how many belong to these heads (see `inspect_checkpoint`).
    """

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
    parameter_share: float  # the heads' parameters over all parameters
    macs: list[dict[str, Any]]  # for each of SHAPES: the heads' multiply-adds, most speed-up


def inspect_checkpoint(checkpoint: Checkpoint) -> Inspection:
    """Count the parameters and multiply-adds of a checkpoint's attention heads.

    A head's parameters are its rows of the query, key and value projections with their biases, and
    its columns of the output projection; the output bias remains when all heads are removed.
    """
    kinds = [
        _kind_facts(checkpoint, kind)
        for kind in checkpoint.mask.kinds()
        if units_of(kind) == "heads"
    ]
    parameters = count_parameters(checkpoint.model)
    config: dict[str, Any] = checkpoint.model.config.to_dict()  # type: ignore[union-attr,operator]
    tokens = output_tokens(checkpoint)
    scored = None if tokens is None else len(tokens)
    shape = shape_of(config, checkpoint.mask.counts(), scored)
    return Inspection(
        model=checkpoint.name,
        revision=checkpoint.revision,
        model_type=str(config["model_type"]),
        task=checkpoint.entry.task,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        parameters=parameters,
        kinds=kinds,
        parameter_share=sum(k.parameters for k in kinds) / parameters,
        macs=[_macs(shape, batch, tokens) for batch, tokens in SHAPES],
    )


def _kind_facts(checkpoint: Checkpoint, kind: str) -> KindFacts:
    layers = [layer for layer in checkpoint.layers if layer.kind == kind]
    heads = [len(checkpoint.mask.kept(layer.name)) for layer in layers]
    owned = 0
    for layer, count in zip(layers, heads, strict=True):
        if count:
            for path in layer.inputs.values():
                inputs = checkpoint.model.get_submodule(path).parameters()
                owned += sum(parameter.numel() for parameter in inputs)
            owned += checkpoint.model.get_submodule(layer.output).weight.numel()  # type: ignore[operator]
    return KindFacts(kind, len(layers), heads, layers[0].unit_width, owned)


def _macs(shape: ModelShape, batch: int, tokens: int) -> dict[str, Any]:
    """The heads' share of the multiply-adds, and the speed-up limit if all heads were removed."""
    target = tokens if shape.decoder_heads else 0
    size = WorkSize(batch, tokens, target)
    without_heads = replace(
        shape,
        encoder_heads=(0,) * len(shape.encoder_heads),
        decoder_heads=(0,) * len(shape.decoder_heads),
        cross_heads=(0,) * len(shape.cross_heads),
    )
    full, rest = (total_macs(operations(one, size)) for one in (shape, without_heads))
    return {
        "batch_size": batch,
        "source_tokens": tokens,
        "target_tokens": target,
        "attention_share": 1 - rest / full,
        "most_speedup": full / rest,
    }
