"""Dropping whole Transformer layers: skipped while a model is worked on, left out when it is saved.

Skipping a layer is more than removing all of its units: its normalizations and biases go as well,
so the hidden state passes through unchanged. While units are chosen and quality is recovered, the
place of a skipped layer is held, so that paths and numbers stay those of the dense model.
`without_skipped` gives the model that is delivered: the layers behind move up, and the
configuration has fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from torch import Tensor, nn

from compressor.model.architectures import architecture_of, require_depth
from compressor.model.checkpoint import Checkpoint
from compressor.model.modeling_pruned import BIAS_TABLE, NoHeads, without_heads
from compressor.model.shared_copy import shared_copy
from compressor.model.sublayers import Mask, Sublayer, by_layer


class SkippedLayer(nn.Module):
    """Holds the place of a Transformer layer that is skipped.

    Where layers hand a bias of relative positions on, as T5's do, it still does.

    Args:
        layer: the layer; not changed.
        returns: a `tensor`, or a `tuple`, as the architecture's layers do.
        attention: its self-attention, if layers hand a bias on.
    """

    def __init__(self, layer: nn.Module, returns: str, attention: Sublayer | None = None) -> None:
        super().__init__()
        self.returns = returns
        # ModernBERT's model reads it, to choose the mask that it hands over.
        self.attention_type = getattr(layer, "attention_type", None)
        self.path = ""
        if attention is not None:
            self.path = attention.block.removeprefix(f"{attention.layer_path}.")
            *parents, name = self.path.split(".")
            module: nn.Module = self
            for parent in parents:  # so that the table has the name that it has in the layer
                module.add_module(parent, nn.Module())
                module = module.get_submodule(parent)
            block = layer.get_submodule(self.path)
            module.add_module(name, without_heads(block, attention.kind, attention.index))

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """[batch, tokens, width] as it came."""
        if self.path:
            attention = self.get_submodule(self.path)
            _, bias, _ = attention(hidden_states, attention_mask, position_bias=position_bias)
            return hidden_states, bias, None
        return (hidden_states, None) if self.returns == "tuple" else hidden_states


def skip_layers(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> None:
    """Replace the layers that `mask` drops, in place."""
    entry = architecture_of(model)
    for path, layers in by_layer(x for x in sublayers if x.layer in mask.dropped).items():
        attention = layers[0] if entry.position_bias == "first_layer" else None
        layer = model.get_submodule(path)
        model.set_submodule(path, SkippedLayer(layer, entry.layers.returns, attention))


@contextmanager
def skipped(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> Iterator[None]:
    """A model that skips the layers that `mask` drops, while the context lasts."""
    paths = {x.layer_path for x in sublayers if x.layer in mask.dropped}
    layers = {path: model.get_submodule(path) for path in paths}
    try:
        skip_layers(model, sublayers, mask)
        yield
    finally:
        for path, layer in layers.items():
            model.set_submodule(path, layer)


def left_of(model: nn.Module, sublayers: Sequence[Sublayer]) -> list[Sublayer]:
    """The sublayers whose Transformer layer the model does not skip."""
    paths = {x.layer_path for x in sublayers}
    dropped = {path for path in paths if isinstance(model.get_submodule(path), SkippedLayer)}
    return [x for x in sublayers if x.layer_path not in dropped]


def without_skipped(checkpoint: Checkpoint, model: nn.Module, mask: Mask) -> Checkpoint:
    """A pruned model in the form in which it is saved and exported, without skipped layers.

    Args:
        checkpoint: the dense one that the model was made from.
        model: without the units, and skipping the layers, that `mask` removes; not changed, but
            its parameters are shared.

    Returns:
        `checkpoint` with that model and with the sublayers and the mask that belong to it.
    """
    if not mask.dropped:
        return replace(checkpoint, model=model, mask=mask)
    made = shared_copy(model)
    for path in {x.layer_path.rpartition(".")[0] for x in checkpoint.layers}:
        dense = list(made.get_submodule(path).children())
        first, layers = dense[0], [x for x in dense if not isinstance(x, SkippedLayer)]
        if isinstance(first, SkippedLayer) and first.path:
            # The first layer that is left gets the table of relative positions.
            attention = cast(Any, layers[0].get_submodule(first.path))
            attention.relative_attention_bias = first.get_submodule(f"{first.path}.{BIAS_TABLE}")
            attention.has_relative_attention_bias = True
        made.set_submodule(path, nn.ModuleList(layers))
        for number, layer in enumerate(layers):
            _renumber(layer, number)
    left, config, entry = mask.of_layers_left(), cast(Any, made.config), checkpoint.entry
    stacks = [name.partition(".")[0] for name in left.layers()]
    encoder, decoder = stacks.count("encoder"), stacks.count("decoder")
    require_depth(entry, encoder, decoder, "the model without these layers")
    for count, sizes in ((encoder, entry.encoder), (decoder, entry.decoder)):
        if sizes is not None:
            setattr(config, sizes.layers, count)
    for name in entry.layers.lists:
        values = enumerate(getattr(config, name))
        setattr(config, name, [x for i, x in values if f"encoder.{i}" not in mask.dropped])
    sublayers = [x for x in checkpoint.layers if x.name in left.keep]
    return replace(checkpoint, model=made, layers=sublayers, mask=left)


def _renumber(layer: nn.Module, number: int) -> None:
    """Give the attentions of a layer its new number, which selects their cache."""
    for module in layer.modules():
        if isinstance(module, NoHeads):
            module.index = number
        if hasattr(module, "layer_idx"):
            cast(Any, module).layer_idx = number


def names_without_skipped(model: nn.Module) -> dict[str, str]:
    """Name of every parameter and buffer of `model` -> its name in the `without_skipped` model."""
    moved: dict[str, str] = {}
    for path, stack in model.named_modules():
        layers = dict(stack.named_children()) if isinstance(stack, nn.ModuleList) else {}
        left = [name for name, layer in layers.items() if not isinstance(layer, SkippedLayer)]
        if len(left) < len(layers):
            moved |= {f"{path}.{name}.": f"{path}.{number}." for number, name in enumerate(left)}
    names = {}
    for name in model.state_dict():
        prefix = next((x for x in moved if name.startswith(x)), "")
        names[name] = moved.get(prefix, "") + name.removeprefix(prefix)
    return names
