"""report.html, parsed with lxml, which sacreBLEU brings."""

from __future__ import annotations

import re

import pytest
from lxml import html

from compressor.report import sentences
from compressor.report.page import render_html
from compressor.report.tables import conclusion, samples, tables
from tests.helpers.report_samples import (
    HOSTILE,
    MAKERS,
    classifier_report,
    hostile_report,
    translator_report,
)


@pytest.fixture(scope="module")
def pages() -> dict[str, html.HtmlElement]:
    return {make.__name__: html.document_fromstring(render_html(make())) for make in MAKERS}


def texts(page: html.HtmlElement, path: str) -> list[str]:
    """The text of each element of a path, white space as a browser shows it."""
    return [" ".join(element.text_content().split()) for element in page.xpath(path)]


def shown_table(page: html.HtmlElement, key: str) -> list[list[str]]:
    (table,) = page.xpath(f"//table[@id='table-{key}']")
    return [texts(row, "th|td") for row in table.xpath(".//tr")]


@pytest.mark.parametrize("make", MAKERS)
def test_tables_show_every_cell_and_note_of_the_report(pages, make):
    page, report = pages[make.__name__], make()
    items = set(texts(page, "//li"))
    assert set(sentences.warnings(report)) <= items
    for table in filter(None, (conclusion(report), samples(report), *tables(report).values())):
        titles = [[column.title for column in table.columns]] if table.columns else []
        assert shown_table(page, table.key) == [*titles, *map(list, table.rows)]
        assert texts(page, f"//caption[@id='caption-{table.key}']") == [table.caption]
        assert set(table.notes) <= items


def test_the_page_begins_with_the_conclusion_and_the_next_step(pages):
    page, report = pages["hostile_report"], hostile_report()
    assert texts(page, "//header//p[@id='verdict']")[0].startswith(sentences.conclusion(report))
    assert page.xpath("//header//table[@id='table-conclusion']")
    assert texts(page, "//header//code")[0] == sentences.recommendation(report)[1]
    keys = page.xpath("//section/@id")
    assert keys == [
        *("samples", "speed", "gate", "quality", "throughput", "size", "units", "checks", "origin"),
        *("shapes", "signatures", "environment"),
    ]
    assert page.xpath("//nav//a/@href") == [f"#{key}" for key in keys[2:]]
    assert [len(page.xpath(path)) for path in ("//h1", "//h2")] == [1, len(keys)]
    folded = texts(page, "//details//h2")
    assert folded == ["Heads kept", "Shapes", "Signatures", "Environment"]


@pytest.mark.parametrize(
    ("make", "starts"),
    [
        (translator_report, ["Quality against", "Throughput against", "Heads and neurons that"]),
        (classifier_report, ["Heads and neurons that"]),
    ],
)
def test_plots_are_shown_if_there_is_something_to_plot(pages, make, starts):
    titles = pages[make.__name__].xpath("//img/@alt")
    assert all(title.startswith(x) for title, x in zip(titles, starts, strict=True))


@pytest.mark.parametrize("make", MAKERS)
def test_page_is_one_file_without_scripts_or_outside_references(pages, make):
    page = pages[make.__name__]
    ids = page.xpath("//@id")
    assert len(set(ids)) == len(ids)
    for element in page.iter():
        assert element.tag not in {"script", "link", "iframe", "object", "embed", "base"}
        for name, value in element.items():
            assert not name.startswith("on")
            if name in ("href", "src", "srcset", "action"):
                assert value.removeprefix("#") in ids or value.startswith("data:image/svg+xml;")
            if name in ("aria-labelledby", "aria-describedby"):
                assert set(value.split()) <= set(ids)
    (style,) = page.xpath("//style/text()")
    assert not re.search(r"@import|url\(|http", style)
    assert "prefers-color-scheme: dark" in style


def test_hostile_text_is_shown_as_it_is(pages):
    page = pages["hostile_report"]
    assert texts(page, "//h1") == [f"Compression report: {HOSTILE.rpartition('/')[2]}"]
    assert shown_table(page, "samples")[1] == [HOSTILE] * 4
