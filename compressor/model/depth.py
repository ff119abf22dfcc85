"""Whole Transformer layers that go: skipped while a model is worked on, left out when it is saved.

Skipping a layer is more than removing all of its units: its normalizations and biases go as well,
so the hidden state passes through unchanged. While units are chosen and weights repaired, a skipped
layer's place is held, so that paths and numbers stay those of the dense model. `without_skipped`
gives the model that is delivered: the layers behind move up, and the configuration has fewer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from torch import Tensor, nn

from compressor.model.architectures import architecture_of
from compressor.model.checkpoint import Checkpoint
from compressor.model.modeling_pruned import NoHeads
from compressor.model.sublayers import Mask, Sublayer


class SkippedLayer(nn.Module):
    """Holds the place of a Transformer layer that is skipped.

    Args:
        layer: the layer.
        returns: a `tensor`, or a `tuple`, as the architecture's layers do.
    """

    def __init__(self, layer: nn.Module, returns: str) -> None:
        super().__init__()
        self.returns = returns
        # ModernBERT's model reads it, to choose the mask that it hands over.
        self.attention_type = getattr(layer, "attention_type", None)

    def forward(self, hidden_states: Tensor, *args: object, **kwargs: object) -> Any:
        """[batch, tokens, width] as it came."""
        return (hidden_states, None) if self.returns == "tuple" else hidden_states


def skip_layers(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> None:
    """Replace the layers that `mask` drops, in place."""
    for path in dict.fromkeys(x.layer_path for x in sublayers if x.layer in mask.dropped):
        returns = architecture_of(model).layers_return
        model.set_submodule(path, SkippedLayer(model.get_submodule(path), returns))


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
    gone = {path for path in places if isinstance(model.get_submodule(path), SkippedLayer)}
    return [x for x in sublayers if x.layer_path not in gone]


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
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    made = copy.deepcopy(model, shared)  # the memo: its tensors are not copied
    for path in {x.layer_path.rpartition(".")[0] for x in checkpoint.layers}:
        layers = [x for x in made.get_submodule(path).children() if not isinstance(x, SkippedLayer)]
        made.set_submodule(path, nn.ModuleList(layers))
        for number, layer in enumerate(layers):
            _renumber(layer, number)
    left, config, gone = mask.of_layers_left(), cast(Any, made.config), mask.dropped
    counts = {"encoder": 0, "decoder": 0}
    for name in left.layers():
        counts[name.partition(".")[0]] += 1
    entry = checkpoint.entry
    for stack, sizes in (("encoder", entry.encoder), ("decoder", entry.decoder)):
        if sizes is not None:
            setattr(config, sizes.layers, counts[stack])
    for name in entry.of_layers:
        of_left = [x for i, x in enumerate(getattr(config, name)) if f"encoder.{i}" not in gone]
        setattr(config, name, of_left)
    sublayers = [x for x in checkpoint.layers if x.name in left.keep]
    return replace(checkpoint, model=made, layers=sublayers, mask=left)


def _renumber(layer: nn.Module, number: int) -> None:
    """Give the attentions of a layer its new number, by which they find their cache."""
    for module in layer.modules():
        if isinstance(module, NoHeads):
            module.index = number
        elif hasattr(module, "layer_idx"):
            cast(Any, module).layer_idx = number
