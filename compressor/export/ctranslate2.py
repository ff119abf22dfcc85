"""Export of translators, also unevenly pruned ones, to directories for `ctranslate2.Translator`.

CTranslate2 has one number of heads per stack: attentions are padded to it with heads of zeros. Its
own converter writes a pruned model that gives wrong outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from compressor.errors import InputError
from compressor.export.task_graphs import Batches, Network
from compressor.export.verify import translation_check
from compressor.export.vocabulary import OutputLayer, bias_of
from compressor.model.generation import generation_settings, greedy, save_generation
from compressor.model.languages import languages
from compressor.model.modeling_pruned import BIAS_TABLE, OutputBias
from compressor.model.tokenizer import save_tokenizer, target_ids
from compressor.runtime.engines import TokenGenerator
from compressor.runtime.engines.ctranslate2 import OpenedTranslator
from compressor.runtime.generation import Generation
from compressor.steps.results import Check

STORED = {"fp32": "float32", "fp16": "float16", "int8": "int8"}  # precision -> CTranslate2's name
NEVER = -1e9  # bias of tokens that are never generated
_EMPTY = 8  # zero neurons of a feed-forward part that has none left
_STACKS = {"encoder": ("encoder_self",), "decoder": ("decoder_self", "cross")}


@torch.no_grad()
def write_translator(network: Network, directory: Path, precision: str) -> None:
    """Write the model, its vocabulary, and the files of its tokenizer.

    Args:
        network: a translator.
        directory: made if it is missing.
        precision: that weights are stored in; `ctranslate2.Translator` computes in it by default.

    Raises:
        InputError: CTranslate2 does not have the model's activation.
    """
    model: Any = network.model
    spec = _specification(network)
    # CTranslate2's converter for Marian drops the last token, and starts from a zero embedding,
    # unlike transformers. So the vocabulary stays complete, and a bias bans tokens.
    usual = bias_of(model).detach().clamp(min=NEVER)  # -inf bans a token
    bias = torch.full_like(usual, NEVER)  # [tokens]
    scored = _scored(network)
    bias[scored] = usual[scored]
    settings = Generation(**generation_settings(model))
    bias[[*settings.banned, *settings.suppress_tokens]] = NEVER
    spec.decoder.projection.bias = bias
    _name_tokens(spec, model, network.checkpoint.tokenizer)
    spec.validate()
    spec.optimize(quantization=STORED[precision])
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))
    save_generation(model.generation_config, directory)
    save_tokenizer(network.checkpoint.tokenizer, directory)


def _scored(network: Network) -> list[int]:
    """Ids of the tokens that can be generated."""
    size: int = network.model.get_output_embeddings().out_features  # type: ignore[operator]
    return [*range(size)] if network.tokens is None else network.tokens


def _name_tokens(spec: Any, model: Any, tokenizer: Any) -> None:
    settings = generation_settings(model)
    for name in ("bos_token", "eos_token", "unk_token"):
        if getattr(tokenizer, name) is not None:
            setattr(spec.config, name, getattr(tokenizer, name))
    # The vocabulary of M2M100's tokenizer lacks its languages.
    further = {i: tokenizer.convert_ids_to_tokens(i) for i in languages(tokenizer).values()}

    def names(ids: Mapping[str, int], rows: int) -> list[str]:
        """The token of each row of a table, or a made-up name."""
        known = {number: token for token, number in ids.items()} | further
        return [known.get(number, f"<unused {number}>") for number in range(rows)]

    sources = len(model.get_encoder().embed_tokens.weight)
    target = names(target_ids(tokenizer), model.get_output_embeddings().out_features)
    if settings["eos_token_id"]:  # the model's, which may differ from the tokenizer's
        spec.config.eos_token = target[settings["eos_token_id"][0]]
    spec.config.decoder_start_token = target[settings["decoder_start_token_id"]]
    spec.register_source_vocabulary(names(tokenizer.get_vocab(), sources))
    spec.register_target_vocabulary(target)


def _specification(network: Network) -> Any:
    """The model without its vocabulary and without a bias of the logits.

    Raises:
        InputError: CTranslate2 does not have its activation.
    """
    from ctranslate2.converters import transformers as converters
    from ctranslate2.specs import attention_spec, transformer_spec

    model: Any = network.model.eval()
    parts = {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    form: _T5 | _Bart = (_T5 if network.checkpoint.entry.position_bias else _Bart)(network)
    activation = getattr(model.config, form.activation)
    if activation not in converters._SUPPORTED_ACTIVATIONS:
        raise InputError(
            f"{network.checkpoint.name} has the activation {activation}, which CTranslate2 lacks; "
            "leave ctranslate2 out and use the engine onnxruntime",
            id="architecture-not-for-ctranslate2",
        )
    spec = transformer_spec.TransformerSpec.from_config(
        tuple(len(getattr(part, form.layers)) for part in parts.values()),
        1,  # head; replaced below
        activation=converters._SUPPORTED_ACTIVATIONS[activation],
        **form.options(parts["encoder"]),
    )
    counts = network.mask.counts()
    for name, part in parts.items():
        attentions = [x for x in network.checkpoint.layers if x.kind in _STACKS[name]]
        # One zero head if no attention of the stack has any left.
        form.heads = max(1, *(counts[x.name] for x in attentions))
        target = getattr(spec, name)
        target.num_heads = np.int16(form.heads)  # the type of CTranslate2's own
        # The size of a pruned model's heads, which is not the width over their number, is an
        # argument of the constructor.
        for layer, attribute in product(target.layer, ("self_attention", "attention")):
            if hasattr(layer, attribute):
                is_self = attribute == "self_attention"
                options = form.attention if is_self else {**form.attention, BIAS_TABLE: False}
                attention = attention_spec.MultiHeadAttentionSpec(
                    self_attention=is_self, head_dim=attentions[0].unit_width, **options
                )
                setattr(layer, attribute, attention)
        form.load(target, part, name)
    form.loader.set_linear(spec.decoder.projection, model.lm_head)
    scale = OutputLayer(model, None).scale
    if scale != 1:
        spec.decoder.scale_outputs = np.float32(scale)
    return spec


class _Form:
    """Adapts one family of architectures to CTranslate2's loader.

    Args:
        network: a translator.
    """

    loader_name: ClassVar[str]  # of CTranslate2's class
    activation: ClassVar[str]  # its name in the configuration
    layers: ClassVar[str]  # attribute of an encoder or decoder
    projections: ClassVar[tuple[str, ...]]  # of an attention: query, key, value, output
    attention: ClassVar[Mapping[str, bool]] = {}  # further options of its specification
    heads = 1  # of every attention of a stack

    def __init__(self, network: Network) -> None:
        from ctranslate2.converters import transformers as converters

        self.model = network.model
        self.mask = network.mask
        self.entry = network.checkpoint.entry
        self.sublayers = {x.name: x for x in network.checkpoint.layers}
        self.loader: Any = getattr(converters, self.loader_name)()

    def padded_heads(self, name: str) -> SimpleNamespace:
        """The projections of an attention, with heads of zeros behind its own.

        Args:
            name: of the sublayer.

        Returns:
            The attributes `projections`, each with a `weight` and a `bias`.
        """
        sublayer = self.sublayers[name]
        output: Any = self.model.get_submodule(sublayer.output)
        is_empty = isinstance(output, OutputBias)
        width = output.width if is_empty else output.out_features
        size = self.heads * sublayer.unit_width

        def rows(path: str) -> SimpleNamespace:
            weight, bias = torch.zeros(size, width), torch.zeros(size)
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
    """The family of BART: also Marian, mBART, Pegasus, M2M100."""

    loader_name = "BartLoader"  # Marian's has decoders start from a zero embedding
    activation, layers = "activation_function", "layers"
    projections = ("q_proj", "k_proj", "v_proj", "out_proj")

    def options(self, encoder: Any) -> dict[str, Any]:
        """Options of the whole specification."""
        return {
            "pre_norm": hasattr(encoder, "layer_norm"),
            "layernorm_embedding": hasattr(encoder, "layernorm_embedding"),
        }

    def load(self, target: Any, part: Any, stack: str) -> None:
        """Write the "encoder" or "decoder" into its specification."""
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
                fc1=up,
                fc2=down,
                final_layer_norm=layer.final_layer_norm,
            )
            if stack == "decoder":
                adapted.encoder_attn = self.padded_heads(f"cross.{i}")
                adapted.encoder_attn_layer_norm = layer.encoder_attn_layer_norm
            layers.append(adapted)
        getattr(self.loader, f"set_{stack}")(target, SimpleNamespace(layers=layers, **shared))


class _T5(_Form):
    """The family of T5: also mT5, UMT5."""

    loader_name = "UMT5Loader"  # which reads a bias of each layer's own
    activation, layers = "dense_act_fn", "block"
    projections = ("q", "k", "v", "o")
    attention: ClassVar[Mapping[str, bool]] = {BIAS_TABLE: True, "rms_norm": True}

    def options(self, encoder: Any) -> dict[str, Any]:
        """Options of the whole specification."""
        gated = bool(self.model.config.is_gated_act)  # type: ignore[union-attr]
        return {"pre_norm": True, "ffn_glu": gated, **self.attention}

    def load(self, target: Any, part: Any, stack: str) -> None:
        """Write the "encoder" or "decoder" into its specification."""
        blocks = []
        for i, block in enumerate(part.block):
            name, layers = f"{stack}_self.{i}", block.layer
            attention = self.padded_heads(name)
            self._add_bias(attention, name)
            adapted = [SimpleNamespace(SelfAttention=attention, layer_norm=layers[0].layer_norm)]
            if stack == "decoder":
                cross = self.padded_heads(f"cross.{i}")
                cross.has_relative_attention_bias = False
                adapted += [SimpleNamespace(EncDecAttention=cross, layer_norm=layers[1].layer_norm)]
            *inner, down = self.padded_neurons(f"{stack}_ffn.{i}")
            names = ("wi",) if len(inner) == 1 else ("wi_0", "wi_1")
            dense = SimpleNamespace(**dict(zip(names, inner, strict=True)), wo=down)
            adapted += [SimpleNamespace(DenseReluDense=dense, layer_norm=layers[-1].layer_norm)]
            blocks.append(SimpleNamespace(layer=adapted))
        adapted_part = SimpleNamespace(
            final_layer_norm=part.final_layer_norm, embed_tokens=part.embed_tokens, block=blocks
        )
        self.loader.set_stack(target, adapted_part, is_decoder=stack == "decoder")

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


def verify_translator(network: Network, directory: Path, batches: Batches) -> list[Check]:
    """Compare greedy translations with PyTorch's, token for token, in float32.

    Args:
        network: the translator.
        directory: a model that is stored in float32.
        batches: ragged batches to translate.

    Raises:
        VerificationError: a token differs, and PyTorch's own best two logits are no tie.
    """
    translator = OpenedTranslator(directory, threads=1)
    return verify_search(network, translator, batches, "CTranslate2")


@torch.no_grad()
def verify_search(
    network: Network, translator: TokenGenerator, batches: Batches, name: str
) -> list[Check]:
    """Compare the greedy translations of an engine with PyTorch's.

    Args:
        network: the translator.
        translator: opened by the engine.
        batches: ragged batches to translate.
        name: of the engine, for messages.

    Raises:
        VerificationError: a token differs, and PyTorch's own best two logits are no tie.
    """
    model: Any = network.model
    positions = network.checkpoint.entry.most_positions(model.config)
    settings = Generation(**generation_settings(model), positions=positions).with_options(1, None)

    def rows() -> Iterator[tuple[list[int], list[int], Any]]:
        for batch in batches:
            inputs, tokens, logits = greedy(model, batch, _scored(network), settings.limit)
            generated = translator.generate(inputs, settings)
            for padded, got, row in zip(tokens[:, 1:].tolist(), generated, logits, strict=True):
                ends = (i for i, token in enumerate(padded, 1) if token in settings.eos_token_id)
                yield padded[: next(ends, None)], got, row

    return [translation_check(rows(), ", in float32", name)]
