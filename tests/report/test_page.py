"""report.html, parsed with html.parser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from compressor.report import facts, plots, sentences
from compressor.report.page import render_html
from compressor.report.schema import Report
from compressor.report.sections import sections
from tests.helpers.report_samples import (
    HOSTILE,
    MAKERS,
    classifier_report,
    hostile_report,
    mixed_report,
    translator_report,
)

SECTIONS = ["gate", "quality", "throughput", "size", "units", "verification", "origin",
            "environment"]  # fmt: skip
VOID = {"meta", "br", "hr", "img", "input", "link", "source"}


class Element:
    """A parsed element: tag, attributes, text and child elements."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.content: list[str | Element] = []

    @property
    def children(self) -> list[Element]:
        return [part for part in self.content if isinstance(part, Element)]

    def find(self, tag: str, **attributes: str) -> list[Element]:
        """Descendants with that tag and those attributes (`_` in a name stands for `-`)."""
        wanted = {key.rstrip("_").replace("_", "-"): text for key, text in attributes.items()}
        found = [
            child
            for child in self.children
            if child.tag == tag and wanted.items() <= child.attributes.items()
        ]
        return found + [hit for child in self.children for hit in child.find(tag, **attributes)]

    @property
    def text(self) -> str:
        parts = (part if isinstance(part, str) else part.text for part in self.content)
        return " ".join("".join(parts).split())

    def walk(self) -> list[Element]:
        return [self, *(element for child in self.children for element in child.walk())]


class Tree(HTMLParser):
    """Builds `Element`s and insists that tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("document", {})
        self.stack = [self.root]
        self.feed(text)
        self.close()
        assert self.stack == [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names)
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.stack[-1].content.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.stack[-1].content.append(data)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {make.__name__: render_html(make()) for make in MAKERS}


def tree(pages: dict[str, str], make) -> Element:
    return Tree(pages[make.__name__]).root


def shown_table(page: Element, key: str) -> list[list[str]]:
    (table,) = page.find("table", id=f"table-{key}")
    return [[cell.text for cell in row.children] for row in table.find("tr")]


@pytest.mark.parametrize("make", MAKERS)
def test_tables_show_every_cell_of_the_report(pages, make):
    page, report = tree(pages, make), make()
    for table in (table for section in sections(report) for table in section.tables):
        head, *body = shown_table(page, table.key)
        if table.columns:
            assert head == [column.title for column in table.columns]
        assert (body if table.columns else [head, *body]) == [list(row) for row in table.rows]
        (caption,) = page.find("caption", id=f"caption-{table.key}")
        assert caption.text == table.caption


@pytest.mark.parametrize("make", MAKERS)
def test_sentences_and_sections_are_there(pages, make):
    page, report = tree(pages, make), make()
    items = [item.text for item in page.find("li")]
    for section in sections(report):
        assert set(section.sentences) <= set(items)
    assert page.find("p", id="verdict")[0].text == sentences.verdict(report)
    wanted = SECTIONS if report.gate else SECTIONS[1:]
    assert [section.attributes["id"] for section in page.find("section")] == wanted
    linked = [link.attributes["href"] for link in page.find("nav")[0].find("a")]
    assert linked == [f"#{name}" for name in wanted]
    assert [len(page.find(tag)) for tag in ("h1", "h2")] == [1, len(wanted)]


def figures(pages: dict[str, str], make) -> list[list[str]]:
    boxes = tree(pages, make).find("dl")[0].children
    return [[part.text for part in box.children] for box in boxes]


def test_key_figures_are_of_the_leading_variant(pages):
    assert figures(pages, mixed_report)[:3] == [
        ["Heads kept", "72 of 144", "50%"],
        ["Neurons kept", "416 of 768", "54%"],
        ["Multiply-adds", "52%", "of dense"],
    ]
    assert figures(pages, translator_report) == [
        ["Heads kept", "72 of 144", "50%"],
        ["BLEU against dense", "-0.31", "[-0.62, +0.01], p = 0.060: no significant difference"],
        ["Speed-up at batch 1", "0.99", "[0.97, 1.01], multiply-adds 1.28: does not pay"],
        ["Speed-up at batch 64", "1.16", "[1.14, 1.18], multiply-adds 1.34: pays"],
        ["ONNX size", "140.5 MB", "-21.2% against dense"],
    ]


def heads(page: Element, **attributes: str) -> dict[tuple[str, int], tuple[str, list[str]]]:
    """(layer, head) -> what its cell tells, and its classes."""
    found = {}
    for drawn in page.find("table", class_="map", **attributes):
        for cell in drawn.find("td"):
            name, _, head = cell.attributes.get("title", "").partition(" head ")
            if head:
                number, _, told = head.partition(": ")
                found[name, int(number)] = told, cell.attributes["class"].split()[1:]
    return found


@pytest.mark.parametrize("make", MAKERS)
def test_head_maps_have_a_cell_per_head(pages, make):
    page, report = tree(pages, make), make()
    maps = page.find("table", class_="map")
    assert len(maps) == len(report.variants) * len(facts.kinds(report))
    for variant in report.variants:
        cells = heads(page, data_variant=variant.name)
        assert len(cells) == sum(variant.heads.values())
        for (name, head), (told, classes) in cells.items():
            state = "kept" if head in variant.kept[name] else "removed"
            assert told.startswith(state)
            assert classes[0] == state


def test_head_maps_tell_the_exact_score_and_shade_by_fifths(pages):
    report, page = translator_report(), tree(pages, translator_report)
    ordered = sorted(score for values in report.scoring.values.values() for score in values)
    kept = 0
    for (name, head), (told, classes) in heads(page, data_variant="heads-75").items():
        score = float(told.rpartition(" ")[2])
        assert score == report.scoring.values[name][head]
        if classes[0] == "kept":
            # 144 distinct scores: the fifth a score is in, by its place among all.
            assert classes[1] == f"shade-{5 * ordered.index(score) // 144}"
            kept += 1
    assert kept == 108
    unscored = heads(tree(pages, classifier_report)).values()
    assert {" ".join(classes) for _, classes in unscored} == {"kept unscored", "removed"}


def test_scores_that_are_not_finite_are_named_but_not_shaded():
    data = translator_report().model_dump()
    data["scoring"]["values"]["cross.5"][0] = float("nan")
    data["variants"][0]["kept"]["cross.5"] = [0, 1]
    page = Tree(render_html(Report.model_validate(data))).root
    assert heads(page)["cross.5", 0] == ("kept, score nan", ["kept", "unscored"])


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (translator_report, ["tradeoff", "quality", "throughput", "speedup"]),
        (classifier_report, []),
    ],
)
def test_plots_are_there_when_there_is_something_to_plot(pages, make, names):
    shown = [image.attributes["alt"] for image in tree(pages, make).find("img")]
    assert shown == [plots.PLOTS[name].title for name in names]


@pytest.mark.parametrize("make", MAKERS)
def test_page_is_one_file_without_scripts_or_outside_references(pages, make):
    page = tree(pages, make)
    ids = [e.attributes["id"] for e in page.walk() if "id" in e.attributes]
    assert len(set(ids)) == len(ids)
    for element in page.walk():
        assert element.tag not in {"script", "link", "iframe", "object", "embed", "base"}
        for name, value in element.attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src", "srcset", "action"):
                assert value.removeprefix("#") in ids or value.startswith("data:image/svg+xml;")
            for reference in re.findall(r"url\(#?([^)]*)\)", value):
                assert reference in ids
            if name in ("aria-labelledby", "aria-describedby"):
                assert set(value.split()) <= set(ids)
    (style,) = page.find("style")
    assert not re.search(r"@import|url\(|http", style.text)
    assert "prefers-color-scheme: dark" in style.text
    assert all(drawn.attributes["role"] == "img" for drawn in page.find("table", class_="map"))


def test_hostile_text_is_shown_as_it_is(pages):
    page, report = tree(pages, hostile_report), hostile_report()
    assert page.find("h1")[0].text == f"Compression report: {HOSTILE.rpartition('/')[2]}"
    labels = [drawn.attributes["aria-label"] for drawn in page.find("table", class_="map")]
    assert f"cross-attention of {report.variants[1].name}: 30 of 48 heads kept" in labels
