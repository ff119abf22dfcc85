"""Translators as directories that `ctranslate2.Translator` opens, unevenly pruned ones too.

CTranslate2 has one number of heads for the encoder and one for the decoder; its own converter takes
a pruned model and computes wrong answers. Here every attention is padded to the most heads of its
stack, with heads whose weights are zero: what they attend to is multiplied by nothing. Feed-forward
parts may differ as they are; one without neurons gets a few that are zero.

Its converter for Marian assumes that decoding starts from a zero embedding, and drops the last
token. Models trained in transformers have a start token whose embedding is not zero. So the
vocabulary stays whole, the start token is named, and a bias keeps it, like all tokens that are
never to be generated, from being the best.

Attributes, layers and files are written by CTranslate2's own loaders and specifications.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from compressor.errors import InputError
from compressor.export.generation import generation_settings
from compressor.export.task_graphs import Inputs, Network
from compressor.export.verify import require_tie, translation_check
from compressor.export.vocabulary import bias_of, restricted
from compressor.model.modeling_pruned import OutputBias
from compressor.model.quiet import quiet_transformers
from compressor.model.sublayers import Sublayer
from compressor.results import Check
from compressor.runtime.artifact import Generation
from compressor.runtime.engines.ctranslate2 import Translation

if TYPE_CHECKING:
    from compressor.model.checkpoint import Checkpoint

STORED = {"fp32": "float32", "fp16": "float16", "int8": "int8"}  # precision -> its name there
NEVER = -1e9  # bias of tokens that are never generated
_NAME = "CTranslate2"
_EMPTY = 8  # neurons, all zero, of a feed-forward part that has none
_STACKS = {"encoder": ("encoder_self",), "decoder": ("decoder_self", "cross")}


@torch.no_grad()
def write_translator(network: Network, directory: Path, precision: str) -> None:
    """Write the model, its vocabulary, and the files of its tokenizer.

    Args:
        precision: that weights are stored in; `ctranslate2.Translator` computes in it by default.
    """
    if network.checkpoint.entry.positions is None:
        raise InputError(
            f"{network.checkpoint.name} has relative positions, and only models with absolute ones "
            "can be written for CTranslate2; leave it out, the engine onnxruntime runs this model",
            id="architecture-not-for-ctranslate2",
        )
    spec = _specification(network)
    spec.validate()
    spec.optimize(quantization=STORED[precision])
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))
    network.model.generation_config.save_pretrained(directory)  # type: ignore[union-attr,operator]
    with quiet_transformers():
        network.checkpoint.tokenizer.save_pretrained(directory)


def _specification(network: Network) -> Any:
    from ctranslate2.converters import transformers as converters
    from ctranslate2.specs import transformer_spec

    model: Any = network.model.eval()
    parts = {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    spec = transformer_spec.TransformerSpec.from_config(
        tuple(len(part.layers) for part in parts.values()),
        1,  # heads; set below
        pre_norm=hasattr(parts["encoder"], "layer_norm"),
        activation=converters._SUPPORTED_ACTIVATIONS[model.config.activation_function],
        layernorm_embedding=hasattr(parts["encoder"], "layernorm_embedding"),
    )
    counts, loader = network.mask.counts(), converters.BartLoader()
    for name, part in parts.items():
        kinds = [x for x in network.checkpoint.layers if x.kind in _STACKS[name]]
        heads = max(1, *(counts[x.name] for x in kinds))
        target = getattr(spec, name)
        target.num_heads = np.int16(heads)
        for layer in target.layer:
            _name_head_size(layer, kinds[0].unit_width)
        padded = _padded(part, network, name, heads)
        getattr(loader, f"set_{name}")(target, padded)
    loader.set_linear(spec.decoder.projection, model.lm_head)
    spec.decoder.projection.bias = _bias(model, _scored(network))
    _describe(spec, network.checkpoint)
    return spec


def _name_head_size(layer: Any, head_dim: int) -> None:
    """Say how wide heads are: it does not follow from the model's width and their number."""
    from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec

    for name, is_self in (("self_attention", True), ("attention", False)):
        if hasattr(layer, name):
            spec = MultiHeadAttentionSpec(self_attention=is_self, head_dim=head_dim)
            setattr(layer, name, spec)


def _padded(part: Any, network: Network, stack: str, heads: int) -> SimpleNamespace:
    """An encoder or decoder with the attributes that the loader reads.

    Args:
        heads: that every attention is to have.
    """
    sublayers = {x.name: x for x in network.checkpoint.layers}
    model = network.model

    def layer_of(number: int, layer: Any) -> SimpleNamespace:
        up, down = _neurons(model, sublayers[f"{stack}_ffn.{number}"])
        found = SimpleNamespace(
            self_attn=_heads(model, sublayers[f"{stack}_self.{number}"], heads),
            self_attn_layer_norm=layer.self_attn_layer_norm,
            fc1=up, fc2=down, final_layer_norm=layer.final_layer_norm,
        )  # fmt: skip
        if stack == "decoder":
            found.encoder_attn = _heads(model, sublayers[f"cross.{number}"], heads)
            found.encoder_attn_layer_norm = layer.encoder_attn_layer_norm
        return found

    names = ("config", "embed_positions", "embed_tokens", "embed_scale", "layer_norm")
    shared = {
        name: getattr(part, name) for name in (*names, "layernorm_embedding") if hasattr(part, name)
    }
    layers = [layer_of(number, layer) for number, layer in enumerate(part.layers)]
    return SimpleNamespace(layers=layers, **shared)


def _linear(weight: Tensor, bias: Tensor | None) -> SimpleNamespace:
    return SimpleNamespace(
        weight=weight, bias=weight.new_zeros(len(weight)) if bias is None else bias
    )


def _heads(model: nn.Module, sublayer: Sublayer, heads: int) -> SimpleNamespace:
    """The projections of an attention, padded with heads of zeros."""
    output: Any = model.get_submodule(sublayer.output)
    is_empty = isinstance(output, OutputBias)
    width = output.width if is_empty else output.out_features
    size = heads * sublayer.unit_width

    def rows(path: str) -> SimpleNamespace:
        weight, bias = torch.zeros(size, width), torch.zeros(size)
        if not is_empty:
            given: Any = model.get_submodule(path)
            weight[: given.out_features] = given.weight
            if given.bias is not None:
                bias[: given.out_features] = given.bias
        return _linear(weight, bias)

    columns = torch.zeros(width, size)
    if not is_empty:
        columns[:, : output.in_features] = output.weight
    query, key, value = (rows(path) for path in sublayer.inputs.values())
    return SimpleNamespace(
        q_proj=query, k_proj=key, v_proj=value, out_proj=_linear(columns, output.bias)
    )


def _neurons(model: nn.Module, sublayer: Sublayer) -> tuple[SimpleNamespace, SimpleNamespace]:
    """The projections of a feed-forward part."""
    output: Any = model.get_submodule(sublayer.output)
    if isinstance(output, OutputBias):
        up, down = torch.zeros(_EMPTY, output.width), torch.zeros(output.width, _EMPTY)
        return _linear(up, None), _linear(down, output.bias)
    (path,) = sublayer.inputs.values()
    given: Any = model.get_submodule(path)
    return _linear(given.weight, given.bias), _linear(output.weight, output.bias)


def _scored(network: Network) -> Sequence[int]:
    """Ids of the tokens that a translation may consist of."""
    size: int = network.model.get_output_embeddings().out_features  # type: ignore[operator]
    return range(size) if network.tokens is None else network.tokens


def _bias(model: Any, scored: Sequence[int]) -> Tensor:
    """The bias of the logits [tokens], with `NEVER` for tokens that are never generated."""
    given = bias_of(model).detach().clamp(min=NEVER)
    bias = torch.full_like(given, NEVER)
    bias[list(scored)] = given[list(scored)]
    bias[generation_settings(model)["suppress_tokens"]] = NEVER
    return bias


def _describe(spec: Any, checkpoint: Checkpoint) -> None:
    """Name the special tokens, and all tokens in the order of their ids."""
    tokenizer, settings = checkpoint.tokenizer, generation_settings(checkpoint.model)
    for name in ("bos_token", "eos_token", "unk_token"):
        if getattr(tokenizer, name) is not None:
            setattr(spec.config, name, getattr(tokenizer, name))
    start = tokenizer.convert_ids_to_tokens(settings["decoder_start_token_id"])
    spec.config.decoder_start_token = start
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    size = checkpoint.model.get_output_embeddings().out_features  # type: ignore[operator]
    names = [token for token, _ in tokens][:size]
    names += [f"<unused {number}>" for number in range(len(names), size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)


@torch.no_grad()
def verify_translator(network: Network, directory: Path, batches: Sequence[Inputs]) -> list[Check]:
    """Compare greedy translations with PyTorch's, token for token, in float32.

    Args:
        directory: a model stored in float32.

    Raises:
        VerificationError: a token differs, and PyTorch's own best two logits are no tie.
    """
    model: Any = network.model
    positions = network.checkpoint.entry.most_positions(model.config)
    settings = Generation(**generation_settings(model), positions=positions).with_options(1, None)
    translator = Translation(directory, threads=1)
    rows, count, ties = 0, 0, 0
    with restricted(model, _scored(network)):
        for batch, wanted, logits in _greedy(model, settings, batches):
            arrays = {name: value.numpy() for name, value in batch.items()}
            found = translator.generate(arrays, settings)
            for want, got, row in zip(wanted, found, logits, strict=True):
                rows, count = rows + 1, count + len(want)
                if want != got:
                    require_tie(want, got, row, _NAME)
                    ties += 1
    return [translation_check(count, rows, ties, ", in float32", _NAME)]


def _greedy(
    model: Any, settings: Generation, batches: Sequence[Inputs]
) -> Iterator[tuple[Inputs, list[list[int]], Tensor]]:
    """Of each batch its inputs, PyTorch's tokens of each row with the end, and the logits."""
    # As in `translator._along_greedy`: transformers warns where both lengths are given.
    counts_new = settings.max_new_tokens is not None
    longest = {"max_new_tokens" if counts_new else "max_length": settings.limit + (not counts_new)}
    for batch in batches:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        tokens = model.generate(**inputs, num_beams=1, do_sample=False, **longest)
        logits = model(**inputs, decoder_input_ids=tokens[:, :-1]).logits
        yield inputs, [_to_end(row, settings) for row in tokens[:, 1:].tolist()], logits


def _to_end(tokens: list[int], settings: Generation) -> list[int]:
    """Up to and including the first token that ends a translation."""
    ends = (place for place, token in enumerate(tokens, 1) if token in settings.eos_token_id)
    return tokens[: next(ends, None)]
