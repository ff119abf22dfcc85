"""Physical removal of units, and the gates that define what it must be equal to.

A dropped layer's normalizations and biases go too. A `SkippedLayer` holds its place until
`without_skipped`, so that paths and numbers stay those of the dense model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from compressor.errors import VerificationError
from compressor.model.architectures import architecture_of
from compressor.model.checkpoint import Checkpoint
from compressor.model.modeling_pruned import (
    BIAS_TABLE,
    NoHeads,
    find_sublayer,
    keep_units,
    unit_columns,
    unit_rows,
    without_heads,
)
from compressor.model.modes import hooks, shared_copy
from compressor.model.one_token import read_one_token
from compressor.model.sublayers import Mask, Sublayer, by_layer, parts_of, units_of
from compressor.model.token_selection import (
    DECIDED,
    choice_margins,
    hand_on,
    handing_on,
    undecided_text,
)
from compressor.steps.results import Check

Hook = Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]
# Both models sum the same products in another order: single precision differs by about 1e-6.
SURGERY_TOLERANCE = 1e-4


def prune(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> nn.Module:
    """A copy of a model without the units that a mask removes; it shares what loses nothing.

    Args:
        model: of the dense shape.
        sublayers: of it.
        mask: which units stay, and which layers are skipped.
    """
    pruned = shared_copy(model)
    remove_units(pruned, sublayers, mask)
    return pruned


def remove_units(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> None:
    """Remove every unit that `mask` does not keep from a model of the dense shape, in place."""
    entry = architecture_of(model)
    paths = {paths.kind: entry.full_paths(paths) for paths in entry.sublayers}
    for sublayer in sublayers:
        kept = mask.kept(sublayer.name)
        if len(kept) < sublayer.units and sublayer.layer not in mask.dropped:
            placed = find_sublayer(model, paths[sublayer.kind], sublayer.index)
            keep_units(model, placed, kept)
    skip_layers(model, sublayers, mask)
    hand_on(model, mask.handed_on())


def restore_shape(
    dense: nn.Module, pruned: nn.Module, sublayers: Sequence[Sublayer], mask: Mask
) -> nn.Module:
    """A copy of `dense` with all the weights that `pruned` has, to score and prune it once more.

    It equals `pruned`, whose weights may have changed since `mask` pruned it, when gated by `mask`.
    """
    restored = copy.deepcopy(dense)
    large = restored.state_dict()
    small = {name: value for name, value in pruned.state_dict().items() if name in large}
    weights = {**large, **small}

    def put_back(name: str, dimension: int, index: Tensor) -> None:
        if name in small:
            index = index.to(large[name].device)
            weights[name] = large[name].index_copy(dimension, index, small[name])

    for sublayer in sublayers:
        kept = mask.kept(sublayer.name)
        for role, path in sublayer.inputs.items():
            parts = len(parts_of(role))
            rows = unit_rows(kept, sublayer.unit_width, sublayer.units, parts)
            put_back(f"{path}.weight", 0, rows)
            put_back(f"{path}.bias", 0, rows)
        put_back(f"{sublayer.output}.weight", 1, unit_columns(kept, sublayer.unit_width))
        # A table of relative positions belongs to this layer where heads are removed from it.
        name = f"{sublayer.biased_by}.{BIAS_TABLE}.weight"
        if name in small and small[name].shape != large[name].shape:
            put_back(name, 1, unit_columns(kept, 1))
    restored.load_state_dict(weights)
    return restored


@contextmanager
def gated(
    model: nn.Module, sublayers: Sequence[Sublayer], gates: Mapping[str, Tensor]
) -> Iterator[None]:
    """Multiply each unit's slice by its gate while the context lasts.

    Args:
        model: of the dense shape.
        sublayers: of it.
        gates: sublayer name -> [units]; sublayers without an entry stay as they are.
    """
    with hooks(
        model.get_submodule(x.output).register_forward_pre_hook(
            _gate_hook(gates[x.name], x.unit_width)
        )
        for x in sublayers
        if x.name in gates
    ):
        yield


def _gate_hook(gate: Tensor, unit_width: int) -> Hook:
    def multiply(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        units = inputs[0].unflatten(-1, (-1, unit_width))  # [batch, tokens, units, unit_width]
        return ((units * gate.to(units)[:, None]).flatten(-2), *inputs[1:])

    return multiply


def mask_gates(mask: Mask) -> dict[str, Tensor]:
    """Gates of 0 and 1 of a mask, [units] float32, of the sublayers that lose units."""
    return {
        name: torch.tensor(flags, dtype=torch.float32)
        for name, flags in mask.keep.items()
        if not all(flags) and units_of(name) != "tokens"
    }


@contextmanager
def masked(
    model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask, hides: bool = True
) -> Iterator[None]:
    """The dense model, with all that a mask removes gated, skipped or hidden, in the context.

    Args:
        model: of the dense shape.
        sublayers: of it, whose units may be gated.
        mask: which units stay, and which layers are skipped.
        hides: whether tokens that are not handed on are hidden, else they are left out.
    """
    left = [x for x in sublayers if x.layer not in mask.dropped]
    heads = {x.layer_path: mask.keep[x.name] for x in left if x.kind == "encoder_self"}
    with (
        skipped(model, sublayers, mask),
        gated(model, left, mask_gates(mask)),
        handing_on(model, mask.handed_on(), heads, hides),
    ):
        yield


@torch.no_grad()
def verify_surgery(
    dense: nn.Module,
    pruned: nn.Module,
    sublayers: Sequence[Sublayer],
    mask: Mask,
    batches: Sequence[Mapping[str, Tensor]],
    on_tokens: bool = False,
) -> Check:
    """Compare the pruned model's logits with those of the gated dense model.

    Args:
        dense: the dense model.
        pruned: without the units that the mask removes.
        sublayers: of the dense model.
        mask: which units stay, and which layers are skipped.
        batches: without labels; they should have padding.
        on_tokens: whether logits are of an encoder's tokens, [rows, tokens, …]; nothing reads those
            of padding, and they are left out.

    Raises:
        VerificationError: they differ.
    """
    dense.eval(), pruned.eval()
    differences, undecided = [0.0], 0
    for batch in batches:
        with masked(dense, sublayers, mask):
            expected = dense(**batch).logits
        real: Any = batch["attention_mask"].bool() if on_tokens else ...
        actual = pruned(**batch).logits
        margins = choice_margins(pruned)
        if margins is not None:
            real = margins >= DECIDED
            undecided += int((~real).sum())
            if not real.any():
                continue
        differences.append(relative_difference(actual[real], expected[real]))
    worst = float(torch.tensor(differences).max())  # NaN wins, unlike with Python's max
    if not worst <= SURGERY_TOLERANCE:
        raise VerificationError(
            f"the pruned model differs from the masked one by {worst:.2e} of the largest logit "
            f"(tolerance {SURGERY_TOLERANCE:.0e}); please report this with the checkpoint's name",
            id="pruned-differs-from-masked",
        )
    return Check(
        name="pruned equals masked",
        largest_difference=worst,
        tolerance=SURGERY_TOLERANCE,
        detail=f"logits of {len(batches)} ragged batches, relative to the largest logit"
        + undecided_text(undecided),
    )


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """Compute max |actual - expected| / max |expected|; NaN if either holds one."""
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


class SkippedLayer(nn.Module):
    """Holds the place of a layer that is skipped; an attention still hands on T5's bias.

    Args:
        returns: what its layers return, as `Architecture.layers_return`.
        attention: its attention to its own stack.
        hands_on: whether that hands on a bias of relative positions.
    """

    is_skipped = True

    def __init__(
        self, layer: nn.Module, returns: str, attention: Sublayer, *, hands_on: bool
    ) -> None:
        super().__init__()
        self.returns = returns
        # ModernBERT's model reads it, to choose the mask that it hands over.
        self.attention_type = getattr(layer, "attention_type", None)
        self.path = ""
        self.without_heads = NoHeads(attention.kind, attention.index)
        if hands_on:
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
        """Return the hidden states as they are, in the form of the layer's outputs."""
        # `generate` reads the number of tokens so far from the cache of the first layer.
        past: Any = {"past_key_values": kwargs.get("past_key_values")}
        if self.path:
            attention = self.get_submodule(self.path)
            _, bias, _ = attention(
                hidden_states, attention_mask, position_bias=position_bias, **past
            )
            return hidden_states, bias, None
        self.without_heads(hidden_states, **past)
        return (hidden_states, None) if self.returns == "tuple" else hidden_states


def skip_layers(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> None:
    """Let a model skip the layers that a mask drops, in place."""
    entry = architecture_of(model)
    for path, layers in by_layer(x for x in sublayers if x.layer in mask.dropped).items():
        hands_on = entry.position_bias == "first_layer"
        layer = model.get_submodule(path)
        skipping = SkippedLayer(layer, entry.layers_return, layers[0], hands_on=hands_on)
        model.set_submodule(path, skipping)


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


def remaining_sublayers(model: nn.Module, sublayers: Sequence[Sublayer]) -> list[Sublayer]:
    """The sublayers whose Transformer layer the model does not skip."""
    layers = {x.layer_path: model.get_submodule(x.layer_path) for x in sublayers}
    return [x for x in sublayers if not isinstance(layers[x.layer_path], SkippedLayer)]


def without_skipped(checkpoint: Checkpoint, model: nn.Module, mask: Mask) -> Checkpoint:
    """The dense checkpoint with a pruned model, and what belongs to it, without skipped layers."""
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
            for module in layer.modules():  # attentions, whose number selects their cache
                if isinstance(module, NoHeads):
                    module.index = number
                if hasattr(module, "layer_idx"):
                    cast(Any, module).layer_idx = number
    left, entry = mask.of_layers_left(), checkpoint.entry
    config: Any = made.config
    stacks = [name.partition(".")[0] for name in left.layers()]
    encoder, decoder = stacks.count("encoder"), stacks.count("decoder")
    entry.require_depth(encoder, decoder, "the model without these layers")
    for count, sizes in ((encoder, entry.encoder), (decoder, entry.decoder)):
        if sizes is not None:
            setattr(config, sizes.layers, count)
    for name in entry.layer_lists:
        values = enumerate(getattr(config, name))
        setattr(config, name, [x for i, x in values if f"encoder.{i}" not in mask.dropped])
    read_one_token(made)  # another layer may be the last one now
    sublayers = [x for x in checkpoint.layers if x.name in left.keep]
    return replace(checkpoint, model=made, layers=sublayers, mask=left)


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
