"""report.html, report.md and the model card, read back with lxml and markdown-it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from lxml import html

from compressor.errors import InputError
from compressor.report import page, render
from compressor.report.build_view import build_view
from compressor.report.card import render_card
from compressor.report.card_facts import CardFacts
from compressor.report.page import render_html, render_markdown
from compressor.report.publish import without_paths
from compressor.report.schema import Report
from compressor.report.table import ReportTable
from compressor.report.tables import conclusion, samples, tables
from compressor.report.view import ReportView
from tests.helpers.errors import raises
from tests.helpers.report_samples import (
    HOSTILE,
    MAKERS,
    changed,
    classifier_report,
    hostile_report,
    mixed_report,
    tokens_report,
    translator_report,
    with_samples,
)


@pytest.fixture(scope="module")
def pages() -> dict[str, html.HtmlElement]:
    made = {make.__name__: render_html(build_view(make())) for make in MAKERS}
    return {name: html.document_fromstring(text) for name, text in made.items()}


def all_tables(view: ReportView) -> list[ReportTable]:
    """Those above all sections, then each section's."""
    above = [view.headline and conclusion(view.headline), view.samples and samples(view.samples)]
    return [*filter(None, above), *tables(view).values()]


def texts(page: html.HtmlElement, path: str) -> list[str]:
    """The text of each element of a path, white space as a browser shows it."""
    return [" ".join(element.text_content().split()) for element in page.xpath(path)]


def shown_table(page: html.HtmlElement, key: str) -> list[list[str]]:
    (table,) = page.xpath(f"//table[@id='table-{key}']")
    return [texts(row, "th|td") for row in table.xpath(".//tr")]


@pytest.mark.parametrize("make", MAKERS)
def test_tables_show_every_cell_and_note_of_the_report(pages, make):
    page, view = pages[make.__name__], build_view(make())
    items = set(texts(page, "//li"))
    assert set(view.warnings) <= items
    for table in all_tables(view):
        titles = [[column.title for column in table.columns]] if table.columns else []
        assert shown_table(page, table.key) == [*titles, *map(list, table.rows)]
        assert texts(page, f"//caption[@id='caption-{table.key}']") == [table.caption]
        assert set(table.notes) <= items


def test_the_page_begins_with_the_conclusion_and_the_next_step(pages):
    page, view = pages["hostile_report"], build_view(hostile_report())
    assert texts(page, "//header//p[@id='verdict']")[0].startswith(view.conclusion)
    assert page.xpath("//header//table[@id='table-conclusion']")
    assert texts(page, "//header//code")[0] == view.next_step.command
    keys = page.xpath("//section/@id")
    assert keys == ["samples", "speed", *tables(view)]
    assert page.xpath("//nav//a/@href") == [f"#{key}" for key in tables(view)]
    assert [len(page.xpath(path)) for path in ("//h1", "//h2")] == [1, len(keys)]
    folded = texts(page, "//details//h2")
    assert folded == ["Heads kept", "Signatures", "Environment"]


@pytest.mark.parametrize("make", MAKERS)
def test_page_is_one_file_without_scripts_or_outside_references(pages, make):
    page = pages[make.__name__]
    ids = page.xpath("//@id")
    assert len(set(ids)) == len(ids)
    for element in page.iter():
        assert element.tag not in {"script", "link", "iframe", "object", "embed", "base"}
        for name, value in element.items():
            assert not name.startswith("on")
            if name in ("href", "src", "action"):
                assert value.removeprefix("#") in ids or value.startswith("data:image/svg+xml;")
    (style,) = page.xpath("//style/text()")
    assert not re.search(r"@import|url\(|http", style)


class Shown:
    """Tables, list items and tags of rendered Markdown."""

    def __init__(self, text: str) -> None:
        markdown = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"linkify": False})
        root = html.document_fromstring(markdown.render(text))
        self.tables = [
            [texts(row, "th|td") for row in table.xpath(".//tr")] for table in root.xpath("//table")
        ]
        self.items, self.paragraphs = texts(root, "//li"), texts(root, "//p")
        self.tags = {element.tag for element in root.iter()}


@pytest.mark.parametrize("make", MAKERS)
def test_markdown_shows_every_table_cell_and_sentence_literally(make):
    view = build_view(make())
    parsed = Shown(render_markdown(view))
    items, wanted = set(parsed.items), []
    assert {" ".join(line.split()) for line in view.warnings} <= items
    for table in all_tables(view):
        assert {" ".join(line.split()) for line in table.notes} <= items
        if table.columns:
            wanted.append([[column.title for column in table.columns], *map(list, table.rows)])
        else:
            assert {f"{key}: {value}" for key, value in table.rows} <= items
    assert parsed.tables == wanted
    assert not parsed.tags & {"script", "a", "em", "img"}
    assert parsed.paragraphs[0].startswith(view.conclusion)


@pytest.mark.parametrize("name", ["1. item", "> quote", "a__b__"])
def test_names_that_look_like_markdown_stay_names(name):
    report = changed(classifier_report(), "variants", 0, "name", to=name)
    parsed = Shown(render_markdown(build_view(report)))
    assert parsed.paragraphs[0].startswith(f"{name} keeps 8 of 16 heads")
    assert not parsed.tags & {"blockquote", "ol", "em"}


def front_matter(card: str) -> dict[str, object]:
    start, fields, _ = card.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(fields)


def test_card_front_matter_has_only_keys_model_hubs_know():
    report = translator_report()
    fields = front_matter(render_card(report, "heads-50"))
    assert fields == {
        "base_model": "acme/opus-en-de",
        "pipeline_tag": "translation",
        "library_name": "onnx",
        "tags": ["onnx", "pruned", "attention-head-pruning", "marian"],
    }
    known = CardFacts(license="other", language=("en", "de"), base_model=("a/b",))
    card = render_card(report, "heads-50", known)
    more = {"license": "other", "language": ["en", "de"], "base_model": "a/b"}
    # As the hub's own library reads it.
    assert ModelCard(card).data.to_dict() == front_matter(card) == fields | more
    hostile = hostile_report()
    fields = front_matter(render_card(hostile, hostile.variants[1].name, CardFacts(HOSTILE)))
    assert fields["license"] == HOSTILE
    assert HOSTILE in fields["tags"]


def test_card_of_a_local_model_names_no_base_model():
    # A relative directory looks like a hub id, but has no revision.
    for name in ("./local-bert", "models/mine"):
        text = render_card(classifier_report().model_copy(update={"model": name}), "half")
        assert "base_model" not in front_matter(text)
        assert "Quality was not measured; test the model on data of your own before" in text
    with raises(InputError, "variant-unknown"):
        render_card(translator_report(), "heads-33")


def test_card_and_titles_name_the_model_and_no_directory_of_the_machine(tmp_path, monkeypatch):
    report = translator_report()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "images", lambda plots: {})
    Path("customers").mkdir()  # a relative path is known by its directory
    data = with_samples(report).model_dump()
    data |= {
        "model": "/home/me/models/en-de",
        "revision": None,
        "command": "compress run --model ~/models/en-de -o '/home/me/my out/small' "
        "--config=/x/r.yaml --calibration customers/a.tsv,/home/me/b.tsv acme/model",
    }
    data["test"]["files"] = ["private/test.en", "/home/me/t.de"]
    data["samples"][0]["texts"] = ["what is in /etc/hosts?"]
    for variant in data["variants"]:
        variant["directory"] = f"/home/me/my out/{variant['name']}"
        variant["recovery"] = "distilled on 9 texts of /home/me/texts.txt, C:\\secret\\a.tsv"
    report = without_paths(Report.model_validate(data), Path("/home/me/my out"))
    assert report.samples[0].texts == ["what is in /etc/hosts?"]
    assert [v.directory for v in report.variants] == ["heads-75", "heads-50", "heads-25"]
    card = render_card(report, "heads-50")
    assert "# heads-50: en-de with fewer attention heads" in card
    assert "The header of this card does not say license, language" in card
    command = "compress run --model en-de -o small --config=r.yaml --calibration a.tsv,b.tsv "
    assert f"{command}acme/model" in card.replace("\\", "")
    view = build_view(report)
    texts = [card, render_markdown(view), render_html(view), report.model_dump_json()]
    for text in texts:
        for place in ("/home", "~/", "/x/", "my out", "private", "customers", "secret"):
            assert place not in text
    for text in texts[1:3]:
        assert "Compression report: en-de" in text
    odd = report.model_copy(update={"command": "it's /a/b"})
    assert without_paths(odd, Path("/")).command == "it's b"


def test_card_is_about_one_variant_and_what_was_removed_from_it():
    report = translator_report()
    card = render_card(report, "heads-50")
    assert "heads-25" not in card
    assert "heads-75" not in card
    for table in Shown(card.split("---\n", 2)[2]).tables:
        assert {row[0] for row in table[1:]} == {"dense", "heads-50"}
    assert "16 of 48 in encoder self-attention, 26 of 48 in decoder self-attention and 30" in card
    assert f"1,000 rows of test.en and test.de (SHA-256 {report.test.sha256})" in card
    noted = report.model_copy(update={"notes": ["The tokenizer follows its own file."]})
    for text in (render_card(noted, "heads-50"), render(noted, "markdown"), render(noted, "html")):
        assert "The tokenizer follows its own file." in text
    alone = changed(mixed_report(), "variants", 1, "kept", to=report.dense.kept)
    card = render_card(alone, "heads-50")
    assert "with fewer feed-forward neurons\n" in card
    assert '"feed-forward-pruning"' in card
    assert "attention-head-pruning" not in card


def test_card_says_which_tokens_go_on_and_that_no_weight_is_gone_for_it():
    report = tokens_report()
    card = render_card(report, "fewer")
    assert "with fewer attention heads, feed-forward neurons and tokens\n" in card
    assert '"attention-head-pruning", "feed-forward-pruning", "token-pruning"' in card
    shares = "tokens alone: 100, 70 and 30% of a row's tokens from layer to layer.\n"
    assert shares in card
    assert "tokens" not in render_card(report, "half")
    for field in ("kept", "kept_neurons"):
        report = changed(report, "variants", 1, field, to=getattr(report.dense, field))
    card = render_card(report, "fewer")
    assert "with fewer tokens\n" in card
    assert "physically removed" not in card
    assert "with all of its weights" in card
    assert shares in card
