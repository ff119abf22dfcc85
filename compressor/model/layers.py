"""Finding the layers and sublayers of a model by the entry of its architecture."""

from __future__ import annotations

from typing import cast

from torch import nn

from compressor.model.architectures import architecture_of
from compressor.model.modeling_pruned import find_sublayer
from compressor.model.sublayers import Sublayer, is_self_attention


def layer_paths(model: nn.Module) -> list[str]:
    """Paths of all Transformer layers of a model, pruned or not, skipped ones included."""
    entry = architecture_of(model)
    stacks = {entry.full_paths(x)["layer"].partition("{i}")[0] for x in entry.sublayers}
    return [f"{stack}{i}" for stack in sorted(stacks) for i in range(depth_at(model, stack))]


def depth_at(model: nn.Module, stack: str) -> int:
    """How many layers there are at a path that ends before their numbers."""
    return len(cast(nn.ModuleList, model.get_submodule(stack.removesuffix("."))))


def find_sublayers(model: nn.Module) -> list[Sublayer]:
    """All sublayers of a model that is not pruned, but those of skipped layers, by kind.

    Unit counts and widths are read from the model's modules; use `checkpoint.open_checkpoint` for
    pruned ones.
    """
    entry = architecture_of(model)
    modules = {path for path, _ in model.named_modules()}
    sublayers = []
    for paths in entry.sublayers:
        full = entry.full_paths(paths)
        for index in range(depth_at(model, full["layer"].partition("{i}")[0])):
            layer = full["layer"].format(i=index)
            if f"{layer}.{paths.output}" not in modules:
                continue  # a layer that is skipped
            placed = find_sublayer(model, full, index)
            tables = {"every_layer": layer, "first_layer": full["layer"].format(i=0)}
            table = tables.get(paths.position_bias or "")
            has_bias = table is not None and is_self_attention(paths.kind)
            inputs = {
                role: f"{layer}.{path}"
                for role, path in {**paths.inputs, **paths.optional}.items()
                if f"{layer}.{path}" in placed.inputs
            }
            sublayers.append(
                Sublayer(
                    kind=paths.kind,
                    index=index,
                    units=placed.units,
                    unit_width=placed.unit_width,
                    block=placed.block,
                    inputs=inputs,
                    output=placed.output,
                    biased_by=f"{table}.{paths.block}" if has_bias else None,
                    scaled=paths.scaled,
                )
            )
    return sublayers
