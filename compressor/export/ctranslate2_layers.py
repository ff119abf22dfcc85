"""The layers of a translator in CTranslate2's specification, with padding where it is needed.

CTranslate2 has one number of heads for the encoder and one for the decoder; its own converter
accepts a pruned model, which then gives wrong outputs. Here every attention is padded to the
largest number of heads of its stack, with heads whose weights are zero. Feed-forward parts may have
different widths; one without neurons gets a few with zero weights.

The relative position bias (T5) is written for every layer, with columns for its kept heads.
Attributes, layers and files are written by CTranslate2's own loaders and specifications.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from compressor.errors import InputError
from compressor.export.task_graphs import Network
from compressor.export.vocabulary import OutputLayer
from compressor.model.modeling_pruned import BIAS_TABLE, OutputBias

_EMPTY = 8  # zero neurons of a feed-forward part without neurons
_STACKS = {"encoder": ("encoder_self",), "decoder": ("decoder_self", "cross")}


def specification(network: Network) -> Any:
    """The model's layers, without its vocabulary and without a bias of the logits.

    Raises:
        InputError: CTranslate2 does not have the model's activation.
    """
    # Imported here, since CTranslate2 is an optional extra.
    from ctranslate2.converters import transformers as converters
    from ctranslate2.specs import transformer_spec

    model: Any = network.model.eval()
    parts = {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    form: _Form = (_T5 if network.checkpoint.entry.position_bias else _Bart)(network)
    activation = getattr(model.config, form.activation)
    if activation not in converters._SUPPORTED_ACTIVATIONS:
        raise InputError(
            f"{network.checkpoint.name} has the activation {activation}, which CTranslate2 lacks; "
            "leave ctranslate2 out and use the engine onnxruntime",
            id="architecture-not-for-ctranslate2",
        )
    spec = transformer_spec.TransformerSpec.from_config(
        tuple(len(getattr(part, form.layers)) for part in parts.values()),
        1,  # head; replaced by `set_head_dim` and `num_heads` below
        activation=converters._SUPPORTED_ACTIVATIONS[activation],
        **form.options(parts["encoder"]),
    )
    counts = network.mask.counts()
    for name, part in parts.items():
        kinds = [x for x in network.checkpoint.layers if x.kind in _STACKS[name]]
        # One zero head if no attention of the stack has any left.
        form.heads = max(1, *(counts[x.name] for x in kinds))
        target = getattr(spec, name)
        # Of the type that CTranslate2's own specifications have.
        target.num_heads = np.int16(form.heads)
        for layer in target.layer:
            form.set_head_dim(layer, kinds[0].unit_width)
        form.load(target, part, name)
    form.loader.set_linear(spec.decoder.projection, model.lm_head)
    scale = OutputLayer(model, None).scale
    if scale != 1:
        spec.decoder.scale_outputs = np.float32(scale)
    return spec


class _Form(ABC):
    """Adapts one family of architectures to CTranslate2's loader.

    Args:
        loader_name: of the class of CTranslate2.
        activation: name of the activation in the configuration.
        layers: attribute of an encoder or decoder that holds its layers.
        projections: attributes of an attention: query, key, value, output.
        attention: further options of an attention's specification.
        heads: number of heads of every attention of a stack.
    """

    loader_name: ClassVar[str]
    activation: ClassVar[str]
    layers: ClassVar[str]
    projections: ClassVar[tuple[str, ...]]
    attention: ClassVar[Mapping[str, bool]] = {}
    heads = 1

    def __init__(self, network: Network) -> None:
        from ctranslate2.converters import transformers as converters

        self.model, self.mask, self.entry = network.model, network.mask, network.checkpoint.entry
        self.sublayers = {x.name: x for x in network.checkpoint.layers}
        self.loader: Any = getattr(converters, self.loader_name)()

    @abstractmethod
    def options(self, encoder: Any) -> dict[str, Any]:
        """Further options of the specification."""

    @abstractmethod
    def load(self, target: Any, part: Any, stack: str) -> None:
        """Write an encoder or decoder into its specification; `stack` says which it is."""

    def set_head_dim(self, layer: Any, head_dim: int) -> None:
        """Set the size of heads, which in a pruned model is not the width over `num_heads`.

        It is an argument of the constructor, so attentions get new specifications.
        """
        from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec

        for name, is_self in (("self_attention", True), ("attention", False)):
            if hasattr(layer, name):
                # Cross-attention has no relative positions.
                options = self.attention if is_self else {**self.attention, BIAS_TABLE: False}
                spec = MultiHeadAttentionSpec(self_attention=is_self, head_dim=head_dim, **options)
                setattr(layer, name, spec)

    def padded_heads(self, name: str) -> SimpleNamespace:
        """The projections of an attention, padded with heads of zeros."""
        sublayer = self.sublayers[name]
        output: Any = self.model.get_submodule(sublayer.output)
        is_empty = isinstance(output, OutputBias)
        width = output.width if is_empty else output.out_features
        size = self.heads * sublayer.unit_width

        def rows(path: str) -> SimpleNamespace:
            weight, bias = torch.zeros(size, width), torch.zeros(size)  # kept heads first
            if not is_empty:
                linear: Any = self.model.get_submodule(path)
                weight[: linear.out_features] = linear.weight
                if linear.bias is not None:
                    bias[: linear.out_features] = linear.bias
            return _linear(weight, None if output.bias is None else bias)

        columns = torch.zeros(width, size)  # of the output projection
        if not is_empty:
            columns[:, : output.in_features] = output.weight
        padded = [*map(rows, sublayer.inputs.values()), _linear(columns, output.bias)]
        return SimpleNamespace(**dict(zip(self.projections, padded, strict=True)))

    def padded_neurons(self, name: str) -> list[SimpleNamespace]:
        """The projections of a feed-forward part: up, or gate and up, and down."""
        sublayer = self.sublayers[name]
        output: Any = self.model.get_submodule(sublayer.output)
        if isinstance(output, OutputBias):
            up, down = torch.zeros(_EMPTY, output.width), torch.zeros(output.width, _EMPTY)
            none = None if output.bias is None else torch.zeros(_EMPTY)
            return [*(_linear(up, none) for _ in sublayer.inputs), _linear(down, output.bias)]
        inputs: list[Any] = [self.model.get_submodule(x) for x in sublayer.inputs.values()]
        return [_linear(x.weight, x.bias) for x in (*inputs, output)]


class _Bart(_Form):
    """BART, Marian, mBART, Pegasus, M2M100."""

    loader_name = "BartLoader"  # Marian's has decoders start from a zero embedding
    activation, layers = "activation_function", "layers"
    projections = ("q_proj", "k_proj", "v_proj", "out_proj")

    def options(self, encoder: Any) -> dict[str, Any]:
        return {
            "pre_norm": hasattr(encoder, "layer_norm"),
            "layernorm_embedding": hasattr(encoder, "layernorm_embedding"),
        }

    def load(self, target: Any, part: Any, stack: str) -> None:
        norms = ("layer_norm", "layernorm_embedding")
        names = ("config", "embed_positions", "embed_tokens", "embed_scale", *norms)
        shared = {name: getattr(part, name) for name in names if hasattr(part, name)}
        table = part.embed_positions
        if hasattr(table, "weights"):  # M2M100's name of its table
            shared["embed_positions"] = SimpleNamespace(weight=table.weights, offset=table.offset)
        layers = []
        for i, layer in enumerate(part.layers):
            up, down = self.padded_neurons(f"{stack}_ffn.{i}")
            adapted = SimpleNamespace(
                self_attn=self.padded_heads(f"{stack}_self.{i}"),
                self_attn_layer_norm=layer.self_attn_layer_norm,
                fc1=up, fc2=down, final_layer_norm=layer.final_layer_norm,
            )  # fmt: skip
            if stack == "decoder":
                adapted.encoder_attn = self.padded_heads(f"cross.{i}")
                adapted.encoder_attn_layer_norm = layer.encoder_attn_layer_norm
            layers.append(adapted)
        getattr(self.loader, f"set_{stack}")(target, SimpleNamespace(layers=layers, **shared))


class _T5(_Form):
    """T5, mT5, UMT5."""

    loader_name = "UMT5Loader"  # which reads a bias of each layer's own
    activation, layers = "dense_act_fn", "block"
    projections = ("q", "k", "v", "o")
    attention: ClassVar[Mapping[str, bool]] = {BIAS_TABLE: True, "rms_norm": True}

    def options(self, encoder: Any) -> dict[str, Any]:
        gated = bool(self.model.config.is_gated_act)  # type: ignore[union-attr]
        return {"pre_norm": True, "ffn_glu": gated, **self.attention}

    def load(self, target: Any, part: Any, stack: str) -> None:
        blocks = [
            SimpleNamespace(layer=self._layers(stack, i, block.layer))
            for i, block in enumerate(part.block)
        ]
        adapted = SimpleNamespace(
            final_layer_norm=part.final_layer_norm, embed_tokens=part.embed_tokens, block=blocks
        )
        self.loader.set_stack(target, adapted, is_decoder=stack == "decoder")

    def _layers(self, stack: str, number: int, layers: Any) -> list[SimpleNamespace]:
        name = f"{stack}_self.{number}"
        attention = self.padded_heads(name)
        self._add_bias(attention, name)
        adapted = [SimpleNamespace(SelfAttention=attention, layer_norm=layers[0].layer_norm)]
        if stack == "decoder":
            cross = self.padded_heads(f"cross.{number}")
            cross.has_relative_attention_bias = False
            adapted += [SimpleNamespace(EncDecAttention=cross, layer_norm=layers[1].layer_norm)]
        *inner, down = self.padded_neurons(f"{stack}_ffn.{number}")
        names = ("wi",) if len(inner) == 1 else ("wi_0", "wi_1")
        dense = SimpleNamespace(**dict(zip(names, inner, strict=True)), wo=down)
        adapted += [SimpleNamespace(DenseReluDense=dense, layer_norm=layers[-1].layer_norm)]
        return adapted

    def _add_bias(self, attention: SimpleNamespace, name: str) -> None:
        """Add the columns of the position bias for the kept heads, and zeros for padding."""
        config: Any = self.model.config
        sublayer, kept = self.sublayers[name], self.mask.kept(name)
        table = torch.zeros(config.relative_attention_num_buckets, self.heads)  # [buckets, heads]
        if kept:
            assert sublayer.biased_by is not None
            stored: Any = self.model.get_submodule(sublayer.biased_by).get_submodule(BIAS_TABLE)
            # A layer's own table has columns for the kept heads only.
            of_first = self.entry.position_bias == "first_layer"
            table[:, : len(kept)] = stored.weight[:, kept] if of_first else stored.weight
        attention.has_relative_attention_bias = True
        attention.relative_attention_bias = SimpleNamespace(weight=table)
        attention.relative_attention_max_distance = config.relative_attention_max_distance


def _linear(weight: Tensor, bias: Tensor | None) -> SimpleNamespace:
    return SimpleNamespace(weight=weight, bias=bias)
