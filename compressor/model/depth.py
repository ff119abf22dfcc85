"""Whole Transformer layers that go: skipped while a model is worked on, left out when it is saved.

Skipping a layer is more than removing all of its units: its normalizations and biases go as well,
so the hidden state passes through unchanged. While units are chosen and weights repaired, a skipped
layer's place is held, so that paths and numbers stay those of the dense model. `without_skipped`
gives the model that is delivered: the layers behind move up, and the configuration has fewer.
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
        held: its self-attention, if layers hand a bias on.
    """

    def __init__(self, layer: nn.Module, returns: str, held: Sublayer | None = None) -> None:
        super().__init__()
        self.returns = returns
        # ModernBERT's model reads it, to choose the mask that it hands over.
        self.attention_type = getattr(layer, "attention_type", None)
        self.path = ""
        if held is not None:
            self.path = held.block.removeprefix(f"{held.layer_path}.")
            *parents, name = self.path.split(".")
            place: nn.Module = self
            for parent in parents:  # so that the table has the name that it has in the layer
                place.add_module(parent, nn.Module())
                place = place.get_submodule(parent)
            attention = layer.get_submodule(self.path)
            place.add_module(name, without_heads(attention, held.kind, held.index))

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
        held = layers[0] if entry.position_bias == "first_layer" else None  # its self-attention
        layer = model.get_submodule(path)
        model.set_submodule(path, SkippedLayer(layer, entry.layers.returns, held))


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
    places = {x.layer_path for x in sublayers}
    dropped = {path for path in places if isinstance(model.get_submodule(path), SkippedLayer)}
    return [x for x in sublayers if x.layer_path not in dropped]


def without_skipped(checkpoint: Checkpoint, model: nn.Module, mask: Mask) -> Checkpoint:
    """A pruned model in the form in which it is saved and exported: skipped layers are not there.

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
        every = list(made.get_submodule(path).children())
        layers = [x for x in every if not isinstance(x, SkippedLayer)]
        _hand_over_bias(every[0], layers[0])
        made.set_submodule(path, nn.ModuleList(layers))
        for number, layer in enumerate(layers):
            _renumber(layer, number)
    left, config, dropped = mask.of_layers_left(), cast(Any, made.config), mask.dropped
    entry = checkpoint.entry
    counts = {"encoder": 0, "decoder": 0}
    for name in left.layers():
        counts[name.partition(".")[0]] += 1
    require_depth(entry, counts["encoder"], counts["decoder"], "the model without these layers")
    for stack, sizes in (("encoder", entry.encoder), ("decoder", entry.decoder)):
        if sizes is not None:
            setattr(config, sizes.layers, counts[stack])
    for name in entry.layers.lists:
        of_left = [x for i, x in enumerate(getattr(config, name)) if f"encoder.{i}" not in dropped]
        setattr(config, name, of_left)
    sublayers = [x for x in checkpoint.layers if x.name in left.keep]
    return replace(checkpoint, model=made, layers=sublayers, mask=left)


def names_without_skipped(model: nn.Module) -> dict[str, str]:
    """Of every parameter and buffer of `model`, its name in what `without_skipped` makes of it."""
    moved: dict[str, str] = {}
    for path, stack in model.named_modules():
        layers = dict(stack.named_children()) if isinstance(stack, nn.ModuleList) else {}
        left = [name for name, layer in layers.items() if not isinstance(layer, SkippedLayer)]
        if len(left) == len(layers):
            continue
        moved |= {f"{path}.{name}.": f"{path}.{number}." for number, name in enumerate(left)}

    def renamed(name: str) -> str:
        place = next((place for place in moved if name.startswith(place)), "")
        return moved.get(place, "") + name.removeprefix(place)

    return {name: renamed(name) for name in model.state_dict()}


def _hand_over_bias(first: nn.Module, left: nn.Module) -> None:
    """Give the first layer that is left the table of relative positions of a skipped first one."""
    if isinstance(first, SkippedLayer) and first.path:
        attention = cast(Any, left.get_submodule(first.path))
        attention.relative_attention_bias = first.get_submodule(f"{first.path}.{BIAS_TABLE}")
        attention.has_relative_attention_bias = True


def _renumber(layer: nn.Module, number: int) -> None:
    """Give the attentions of a layer its new number, by which they find their cache."""
    for module in layer.modules():
        if isinstance(module, NoHeads):
            module.index = number
        if hasattr(module, "layer_idx"):
            cast(Any, module).layer_idx = number
