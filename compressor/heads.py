"""The project's vocabulary: attention layers, scores of their heads, and which heads are kept.

One idea carries everything: a head is a slice of the input of its layer's output projection.
Nothing here imports torch, so masks and scores can be read wherever an artifact is deployed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from compressor.errors import InputError

Kind = Literal["encoder_self", "decoder_self", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HEADS = "heads.json"


@dataclass(frozen=True)
class AttentionLayer:
    """One multi-head attention module of a model, as `find_attention_layers` found it.

    Paths are dotted module paths from the model's root; `query`, `key`, `value` and `output` are
    linear projections, `block` is the module that reshapes into heads and calls the attention.
    """

    kind: Kind
    index: int
    heads: int
    head_dim: int
    block: str
    query: str
    key: str
    value: str
    output: str

    @property
    def name(self) -> str:
        """Stable name used in masks, scores and reports, for example `cross.2`."""
        return f"{self.kind}.{self.index}"


@dataclass(frozen=True)
class HeadScores:
    """A score per head per attention layer; higher means more important.

    Args:
        values: layer name -> one score per head, in head order.
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
        """All heads as (layer name, head), least important first; ties by position."""
        ranked = [
            (score, position, (name, head))
            for position, (name, scores) in enumerate(self.values.items())
            for head, score in enumerate(scores)
        ]
        return [head for _, _, head in sorted(ranked)]


@dataclass(frozen=True)
class HeadMask:
    """Keep (True) or remove (False) for every head of every attention layer."""

    keep: Mapping[str, tuple[bool, ...]]

    @classmethod
    def full(cls, layers: Iterable[AttentionLayer]) -> HeadMask:
        """The mask that keeps every head of `layers`."""
        return cls({layer.name: (True,) * layer.heads for layer in layers})

    def without(self, heads: Iterable[tuple[str, int]]) -> HeadMask:
        """A copy with the given (layer name, head) pairs removed as well."""
        keep = {name: list(flags) for name, flags in self.keep.items()}
        for name, head in heads:
            keep[name][head] = False
        return HeadMask({name: tuple(flags) for name, flags in keep.items()})

    def kept(self, name: str) -> list[int]:
        """Indices of the kept heads of one layer, ascending."""
        return [head for head, flag in enumerate(self.keep[name]) if flag]

    def count(self, kind: str | None = None) -> int:
        """Number of kept heads, of one kind or of all."""
        return sum(sum(flags) for name, flags in self.keep.items() if kind in (None, kind_of(name)))

    def total(self, kind: str | None = None) -> int:
        """Number of heads before any removal, of one kind or of all."""
        return sum(len(flags) for name, flags in self.keep.items() if kind in (None, kind_of(name)))

    def counts(self) -> dict[str, int]:
        """Kept heads per layer name."""
        return {name: sum(flags) for name, flags in self.keep.items()}

    def kinds(self) -> list[str]:
        """Kinds of attention that occur, in the canonical order."""
        present = {kind_of(name) for name in self.keep}
        return [kind for kind in KINDS if kind in present]

    def to_json(self) -> dict[str, list[int]]:
        """Layer name -> kept head indices, with the head counts kept beside it by the caller."""
        return {name: self.kept(name) for name in self.keep}

    @classmethod
    def from_json(cls, kept: Mapping[str, list[int]], heads: Mapping[str, int]) -> HeadMask:
        """Inverse of `to_json`, given each layer's dense head count."""
        return cls({n: tuple(h in set(kept[n]) for h in range(heads[n])) for n in heads})


def kind_of(name: str) -> str:
    """`cross` of `cross.2`."""
    return name.rpartition(".")[0]


def read_heads(directory: Path) -> dict[str, Any]:
    """The contents of `heads.json`: `kept` and `heads` per layer, scores, method, budget, seed."""
    path = directory / HEADS
    try:
        heads = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(heads["kept"], dict) or set(heads["kept"]) != set(heads["heads"]):
            raise ValueError("`kept` and `heads` must name the same layers")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a list of kept heads: {error}") from error
    return heads
