"""Pruned models as classes of transformers.

This file and `modeling_tokens.py`, `modeling_kept.py` and `modeling_selection.py` beside it need
transformers alone.

    AutoModelForSeq2SeqLM.from_pretrained(directory, trust_remote_code=True)

`kept_units` in `config.json` has an entry per kind of sublayer: the paths of the modules, with
`{i}` for the number of the layer, and `kept`, the units left in each layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from inspect import signature
from re import escape
from typing import Any

import torch
import transformers
from torch import Tensor, nn

if int(transformers.__version__.partition(".")[0]) < 5:
    # Before, some attentions take the number of heads for the model's width over the heads' width.
    raise ImportError(
        f"pruned models need transformers 5, and transformers {transformers.__version__} is "
        "installed; install transformers>=5"
    )


from .modeling_selection import select_tokens
from .modeling_tokens import compute_one_token  # of the version that was checked


@dataclass(frozen=True)
class PlacedSublayer:
    """One sublayer of a dense model; `architecture.SublayerPaths` of `compress` describes paths."""

    paths: Mapping[str, Any]  # the entry of its kind in `kept_units`
    index: int  # the number of its layer
    units: int
    unit_width: int  # columns of the output projection that belong to one unit
    block: str
    inputs: tuple[str, ...]
    output: str


class OutputBias(nn.Module):
    """Replaces the output projection of a sublayer without units by its bias."""

    def __init__(self, projection: nn.Linear) -> None:
        super().__init__()
        self.width = projection.out_features
        self.bias = projection.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, any] -> [batch, tokens, width], the same vector everywhere."""
        if self.bias is None:
            return hidden.new_zeros((*hidden.shape[:-1], self.width))
        return self.bias.expand(*hidden.shape[:-1], self.width)


class NoHeads(nn.Module):
    """Replaces the block of an attention without heads."""

    def __init__(self, kind: str, index: int) -> None:
        super().__init__()
        self.kind = kind
        self.index = index

    def forward(
        self, hidden_states: Tensor, *args: object, past_key_values: Any = None, **kwargs: object
    ) -> tuple[Tensor, None]:
        """Return the output bias; record in a decoder's cache how many tokens it has seen."""
        if self.kind == "decoder_self" and past_key_values is not None:
            cache = getattr(past_key_values, "self_attention_cache", past_key_values)
            batch, tokens, _ = hidden_states.shape
            # `generate` reads the length of the past from the first layer: one head of width 1.
            length = hidden_states.new_zeros((batch, 1, tokens, 1))
            cache.update(length, length, self.index)
        return _output_bias(self, hidden_states), None


def _output_bias(block: nn.Module, hidden: Tensor) -> Tensor:
    """The output of the `OutputBias` inside a block; else it follows, and ignores its input."""
    for module in block.children():
        if isinstance(module, OutputBias):
            return module(hidden)
    return hidden


class NoNeurons(nn.Module):
    """Replaces the block of a feed-forward part without neurons."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the output bias, or the hidden states where it follows behind the block."""
        return _output_bias(self, hidden_states)


BIAS_TABLE = "relative_attention_bias"  # [distances, heads]


class SharedPositionBias(nn.Module):
    """A mixin of T5's attention, for layers with different numbers of heads.

    The first layer of a stack makes the bias of relative positions, and each hands it on to the
    next: here that of all heads of the dense model, whichever the buffer `kept_heads` lists as
    left; None in cross-attention, which has no positions.
    """

    kept_heads: Tensor | list[int]

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Attend as the library's class, with the bias of this layer's heads.

        Args:
            hidden_states: [batch, queries, width].
            mask: additive, [batch, 1, queries or 1, keys].
            key_value_states: of the source, in cross-attention.
            position_bias: of all heads of the dense model, [1, heads, queries, keys].
            past_key_values: the cache.
            kwargs: all others of the library's class.

        Returns:
            The output, the bias of all heads to hand on, and the attention weights.
        """
        attention: Any = self
        whole = position_bias if key_value_states is None else None
        if key_value_states is None and whole is None and hasattr(self, BIAS_TABLE):
            past, tokens = past_key_values, hidden_states.shape[1]
            seen = 0 if past is None else past.get_seq_length(attention.layer_idx)
            keys = seen + tokens if mask is None else mask.shape[-1]
            # [1, heads of the dense model, queries, keys]
            whole = attention.compute_bias(
                tokens, keys, device=hidden_states.device, past_seen_tokens=seen
            )
        bias = None if whole is None else whole[:, self.kept_heads]
        library: Any = super()
        output, *_, weights = library.forward(
            hidden_states, mask, key_value_states, bias, past_key_values=past_key_values, **kwargs
        )
        return output, whole, weights


@cache
def _with_shared_bias(attention: Any, *more: Any) -> Any:
    """The class of the library with `SharedPositionBias` and more mixed in."""
    if issubclass(attention, SharedPositionBias):
        attention = attention.__bases__[-1]
    name = "".join(kind.__name__ for kind in (SharedPositionBias, *more, attention))
    made = type(name, (SharedPositionBias, *more, attention), {"__module__": __name__})
    globals()[name] = made  # so that models can be pickled
    return made


def without_heads(attention: nn.Module, kind: str, index: int) -> nn.Module:
    """Replaces an attention of T5 without heads: it still makes the bias and hands it on."""
    made: Any = copy(attention)
    made._modules = {n: x for n, x in attention._modules.items() if n == BIAS_TABLE}
    made._buffers = {}
    made.__class__ = _with_shared_bias(made.__class__, NoHeads)
    made.kind, made.index = kind, index
    made.kept_heads = []
    return made


class OwnHeads:
    """Before an attention runs: select the bias of its `kept_heads` from that of all."""

    def __init__(self, block: nn.Module) -> None:
        self.argument = list(signature(block.forward).parameters).index("position_bias")

    def __call__(self, block: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replaces a bias [batch, heads of the dense model, queries, keys] among the arguments."""
        before, after = arguments[: self.argument], arguments[self.argument + 1 :]
        bias = arguments[self.argument]
        return (*before, None if bias is None else bias[:, block.kept_heads], *after)


def keep_units(model: nn.Module, sublayer: PlacedSublayer, units: Sequence[int]) -> None:
    """Remove all but some units of a sublayer, in place; without any, its output bias is left."""
    if not units:
        _empty(model, sublayer)
        return
    paths, width = sublayer.paths, sublayer.unit_width
    columns = unit_columns(units, width)
    rows = unit_rows(units, width, sublayer.units, paths["parts"])
    for path in sublayer.inputs:
        old = _linear(model, path)
        bias = None if old.bias is None else old.bias[rows]
        _replace(model, path, _linear_from(old.weight[rows], bias))
    old = _linear(model, sublayer.output)
    _replace(model, sublayer.output, _linear_from(old.weight[:, columns], old.bias))
    block = model.get_submodule(sublayer.block)
    if paths["unit_count"] is not None:
        setattr(block, paths["unit_count"], len(units))
    if paths["width"] is not None:
        setattr(block, paths["width"], len(units) * width)
    if paths["position_bias"] == "every_layer":
        table: Any = block.get_submodule(BIAS_TABLE)
        table.weight = nn.Parameter(table.weight[:, list(units)].detach().clone())
        table.embedding_dim = len(units)
    elif paths["position_bias"] is not None:
        block.register_buffer("kept_heads", torch.tensor(list(units)))
        if paths["position_bias"] == "first_layer":
            kind: Any = block.__class__
            block.__class__ = _with_shared_bias(kind)
        else:
            block.register_forward_pre_hook(OwnHeads(block))


def _empty(model: nn.Module, sublayer: PlacedSublayer) -> None:
    kind, form = sublayer.paths["kind"], sublayer.paths["stand_in"]
    bias = OutputBias(_linear(model, sublayer.output))
    stand_in: nn.Module
    if form == "attention":
        stand_in = NoHeads(kind, sublayer.index)
    elif form == "bias_to_hand_on":
        stand_in = without_heads(model.get_submodule(sublayer.block), kind, sublayer.index)
    elif form == "feed_forward":
        stand_in = NoNeurons()
    else:
        raise KeyError(form)
    _replace(model, sublayer.block, stand_in)
    if sublayer.output.startswith(sublayer.block + "."):
        stand_in.add_module(sublayer.output.removeprefix(sublayer.block + "."), bias)
    else:
        _replace(model, sublayer.output, bias)


def unit_columns(units: Sequence[int], unit_width: int) -> Tensor:
    """Positions of some units in the output projection's input, [units x unit_width]."""
    starts = torch.tensor(list(units), dtype=torch.long, device="cpu")[:, None] * unit_width
    return (starts + torch.arange(unit_width, device="cpu")).flatten()  # [units, 1] + [unit_width]


def unit_rows(units: Sequence[int], unit_width: int, total: int, parts: int) -> Tensor:
    """Positions of their rows in a projection of several parts, [parts x units x unit_width]."""
    first = unit_columns(units, unit_width)
    return torch.cat([part * total * unit_width + first for part in range(parts)])


def _linear(model: nn.Module, path: str) -> nn.Linear:
    module = model.get_submodule(path)
    assert isinstance(module, nn.Linear), path
    return module


def _linear_from(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    # On "meta", where nothing is allocated or drawn at random; the weights replace it at once.
    linear = nn.Linear(
        weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", dtype=weight.dtype
    )
    linear.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    module.train(model.training)
    setattr(model.get_submodule(parent), name, module)


def find_sublayer(model: nn.Module, paths: Mapping[str, Any], index: int) -> PlacedSublayer:
    """The sublayer of a dense model in one layer, of the kind that an entry of `kept_units` has."""
    root = paths["layer"].format(i=index)
    block, output = f"{root}.{paths['block']}", f"{root}.{paths['output']}"
    units = columns = _linear(model, output).in_features
    if paths["unit_width"] is not None:
        units = columns // int(getattr(model.get_submodule(block), paths["unit_width"]))
    elif paths["unit_count"] is not None:
        units = int(getattr(model.get_submodule(block), paths["unit_count"]))
    modules = {path for path, _ in model.get_submodule(root).named_modules()}
    inputs = [*paths["inputs"], *(path for path in paths["optional"] if path in modules)]
    return PlacedSublayer(
        paths, index, units, columns // units, block, tuple(f"{root}.{x}" for x in inputs), output
    )


STORED_VALUES = "stored_values"


def set_stored_values(config: Any) -> None:
    """Set what transformers changes while it loads a configuration to what its file says."""
    for name, value in (getattr(config, STORED_VALUES, None) or {}).items():
        setattr(config, name, value)


class WeightsMisfit(ValueError):
    """The stored weights are not those of the model that `config.json` describes."""


class _Pruned(transformers.PreTrainedModel):
    """A model with the units that `kept_units` in its configuration says; without, a dense one."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        if getattr(config, "kept_units", None):
            for auto_class in getattr(config, "auto_map", None) or ():
                self.register_for_auto_class(auto_class)  # `save_pretrained` then copies this file
            # `from_pretrained` below is to hear of every weight that does not fit; those that are
            # computed, such as sinusoidal positions, are in no file.
            computed = self._keys_to_ignore_on_save or ()
            self._keys_to_ignore_on_load_missing: set[str] = {rf"^{escape(x)}$" for x in computed}
            self._keys_to_ignore_on_load_unexpected: set[str] = set()
        for entry in getattr(config, "kept_units", None) or ():
            for index, kept in enumerate(entry["kept"]):
                sublayer = find_sublayer(self, entry, index)
                if not 0 <= kept <= sublayer.units:
                    raise ValueError(
                        f"kept_units in config.json says {kept} of {sublayer.units} units for "
                        f"{entry['kind']}.{index}; get the checkpoint again"
                    )
                if kept < sublayer.units:
                    # Which ones does not matter, since the weights are loaded afterwards.
                    keep_units(self, sublayer, range(kept))
        if getattr(config, "read_token", None):
            compute_one_token(self, config.read_token)
            if config.read_token.get("handed_on"):
                select_tokens(self, config.read_token)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
    ) -> Any:
        """Load the model, strictly, with the arguments of transformers.

        Raises:
            WeightsMisfit: a weight is missing, or one is left over.
        """
        with_info = kwargs.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(
            pretrained_model_name_or_path, *model_args, output_loading_info=True, **kwargs
        )
        model, info = loaded
        set_stored_values(model.config)
        if getattr(model.config, "kept_units", None):
            misfits = {
                name: f", stored {tuple(held)} instead of {tuple(wanted)}"
                for name, held, wanted in info["mismatched_keys"]
            }
            for what, names in (
                ("lacks", info["missing_keys"]),
                ("has unexpected", info["unexpected_keys"]),
                ("misfits", misfits),
            ):
                if names:
                    first = min(names)
                    raise WeightsMisfit(
                        f"{pretrained_model_name_or_path} {what} {len(names)} weights, first "
                        f"{first}{misfits.get(first, '')}; get the checkpoint again"
                    )
        return (model, info) if with_info else model


def pruned_class(name: str) -> type[_Pruned]:
    """The class of pruned models for a class of transformers, by the name of either."""
    return _derived(name.removeprefix("Pruned"))


@cache
def _derived(dense: str) -> type[_Pruned]:
    bases = (_Pruned, getattr(transformers, dense))
    return type(f"Pruned{dense}", bases, {"__module__": __name__})


def __getattr__(name: str) -> type[_Pruned]:
    """`PrunedX` for every class `X` of transformers: `config.json` names one of them."""
    if name.startswith("Pruned") and hasattr(transformers, name.removeprefix("Pruned")):
        return pruned_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
