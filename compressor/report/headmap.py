"""Maps of units: which heads of which layers are kept, and how many neurons, as hand-written SVG.

Heads are cells; of neurons, of which a layer has thousands, a bar shows the share. Colors come from
the page's style sheet by class, so that light and dark both work; kept and removed also differ in
shape (filled cell against crossed outline, filled bar against outline), never in color alone.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from html import escape

from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.results import Scoring, Variant

SHADES = 5
_CELL = 20  # pixels from cell to cell
_SIDE = 17  # pixels of a cell's side
_LEFT = 30  # room for layer numbers
_RIGHT = 46  # room for "16/16"
_TOP = 18  # room for head numbers
_BAR = 236  # pixels of the bar of a feed-forward part that keeps all its neurons
_BAR_TOP = 2  # room above the first bar
_BAR_RIGHT = 92  # room for "3,072/3,072"


def shade_levels(scoring: Scoring | None) -> dict[tuple[str, int], int]:
    """(layer name, head) -> fifth of all finite scores the head is in, 0 (lowest) to 4.

    By rank over all kinds: scores of most methods span orders of magnitude, of which a linear
    scale would show two shades. Equal scores share a level. Empty without scores.
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
        key: SHADES * bisect.bisect_left(ordered, score) // len(ordered)
        for key, score in scores.items()
    }


def render_head_map(report: Report, variant: Variant, kind: str) -> str:
    """SVG of one kind of sublayer: a row per layer, a column per head.

    Each head is a `<g class="head kept">` or `<g class="head removed">` whose `<title>` says which
    head it is and its exact score. All text from the report is escaped.
    """
    names = facts.layers(variant, kind)
    columns = max(variant.heads[name] for name in names)
    scoring = facts.scoring(report, variant)
    levels = shade_levels(scoring)
    width = _LEFT + columns * _CELL + _RIGHT
    height = _TOP + len(names) * _CELL
    kept, total = facts.kept(variant, kind), facts.total(variant, kind)
    label = f"{facts.kind_label(kind)} of {variant.name}: {kept} of {total} heads kept"
    parts = [
        f'<svg class="head-map" data-kind="{escape(kind)}" data-variant="{escape(variant.name)}" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">',
        *(
            f'<text class="axis" x="{_LEFT + head * _CELL + _SIDE / 2}" y="12">{head}</text>'
            for head in range(columns)
        ),
    ]
    for row, name in enumerate(names):
        parts += _row(scoring, variant, name, _TOP + row * _CELL, levels)
    return "\n".join([*parts, "</svg>"])


def _row(
    scoring: Scoring | None,
    variant: Variant,
    name: str,
    top: int,
    levels: dict[tuple[str, int], int],
) -> Iterator[str]:
    count, kept = variant.heads[name], set(variant.kept[name])
    scores = scoring.values.get(name, []) if scoring else []
    middle = top + _SIDE / 2 + 4
    layer = name.rpartition(".")[2]
    yield f'<text class="axis layer" x="{_LEFT - 8}" y="{middle}">{escape(layer)}</text>'
    for head in range(count):
        title = f"{name} head {head}: {'kept' if head in kept else 'removed'}"
        if head < len(scores):
            title += f", score {scores[head]!r}"
        level = levels.get((name, head))
        yield _head(_LEFT + head * _CELL, top, title, level, kept=head in kept)
    end = _LEFT + count * _CELL + 4
    emphasis = "" if kept or not count else " empty"
    yield f'<text class="count{emphasis}" x="{end}" y="{middle}">{len(kept)}/{count}</text>'


def _head(left: int, top: int, title: str, level: int | None, *, kept: bool) -> str:
    box = f'x="{left}" y="{top}" width="{_SIDE}" height="{_SIDE}" rx="3"'
    if kept:
        shade = "unscored" if level is None else f"shade-{level}"
        return f'<g class="head kept {shade}"><title>{escape(title)}</title><rect {box}></rect></g>'
    near, far = 4, _SIDE - 4
    cross = (
        f"M{left + near} {top + near}L{left + far} {top + far}"
        f"M{left + far} {top + near}L{left + near} {top + far}"
    )
    return (
        f'<g class="head removed"><title>{escape(title)}</title><rect {box}></rect>'
        f'<path d="{cross}"></path></g>'
    )


def render_neuron_bars(variant: Variant, kind: str) -> str:
    """SVG of one kind of feed-forward part: a row per layer, with a bar for the neurons kept.

    Each part is a `<g class="neurons">` of an outline for all its neurons and a filled bar for
    those kept; its `<title>` says how many. All text from the report is escaped.
    """
    names = facts.layers(variant, kind)
    width, height = _LEFT + _BAR + _BAR_RIGHT, _BAR_TOP + len(names) * _CELL
    kept, total = facts.kept(variant, kind), facts.total(variant, kind)
    label = f"{facts.kind_label(kind)} of {variant.name}: {kept:,} of {total:,} neurons kept"
    parts = [
        f'<svg class="head-map" data-kind="{escape(kind)}" data-variant="{escape(variant.name)}" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">'
    ]
    widest = max((variant.neurons[name] for name in names), default=1)
    for row, name in enumerate(names):
        parts += _bar(variant, name, _BAR_TOP + row * _CELL, widest)
    return "\n".join([*parts, "</svg>"])


def _bar(variant: Variant, name: str, top: int, widest: int) -> Iterator[str]:
    """One row; bars are as long as the part is wide, compared with the widest of its kind."""
    kept, total = variant.kept_neurons[name], variant.neurons[name]
    middle = top + _SIDE / 2 + 4
    layer = name.rpartition(".")[2]
    title = f"{name}: {kept:,} of {total:,} neurons kept ({numbers.percent(kept, total)})"
    outline, filled = (round(_BAR * count / widest, 1) for count in (total, kept))
    box = f'x="{_LEFT}" y="{top}" height="{_SIDE}" rx="3"'
    yield f'<text class="axis layer" x="{_LEFT - 8}" y="{middle}">{escape(layer)}</text>'
    yield (
        f'<g class="neurons"><title>{escape(title)}</title>'
        f'<g class="removed"><rect {box} width="{outline}"></rect></g>'
        + (f'<g class="kept"><rect {box} width="{filled}"></rect></g>' if kept else "")
        + "</g>"
    )
    emphasis = "" if kept or not total else " empty"
    end = _LEFT + outline + 4
    yield f'<text class="count{emphasis}" x="{end}" y="{middle}">{kept:,}/{total:,}</text>'


def render_legend(report: Report) -> str:
    """SVG that explains the cells: removed, the shades of kept heads, and kept without a score."""
    shaded = [shade_levels(facts.scoring(report, variant)) for variant in facts.pruned(report)]
    levels = any(shaded)
    heads = {(n, head) for n, count in report.dense.heads.items() for head in range(count)}
    entries = [_head(0, 0, "removed", None, kept=False), _text(_CELL + 2, "removed")]
    left = 92
    if levels:
        entries.append(_text(left, "kept, score low"))
        left += 94
        for level in range(SHADES):
            fifth = ("lowest", "second", "middle", "fourth", "highest")[level]
            entries.append(_head(left, 0, f"kept, {fifth} fifth of all scores", level, kept=True))
            left += _CELL
        entries.append(_text(left + 2, "high"))
        left += 44
    if not all(heads <= scored.keys() for scored in shaded):
        name = "kept, no score" if levels else "kept"
        entries += [_head(left, 0, name, None, kept=True), _text(left + _CELL + 2, name)]
    label = "Legend: a crossed outline is a removed head, a filled cell a kept one"
    shades = "; stronger shades are higher scores, in fifths" if levels else ""
    return (
        f'<svg class="legend" viewBox="0 0 440 {_SIDE}" width="440" height="{_SIDE}" role="img" '
        f'aria-label="{label}{shades}">{"".join(entries)}</svg>'
    )


def _text(left: int, text: str) -> str:
    return f'<text class="note" x="{left}" y="{_SIDE - 4}">{text}</text>'
