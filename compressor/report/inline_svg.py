"""Turn a matplotlib figure into SVG that can stand inside an HTML page, light or dark."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from compressor.report import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colors of a figure -> variables of the style sheet, which have a light and a dark value.
VARIABLES = {
    plots.INK: "var(--ink)",
    plots.FAINT: "var(--grid)",
    plots.DENSE: "var(--dense)",
    **{color: f"var(--series-{i})" for i, color in enumerate(plots.COLORS)},
}
_COLOR = re.compile("|".join(VARIABLES))
_FONT = re.compile(r"font:\s*([\d.]+)px[^;]*")
_REFERENCE = re.compile(r"url\(#")


def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """`figure` as an `<svg>` element without prolog, metadata, comments or namespaces.

    Args:
        figure: drawn and rendered inside `plots.plot_style(name)`.
        name: prefix of every id, unique in the page.
        title: short name, read out and shown on hover.
        description: what the plot shows, for those who cannot see it.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for child in [c for c in root if c.tag.endswith(("}metadata", "}title", "}desc"))]:
        root.remove(child)
    # Inside a page, matplotlib's `*{stroke-linejoin: round; …}` would be a rule for everything.
    for parent in list(root.iter()):
        for style in [c for c in parent if c.tag.endswith("}style")]:
            parent.remove(style)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: text for key, text in element.attrib.items()}
        element.attrib = {key: _attribute(key, text, name) for key, text in attributes.items()}
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {
        "class": "plot",
        "role": "img",
        "stroke-linejoin": "round",
        "aria-labelledby": f"{name}-title {name}-description",
    }
    for position, (tag, key, text) in enumerate(
        (("title", "title", title), ("desc", "description", description))
    ):
        label = ElementTree.Element(tag, {"id": f"{name}-{key}"})
        label.text = text
        root.insert(position, label)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _attribute(key: str, text: str, name: str) -> str:
    """One attribute with the page's ids, colors and font."""
    if key == "id":
        return f"{name}-{text}"
    if key == "href" and text.startswith("#"):
        return f"#{name}-{text[1:]}"
    text = _REFERENCE.sub(f"url(#{name}-", text)
    if key == "style":
        text = _FONT.sub(r"font-size: \1px", text)
        text = _COLOR.sub(lambda found: VARIABLES[found[0]], text)
    return text
