"""The project's vocabulary: sublayers, scores of their units, and which units are kept.

A unit is a slice of the input of a sublayer's output projection: a head `head_dim` columns of an
attention's, a neuron one column of a feed-forward part's. Of encoders that read one token, tokens
are units, too: each layer but the last hands on `TOKEN_UNITS` tenths of a row's tokens, or fewer.
Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

Kind = Literal[
    "encoder_self", "decoder_self", "cross", "encoder_ffn", "decoder_ffn", "encoder_tokens"
]
Units = Literal["heads", "neurons", "tokens"]
TokenRead = Literal["first", "last"]  # of each row, by a head that reads one token alone
KINDS: tuple[Kind, ...] = get_args(Kind)
# The units of each kind of sublayer.
UNITS_OF: dict[str, Units] = {
    "encoder_self": "heads",
    "decoder_self": "heads",
    "cross": "heads",
    "encoder_ffn": "neurons",
    "decoder_ffn": "neurons",
    "encoder_tokens": "tokens",
}
_POOLS: dict[str, Units] = {"heads": "heads", "neurons": "neurons", "tokens": "tokens"}
TOKEN_KIND: Kind = "encoder_tokens"
# Units of tokens in a layer, most significant first: a tenth of the row's tokens each. Those that
# are removed are the last ones, so a layer that keeps n of them hands on n tenths.
TOKEN_UNITS = 10
# The stack whose tokens are the keys of an attention that does not attend to its own stack.
_OTHER_KEYS: dict[str, str] = {"cross": "encoder"}
_TOKENS = {"encoder": "input_ids", "decoder": "decoder_input_ids"}  # inputs of a model
SCORES_SCHEMA = 2
Value = TypeVar("Value")


def parts_of(role: str) -> list[str]:
    """The roles of a projection that holds several, such as `gate` and `up` in `gate+up`."""
    return role.split("+")


@dataclass(frozen=True)
class Sublayer:
    """An attention, or a feed-forward part, of one Transformer layer, with paths of its modules."""

    kind: Kind
    index: int  # of the layer in its stack
    units: int  # of the dense model
    unit_width: int  # columns of the output projection that belong to one unit
    block: str  # replaced when no unit is left; an attention's splits its input into heads
    # Role (query, key, value; up, gate) -> a projection whose rows belong to units. Where it holds
    # several, one after the other, their roles are joined: `query+key+value`. The output of a gate
    # passes the activation and multiplies that of up.
    inputs: Mapping[str, str] = field(hash=False)
    output: str  # the projection whose columns belong to units
    biased_by: str | None = None  # the attention that makes its bias of relative positions
    scaled: bool = True  # scores are divided by the square root of the unit width

    @property
    def scale(self) -> float:
        """The factor of attention scores."""
        return float(self.unit_width**-0.5) if self.scaled else 1.0

    @property
    def name(self) -> str:
        """Its name in masks, scores and reports: `cross.2`."""
        return f"{self.kind}.{self.index}"

    @property
    def layer(self) -> str:
        """The Transformer layer that it is in: `decoder.2`."""
        return layer_of(self.name)

    @property
    def stack(self) -> str:
        """The stack that it is in: `encoder` or `decoder`."""
        return stack_of(self.name)

    @property
    def is_attention(self) -> bool:
        """Whether its units are heads."""
        return UNITS_OF[self.kind] == "heads"

    @property
    def is_self_attention(self) -> bool:
        """Whether it is an attention to the tokens of its own stack."""
        return is_self_attention(self.kind)

    @property
    def query_ids(self) -> str:
        """The model's input that an attention's queries are made of."""
        return _TOKENS[self.stack]

    @property
    def key_ids(self) -> str:
        """The model's input that an attention's keys are made of."""
        return _TOKENS[_OTHER_KEYS.get(self.kind, self.stack)]

    @property
    def layer_path(self) -> str:
        """Path of the Transformer layer that it is in, up to the layer's number."""
        parts = self.output.split(".")
        return ".".join(parts[: parts.index(str(self.index)) + 1])


def by_layer(sublayers: Iterable[Sublayer]) -> dict[str, list[Sublayer]]:
    """Path of each Transformer layer -> its sublayers, both in the order of execution."""
    layers: dict[str, list[Sublayer]] = {}
    for sublayer in sorted(
        sublayers, key=lambda x: (x.stack != "encoder", x.index, KINDS.index(x.kind))
    ):
        layers.setdefault(sublayer.layer_path, []).append(sublayer)
    return layers


@dataclass(frozen=True)
class Scores:
    """A score per unit per sublayer; higher means more important.

    Args:
        values: sublayer name -> one score per unit, in unit order.
        method: name of the scoring method.
        signature: all that changes the numbers: `taylor|per:token|normalized:layer|rows:400`.
        cost: what was measured, with units in the names (`seconds`, `forward_passes`, …).
        weights: fingerprint of the scored weights; empty where it was not recorded.
    """

    values: Mapping[str, tuple[float, ...]]
    method: str
    signature: str
    cost: Mapping[str, float] = field(compare=False)
    weights: str = ""

    def ascending(self) -> list[tuple[str, int]]:
        """All units as (sublayer name, unit), least important first; ties by position."""
        units = {(name, i): x for name, scores in self.values.items() for i, x in enumerate(scores)}
        return sorted(units, key=units.__getitem__)

    def to_json(self) -> dict[str, Any]:
        """The scores as a JSON object."""
        return {
            "schema": SCORES_SCHEMA,
            "method": self.method,
            "signature": self.signature,
            "cost": dict(self.cost),
            "scores": {name: list(values) for name, values in self.values.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Scores:
        """Read the scores from an object of `to_json`.

        Raises:
            KeyError: an entry is missing.
            TypeError: it has another type.
            AttributeError: it has another type.
        """
        values = {name: tuple(scores) for name, scores in data["scores"].items()}
        weights = data.get("weights", "")
        return cls(values, data["method"], data["signature"], data["cost"], weights)


@dataclass(frozen=True)
class Mask:
    """Keep (True) or remove (False) for every unit of every sublayer.

    Args:
        keep: sublayer name -> one flag per unit.
        dropped: Transformer layers that are skipped. They keep no unit, nor normalizations and
            biases, which others without units still have.
    """

    keep: Mapping[str, tuple[bool, ...]]
    dropped: frozenset[str] = frozenset()

    @classmethod
    def full(cls, sublayers: Iterable[Sublayer]) -> Mask:
        """The mask of a dense model."""
        return cls({sublayer.name: (True,) * sublayer.units for sublayer in sublayers})

    def with_tokens(self) -> Mask:
        """A copy in which tokens are units, too: each encoder layer but the last hands on all."""
        layers = [x for x in self.layers() if x.startswith("encoder")]
        names = [f"{TOKEN_KIND}.{layer.partition('.')[2]}" for layer in layers[:-1]]
        full = dict.fromkeys(names, (True,) * TOKEN_UNITS)
        return Mask({**full, **self.keep}, self.dropped).without_layers(self.dropped)

    def handed_on(self) -> tuple[int, ...]:
        """Tenths of a row's tokens that each encoder layer that is left, but the last, hands on.

        None hands on more than it gets. Empty where tokens are no units.
        """
        if not self.total(TOKEN_KIND):
            return ()
        left = [x for x in self.layers() if x.startswith("encoder") and x not in self.dropped]
        tenths, least = [], TOKEN_UNITS
        for layer in left[:-1]:
            least = min(least, sum(self.keep[f"{TOKEN_KIND}.{layer.partition('.')[2]}"]))
            tenths.append(least)
        return tuple(tenths)

    def without(self, units: Iterable[tuple[str, int]]) -> Mask:
        """A copy with more units, as (sublayer name, unit), removed."""
        keep = {name: list(flags) for name, flags in self.keep.items()}
        for name, unit in units:
            keep[name][unit] = False
        return Mask({name: tuple(flags) for name, flags in keep.items()}, self.dropped)

    def without_layers(self, layers: Iterable[str]) -> Mask:
        """A copy that skips more Transformer layers."""
        dropped = self.dropped.union(layers)
        keep = {n: (False,) * len(x) if layer_of(n) in dropped else x for n, x in self.keep.items()}
        return Mask(keep, dropped)

    def of_layers_left(self) -> Mask:
        """The mask of a model without the dropped layers: the others are numbered anew."""
        left = renumbered(self.keep, self.dropped)
        layers = sum(name.startswith("encoder_self.") for name in left)
        left.pop(f"{TOKEN_KIND}.{layers - 1}", None)  # the last layer hands on nothing
        return Mask(left)

    def layers(self) -> list[str]:
        """The Transformer layers, dropped ones too, the encoder's before the decoder's."""
        names = {layer_of(name) for name in self.keep}
        return sorted(names, key=lambda x: (not x.startswith("encoder"), int(x.split(".")[1])))

    def __str__(self) -> str:
        """`43 of 72 heads, 1,024 of 3,072 neurons, 10 of 12 layers`: all heads, and what is cut.

        Of tokens the mean share that layers hand on: `62% of tokens`.
        """
        parts = []
        for units in ("heads", "neurons"):
            kept, total = self.count(units), self.total(units)
            if total and (units == "heads" or kept < total):
                parts.append(f"{kept:,} of {total:,} {units}")
        tenths = self.handed_on()
        if tenths and min(tenths) < TOKEN_UNITS:
            parts.append(f"{sum(tenths) / len(tenths) / TOKEN_UNITS:.0%} of tokens")
        if self.dropped:
            total = len(self.layers())
            parts.append(f"{total - len(self.dropped)} of {total} layers")
        return ", ".join(parts)

    def kept(self, name: str) -> list[int]:
        """Numbers of the kept units of a sublayer, ascending."""
        return [unit for unit, flag in enumerate(self.keep[name]) if flag]

    def count(self, which: str | None = None) -> int:
        """Number of kept units.

        Args:
            which: a kind of sublayer, or `heads`, `neurons` or `tokens` for all of these; None:
                all units.
        """
        return sum(sum(flags) for name, flags in self.keep.items() if belongs(name, which))

    def total(self, which: str | None = None) -> int:
        """Number of units, kept or not; see `count`."""
        return sum(len(flags) for name, flags in self.keep.items() if belongs(name, which))

    def counts(self) -> dict[str, int]:
        """Sublayer name -> number of kept units."""
        return {name: sum(flags) for name, flags in self.keep.items()}

    def totals(self) -> dict[str, int]:
        """Sublayer name -> number of units."""
        return {name: len(flags) for name, flags in self.keep.items()}

    def kinds(self) -> list[str]:
        """Kinds of the sublayers, in the order of `KINDS`."""
        present = {kind_of(name) for name in self.keep}
        return [kind for kind in KINDS if kind in present]

    def to_json(self) -> dict[str, list[int]]:
        """Sublayer name -> kept units; the dense unit counts are in `totals`."""
        return {name: self.kept(name) for name in self.keep}

    @classmethod
    def from_json(cls, kept: Mapping[str, list[int]], totals: Mapping[str, int]) -> Mask:
        """Read a mask from sublayer names with kept units, and with their numbers of units."""
        units = {name: set(kept[name]) for name in totals}
        return cls({name: tuple(i in units[name] for i in range(n)) for name, n in totals.items()})


def is_self_attention(kind: str) -> bool:
    """Whether a kind of sublayer is an attention to the tokens of its own stack."""
    return UNITS_OF[kind] == "heads" and kind not in _OTHER_KEYS


def belongs(name: str, which: str | None) -> bool:
    """Whether a sublayer is of a kind, or has these units (`heads`, …); True for None."""
    return which in (None, kind_of(name), units_of(name))


def units_of(name: str) -> Units:
    """The units of a sublayer, kind or pool: `heads` for `cross.2`, `cross`, `heads`."""
    kind = name.partition(".")[0]
    return UNITS_OF.get(kind) or _POOLS[kind]


def kind_of(name: str) -> str:
    """`cross` of `cross.2`."""
    return name.rpartition(".")[0]


def stack_of(name: str) -> str:
    """The stack of a sublayer: `decoder` of `cross.2`."""
    return layer_of(name).partition(".")[0]


def layer_of(name: str) -> str:
    """The Transformer layer of a sublayer: `decoder.2` of `cross.2`."""
    kind, _, index = name.rpartition(".")
    return f"{'encoder' if kind.startswith('encoder') else 'decoder'}.{index}"


def renumbered(values: Mapping[str, Value], dropped: Collection[str]) -> dict[str, Value]:
    """Values by sublayer for the model without dropped layers: the layers behind them move up."""
    if not dropped:
        return dict(values)
    left: dict[str, Value] = {}
    for name in sorted(values, key=lambda name: int(name.rpartition(".")[2])):
        if layer_of(name) not in dropped:
            kind = kind_of(name)
            left[f"{kind}.{sum(kind_of(other) == kind for other in left)}"] = values[name]
    return left
