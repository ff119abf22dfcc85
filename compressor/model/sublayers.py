"""The project's vocabulary: sublayers, scores of their units, and which units are kept.

One idea carries everything: a unit is a slice of the input of a sublayer's output projection. An
attention head is a slice of `head_dim` columns of the attention's output projection. Gating a unit
multiplies that slice, scoring it looks at the slice and its gradient, removing it deletes the slice
with the matching rows of the projections that feed it.

Nothing here imports torch, so masks and scores can be read wherever an artifact is deployed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal["encoder_self", "decoder_self", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ATTENTION_KINDS: frozenset[str] = frozenset(("encoder_self", "decoder_self", "cross"))
SCORES_SCHEMA = 1


@dataclass(frozen=True)
class Sublayer:
    """An attention of a model; a feed-forward part will be another kind.

    Args:
        kind: what it is and where, for example `cross`.
        index: number of the Transformer layer in its stack.
        units: how many units the dense model has here.
        unit_width: columns of the output projection that belong to one unit; `head_dim` of a head.
        block: path of the module that is replaced when no unit is left; it splits its input into
            heads.
        inputs: role (`query`, `key`, `value`) -> path of a projection whose rows belong to units.
        output: path of the projection whose columns belong to units.

    Paths are dotted module paths from the model's root.
    """

    kind: Kind
    index: int
    units: int
    unit_width: int
    block: str
    inputs: Mapping[str, str] = field(hash=False)
    output: str

    @property
    def name(self) -> str:
        """Stable name used in masks, scores and reports, for example `cross.2`."""
        return f"{self.kind}.{self.index}"

    @property
    def is_attention(self) -> bool:
        """Whether its units are heads."""
        return self.kind in ATTENTION_KINDS


@dataclass(frozen=True)
class Scores:
    """A score per unit per sublayer; higher means more important.

    Args:
        values: sublayer name -> one score per unit, in unit order.
        method: name of the scoring method, as on the command line.
        signature: everything that changes the numbers, for example
            `taylor|per:token|normalized:layer|rows:400`.
        cost: measured cost, with units in the key names (`seconds`, `forward_passes`, …).
    """

    values: Mapping[str, tuple[float, ...]]
    method: str
    signature: str
    cost: Mapping[str, float]

    def ascending(self) -> list[tuple[str, int]]:
        """All units as (sublayer name, unit), least important first; ties by position."""
        ranked = [
            (score, position, (name, unit))
            for position, (name, scores) in enumerate(self.values.items())
            for unit, score in enumerate(scores)
        ]
        return [unit for _, _, unit in sorted(ranked)]

    def to_json(self) -> dict[str, Any]:
        """The scores as a JSON object: the file that `compress score` writes."""
        return {
            "schema": SCORES_SCHEMA,
            "method": self.method,
            "signature": self.signature,
            "cost": dict(self.cost),
            "scores": {name: list(values) for name, values in self.values.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Scores:
        """Inverse of `to_json`.

        Raises:
            KeyError, TypeError, AttributeError: `data` is something else.
        """
        values = {name: tuple(scores) for name, scores in data["scores"].items()}
        return cls(values, data["method"], data["signature"], data["cost"])


@dataclass(frozen=True)
class Mask:
    """Keep (True) or remove (False) for every unit of every sublayer."""

    keep: Mapping[str, tuple[bool, ...]]

    @classmethod
    def full(cls, sublayers: Iterable[Sublayer]) -> Mask:
        """The mask that keeps every unit."""
        return cls({sublayer.name: (True,) * sublayer.units for sublayer in sublayers})

    def without(self, units: Iterable[tuple[str, int]]) -> Mask:
        """A copy with the given (sublayer name, unit) pairs removed as well."""
        keep = {name: list(flags) for name, flags in self.keep.items()}
        for name, unit in units:
            keep[name][unit] = False
        return Mask({name: tuple(flags) for name, flags in keep.items()})

    def __str__(self) -> str:
        """`43 of 72`, for messages."""
        return f"{self.count()} of {self.total()}"

    def kept(self, name: str) -> list[int]:
        """Indices of the kept units of one sublayer, ascending."""
        return [unit for unit, flag in enumerate(self.keep[name]) if flag]

    def count(self, kind: str | None = None) -> int:
        """Number of kept units, of one kind or of all."""
        return sum(sum(flags) for name, flags in self.keep.items() if kind in (None, kind_of(name)))

    def total(self, kind: str | None = None) -> int:
        """Number of units before any removal, of one kind or of all."""
        return sum(len(flags) for name, flags in self.keep.items() if kind in (None, kind_of(name)))

    def counts(self) -> dict[str, int]:
        """Kept units per sublayer name."""
        return {name: sum(flags) for name, flags in self.keep.items()}

    def totals(self) -> dict[str, int]:
        """Units before any removal per sublayer name."""
        return {name: len(flags) for name, flags in self.keep.items()}

    def kinds(self) -> list[str]:
        """Kinds of sublayers that occur, in the canonical order."""
        present = {kind_of(name) for name in self.keep}
        return [kind for kind in KINDS if kind in present]

    def to_json(self) -> dict[str, list[int]]:
        """Sublayer name -> kept units; the dense unit counts stand beside it, see `totals`."""
        return {name: self.kept(name) for name in self.keep}

    @classmethod
    def from_json(cls, kept: Mapping[str, list[int]], totals: Mapping[str, int]) -> Mask:
        """Inverse of `to_json`, given each sublayer's dense unit count."""
        return cls(
            {
                name: tuple(unit in set(kept[name]) for unit in range(total))
                for name, total in totals.items()
            }
        )


def kind_of(name: str) -> str:
    """`cross` of `cross.2`."""
    return name.rpartition(".")[0]
