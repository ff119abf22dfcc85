"""report.html, parsed with html.parser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from compressor.report import plots, sentences
from compressor.report.page import render_html
from compressor.report.tables import conclusion, samples, tables
from tests.helpers.report_samples import (
    HOSTILE,
    MAKERS,
    classifier_report,
    hostile_report,
    translator_report,
)

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
def pages() -> dict[str, Element]:
    return {make.__name__: Tree(render_html(make())).root for make in MAKERS}


def shown_table(page: Element, key: str) -> list[list[str]]:
    (table,) = page.find("table", id=f"table-{key}")
    return [[cell.text for cell in row.children] for row in table.find("tr")]


@pytest.mark.parametrize("make", MAKERS)
def test_tables_show_every_cell_and_note_of_the_report(pages, make):
    page, report = pages[make.__name__], make()
    items = {item.text for item in page.find("li")}
    assert set(sentences.warnings(report)) <= items
    for table in filter(None, (conclusion(report), samples(report), *tables(report).values())):
        head, *body = shown_table(page, table.key)
        if table.columns:
            assert head == [column.title for column in table.columns]
        assert (body if table.columns else [head, *body]) == [list(row) for row in table.rows]
        (caption,) = page.find("caption", id=f"caption-{table.key}")
        assert caption.text == table.caption
        assert set(table.notes) <= items


def test_the_page_begins_with_the_conclusion_and_the_next_step(pages):
    page, report = pages["hostile_report"], hostile_report()
    (header,) = page.find("header")
    assert header.find("p", id="verdict")[0].text.startswith(sentences.conclusion(report))
    assert header.find("table", id="table-conclusion")
    assert header.find("code")[0].text == sentences.recommendation(report)[1]
    keys = [section.attributes["id"] for section in page.find("section")]
    assert keys == [
        *("samples", "speed", "gate", "quality", "throughput", "size", "units", "checks", "origin"),
        *("shapes", "signatures", "environment"),
    ]
    linked = [link.attributes["href"] for link in page.find("nav")[0].find("a")]
    assert linked == [f"#{key}" for key in keys[2:]]
    assert [len(page.find(tag)) for tag in ("h1", "h2")] == [1, len(keys)]
    folded = [fold.find("h2")[0].text for fold in page.find("details")]
    assert folded == ["Heads kept", "Shapes", "Signatures", "Environment"]


@pytest.mark.parametrize(
    ("make", "names"),
    [(translator_report, ["quality", "throughput", "units"]), (classifier_report, ["units"])],
)
def test_plots_are_there_when_there_is_something_to_plot(pages, make, names):
    shown = [image.attributes["alt"] for image in pages[make.__name__].find("img")]
    assert shown == [plots.PLOTS[name].title for name in names]


@pytest.mark.parametrize("make", MAKERS)
def test_page_is_one_file_without_scripts_or_outside_references(pages, make):
    page = pages[make.__name__]
    ids = [e.attributes["id"] for e in page.walk() if "id" in e.attributes]
    assert len(set(ids)) == len(ids)
    for element in page.walk():
        assert element.tag not in {"script", "link", "iframe", "object", "embed", "base"}
        for name, value in element.attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src", "srcset", "action"):
                assert value.removeprefix("#") in ids or value.startswith("data:image/svg+xml;")
            if name in ("aria-labelledby", "aria-describedby"):
                assert set(value.split()) <= set(ids)
    (style,) = page.find("style")
    assert not re.search(r"@import|url\(|http", style.text)
    assert "prefers-color-scheme: dark" in style.text


def test_hostile_text_is_shown_as_it_is(pages):
    page = pages["hostile_report"]
    assert page.find("h1")[0].text == f"Compression report: {HOSTILE.rpartition('/')[2]}"
    assert shown_table(page, "samples")[1] == [HOSTILE] * 4
