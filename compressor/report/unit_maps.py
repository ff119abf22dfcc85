"""Maps of units for the page: which heads of which layers are kept, and how many neurons.

Kept and removed differ in shape as well as in color: the page crosses removed heads out.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass

from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.results import Ranking, Variant

SHADES = 5


@dataclass(frozen=True)
class MapRow:
    """One sublayer.

    Args:
        layer: its number.
        cells: of attention, title and class of each head.
        title: of a feed-forward part.
        widths: of a feed-forward part, in percent of the widest: all neurons, those kept.
        count: kept of all.
    """

    layer: str
    count: str
    is_empty: bool
    cells: tuple[tuple[str, str], ...] = ()
    title: str = ""
    widths: tuple[float, float] = (0, 0)

    @property
    def has_unscored(self) -> bool:
        """Whether a head is kept that has no finite score."""
        return any(look == "kept unscored" for _, look in self.cells)


@dataclass(frozen=True)
class UnitMap:
    """The sublayers of one kind of a variant, by layer."""

    kind: str
    heading: str
    label: str
    rows: tuple[MapRow, ...]


def unit_maps(report: Report, variant: Variant) -> Iterator[UnitMap]:
    """The maps of a variant, one for each kind of sublayer that the report tells about."""
    scoring = facts.scoring(report, variant)
    shades = _shades(scoring)
    for kind in facts.kinds(report):
        names = facts.layers(variant, kind)
        if kind in facts.neuron_kinds(report):
            widest = max(variant.neurons[name] for name in names) or 1
            rows, units = [_bar(variant, name, widest) for name in names], "neurons"
        else:
            rows, units = [_heads(variant, name, scoring, shades) for name in names], "heads"
        label = facts.kind_label(kind)
        count = f"{facts.kept(variant, kind):,} of {facts.total(variant, kind):,}"
        yield UnitMap(
            kind,
            f"{label.capitalize()}: {count}",
            f"{label} of {variant.name}: {count} {units} kept",
            tuple(rows),
        )


def _heads(
    variant: Variant, name: str, scoring: Ranking | None, shades: dict[tuple[str, int], str]
) -> MapRow:
    count, kept = variant.heads[name], set(variant.kept[name])
    scores = scoring.values.get(name, []) if scoring else []
    cells = []
    for head in range(count):
        title = f"{name} head {head}: {'kept' if head in kept else 'removed'}"
        if head < len(scores):
            title += f", score {scores[head]!r}"
        look = f"kept {shades.get((name, head), 'unscored')}" if head in kept else "removed"
        cells.append((title, look))
    layer = name.rpartition(".")[2]
    return MapRow(layer, f"{len(kept)}/{count}", bool(count and not kept), tuple(cells))


def _bar(variant: Variant, name: str, widest: int) -> MapRow:
    kept, total = variant.kept_neurons[name], variant.neurons[name]
    return MapRow(
        layer=name.rpartition(".")[2],
        count=f"{kept:,}/{total:,}",
        is_empty=bool(total and not kept),
        title=f"{name}: {kept:,} of {total:,} neurons kept ({numbers.percent(kept, total)})",
        widths=(round(100 * total / widest, 1), round(100 * kept / widest, 1)),
    )


def _shades(scoring: Ranking | None) -> dict[tuple[str, int], str]:
    """(layer name, head) -> fifth of all finite scores it is in, `shade-0` (lowest) to `shade-4`.

    By rank over all kinds: scores of most methods span orders of magnitude, of which a linear
    scale would show two shades. Equal scores share a shade. Empty without scores.
    """
    if scoring is None:
        return {}
    scores = {
        (name, head): score
        for name, values in scoring.values.items()
        for head, score in enumerate(values)
        if math.isfinite(score)
    }
    ordered = sorted(scores.values())
    return {
        key: f"shade-{SHADES * bisect.bisect_left(ordered, score) // len(ordered)}"
        for key, score in scores.items()
    }
