"""report.md and the model card, read back with markdown-it, an independent CommonMark parser."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from lxml import html

from compressor.errors import InputError
from compressor.model.card import CardFacts
from compressor.report import page, sentences
from compressor.report.model_card import render_card
from compressor.report.page import render_html, render_markdown
from compressor.report.publish import without_directories, without_paths
from compressor.report.schema import Report
from compressor.report.tables import conclusion, samples, tables
from tests.helpers.errors import raises
from tests.helpers.report_samples import (
    HOSTILE,
    MAKERS,
    changed,
    classifier_report,
    hostile_report,
    mixed_report,
    translator_report,
    with_samples,
)
from tests.report.test_page import texts


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
    report = make()
    text = render_markdown(report)
    parsed, made = Shown(text), [conclusion(report), samples(report), *tables(report).values()]
    items, wanted = set(parsed.items), []
    assert {" ".join(line.split()) for line in sentences.warnings(report)} <= items
    for table in filter(None, made):
        assert {" ".join(line.split()) for line in table.notes} <= items
        if table.columns:
            wanted.append([[column.title for column in table.columns], *map(list, table.rows)])
        else:
            assert {f"{key}: {value}" for key, value in table.rows} <= items
    assert parsed.tables == wanted
    assert not parsed.tags & {"script", "a", "em", "img"}
    assert parsed.paragraphs[0].startswith(sentences.conclusion(report))


def test_the_conclusion_comes_first_and_details_are_folded():
    text = render_markdown(with_samples(translator_report()))
    places = [
        text.index(part)
        for part in (
            "keeps 72 of 144 heads", "| Measured |", "Measured on Example CPU @ 2.5 GHz, 2 cores, "
            "2 threads, CPUExecutionProvider, 1,000 test rows; 2026-11-21.", "Next: ",
            "## Sample answers", "## Gate", "## Quality", "<summary>Shapes<", "<summary>Signatures",
            "<summary>Environment",
        )
    ]  # fmt: skip
    assert places == sorted(places)
    assert text.count("<details>") == text.count("</details>") == 4


@pytest.mark.parametrize("name", ["# heading", "1. item", "- item", "> quote", "a__b__", "+ x"])
def test_names_that_look_like_markdown_stay_names(name):
    report = changed(classifier_report(), "variants", 0, "name", to=name)
    parsed = Shown(render_markdown(report))
    assert parsed.paragraphs[0].startswith(f"{name} keeps 8 of 16 heads")
    assert not parsed.tags & {"blockquote", "ol", "em"}


# --- the model card


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
    known = CardFacts(
        license="other", license_name="mine", license_link="https://a.b/c", language=("en", "de"),
        base_model=("a/b",),
    )  # fmt: skip
    card = render_card(report, "heads-50", known)
    assert front_matter(card) == fields | {
        "license": "other", "license_name": "mine", "license_link": "https://a.b/c",
        "language": ["en", "de"], "base_model": "a/b",
    }  # fmt: skip
    # As the hub's own library reads it.
    assert ModelCard(card).data.to_dict() == front_matter(card)
    hostile = hostile_report()
    fields = front_matter(render_card(hostile, hostile.variants[1].name, CardFacts(HOSTILE)))
    assert fields["license"] == HOSTILE
    assert HOSTILE in fields["tags"]


def test_what_the_header_lacks_is_named_with_its_option():
    card = render_card(translator_report(), "heads-50")
    assert (
        "The header of this card does not say license and language, which the dense model's card "
        "lacks; set them with --card-license and --card-language of compress run."
        in Shown(card.split("---\n", 2)[2]).items
    )
    card = render_card(translator_report(), "heads-50", CardFacts("mit", language=("en",)))
    assert "The header of this card" not in card


def test_card_of_a_local_model_names_no_base_model():
    text = render_card(classifier_report(), "half")
    fields = front_matter(text)
    assert "base_model" not in fields
    assert fields["pipeline_tag"] == "text-classification"
    assert "Quality was not measured; test the model on data of your own before" in text
    # A relative directory looks like a hub id, but has no revision.
    local = classifier_report().model_copy(update={"model": "models/mine"})
    assert "base_model" not in front_matter(render_card(local, "half"))
    with raises(InputError, "variant-unknown") as caught:
        render_card(translator_report(), "heads-33")
    assert "heads-75, heads-50, heads-25" in str(caught.value)


def test_card_and_titles_name_the_model_and_no_directory_of_the_machine(tmp_path, monkeypatch):
    report = translator_report()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "images", lambda report: {})
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
        variant["recovery"] = "distilled on 9 texts of /home/me/texts.txt"
    report = without_paths(Report.model_validate(data), Path("/home/me/my out"))
    assert report.samples[0].texts == ["what is in /etc/hosts?"]
    assert [v.directory for v in report.variants] == ["heads-75", "heads-50", "heads-25"]
    card = render_card(report, "heads-50")
    assert "# heads-50: en-de with fewer attention heads" in card
    command = "compress run --model en-de -o small --config=r.yaml --calibration a.tsv,b.tsv "
    assert f"{command}acme/model" in card.replace("\\", "")
    texts = [card, render_markdown(report), render_html(report), report.model_dump_json()]
    for text in texts:
        for place in ("/home", "~/", "/x/", "my out", "private", "customers"):
            assert place not in text
    for text in texts[1:3]:
        assert "Compression report: en-de" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("C:\\data\\a.tsv (451 rows)", "a.tsv (451 rows)"),
        ("/a/b.en,/a/b.de", "b.en,b.de"),
        ("data/a.tsv of acme/model, https://a.b/c", "data/a.tsv of acme/model, https://a.b/c"),
    ],
)
def test_paths_are_cut_to_their_names(text, expected):
    assert without_directories(text) == expected


def test_card_is_about_one_variant_and_shows_its_numbers():
    report = translator_report()
    card = render_card(report, "heads-50")
    assert "heads-25" not in card
    assert "heads-75" not in card
    parsed = Shown(card.split("---\n", 2)[2])
    quality, throughput, size = parsed.tables
    assert [row[0] for row in quality[1:]] == ["dense", "heads-50"] * 2
    assert [row[0] for row in throughput[1:]] == ["dense", "heads-50"] * 4
    assert throughput[2][-1] == "does not pay"
    assert size[2][:3] == ["heads-50", "fp32", "72/144"]
    assert "16 of 48 in encoder self-attention, 26 of 48 in decoder self-attention and 30" in card
    (data,) = [item for item in parsed.items if item.startswith("Quality was measured on")]
    assert "1,000 rows of test.en and test.de" in data
    assert report.test.sha256 in data


def test_card_names_the_units_that_were_removed():
    report = mixed_report()
    assert "with fewer attention heads and feed-forward neurons\n" in render_card(
        report, "heads-50"
    )
    alone = changed(report, "variants", 1, "kept", to=report.dense.kept)
    card = render_card(alone, "heads-50")
    assert "with fewer feed-forward neurons\n" in card
    assert '"feed-forward-pruning"' in card
    assert "attention-head-pruning" not in card
    assert "neuron" not in render_card(translator_report(), "heads-50")


def test_card_opens_the_artifact_with_the_runtime_with_the_package_and_without():
    from compressor import runtime

    for make, name, method, auto_class in (
        (translator_report, "heads-50", "translate", "AutoModelForSeq2SeqLM"),
        (classifier_report, "half", "classify", "AutoModelForSequenceClassification"),
    ):
        card = render_card(make(), name)
        line = next(row for row in card.splitlines() if row.startswith("from compressor.runtime"))
        assert callable(getattr(getattr(runtime, line.rpartition(" ")[2]), method))
        assert f"model.{method}([" in card
        assert 'compressor.load(".")' in card
        assert f'{auto_class}.from_pretrained(".", trust_remote_code=True)' in card
