"""Reports of models that lost neurons beside heads, and of those that did not."""

from __future__ import annotations

import re

import pytest

from compressor.report import facts, phrases, plots, render, sentences, summary, unit_tables
from compressor.report.model_card import render_card
from compressor.report.page import render_html
from compressor.report.schema import Report
from tests.helpers.report_samples import NEURONS, mixed_report
from tests.report.test_page import Element, Tree

KINDS = ("encoder_ffn", "decoder_ffn")


def test_sentences_say_how_many_neurons_and_how_much_work_are_left():
    # Of 144 heads and 768 neurons, as drawn in the sample.
    report = mixed_report()
    kept = {name: sum(encoder + decoder) for name, (encoder, decoder, _) in NEURONS.items()}
    assert kept["heads-50"] == 416
    units = "72 of 144 heads (50%) and 416 of 768 neurons (54%)"
    assert phrases.units(report.variants[1]) == units
    assert f"keeps {units}, 52% of the multiply-adds; BLEU" in sentences.verdict(report)
    # Said once: elsewhere the model is named, and a table has its units.
    assert render(report, "markdown").count("72 of 144 heads") == 1


def test_a_model_that_lost_neurons_alone_keeps_all_heads():
    report = mixed_report()
    base = report.variants[1]
    variant = base.model_copy(update={"kept": report.dense.kept})
    assert phrases.units(variant) == "all 144 heads and 416 of 768 neurons (54%)"
    alone = report.model_copy(update={"variants": [variant], "throughput": None, "gate": []})
    card = render_card(alone, variant.name)
    assert "with fewer feed-forward neurons\n" in card
    assert '"feed-forward-pruning"' in card
    assert "attention-head-pruning" not in card


@pytest.mark.parametrize("name", ["markdown", "html", "card", "short"])
def test_a_model_that_lost_heads_alone_is_told_of_as_before(name: str):
    """Its parts have neurons, all of which it keeps: nothing about them is news."""
    report = mixed_report()
    kept = report.dense.neurons
    variants = [v.model_copy(update={"kept_neurons": kept}) for v in report.variants]
    heads_alone = report.model_copy(update={"variants": variants})
    text = re.sub("<style>.*</style>", "", rendered(heads_alone, name), flags=re.DOTALL)
    assert "neuron" not in text
    assert "feed-forward" not in text
    assert "neurons" in rendered(report, name)


def rendered(report: Report, name: str) -> str:
    if name == "card":
        return render_card(report, "heads-50")
    return summary.short_table(report) if name == "short" else render(report, name)


def test_what_lost_all_its_units_is_named():
    report = mixed_report()
    lines = sentences.emptied_sentences(report)
    # heads-25 keeps 6 of 48 heads in the encoder's attention, none of them in layer 0.
    least = report.variants[2]
    assert facts.emptied_layers(least) == [
        f"encoder layer {layer}" for layer in range(6) if not least.kept[f"encoder_self.{layer}"]
    ]
    assert "encoder layer 0" in facts.emptied_layers(least)
    assert (
        "In heads-50 feed-forward parts encoder_ffn.3, encoder_ffn.4 and encoder_ffn.5 have no "
        "neurons left: only their output biases are still applied." in lines
    )
    (whole,) = [line for line in lines if "no units left at all" in line]
    assert whole.startswith("In heads-25 encoder layer 0")
    for text in (render(report, "markdown"), render_card(report, "heads-25")):
        assert whole in text


def test_a_decoder_layer_is_empty_without_all_three_of_its_sublayers():
    report = mixed_report()
    empty = {"decoder_self.3": [], "cross.3": []}
    variant = report.variants[2].model_copy(update={"kept": report.variants[2].kept | empty})
    assert variant.kept_neurons["decoder_ffn.3"] == 0
    assert "decoder layer 3" in facts.emptied_layers(variant)
    one = variant.model_copy(update={"kept_neurons": variant.kept_neurons | {"decoder_ffn.3": 16}})
    assert "decoder layer 3" not in facts.emptied_layers(one)


def test_tables_count_neurons_and_multiply_adds():
    table = unit_tables.size(mixed_report())
    titles = [column.title for column in table.columns]
    row = dict(zip(titles, next(r for r in table.rows if r[0] == "heads-50"), strict=True))
    assert row["Encoder feed-forward"] == "128/384"
    assert row["Decoder feed-forward"] == "288/384"
    assert (row["All heads"], row["All neurons"]) == ("72/144", "416/768")
    assert row["Multiply-adds"] == "52.1%"
    assert table.rows[0][titles.index("Multiply-adds")] == "100.0%"
    layers = {row[0]: row[1:] for row in unit_tables.layers(mixed_report()).rows}
    assert layers["encoder_ffn.1"] == ("64/64", "32/64", "0/64")


def test_the_short_table_has_room_for_both_kinds():
    report = mixed_report()
    data = report.model_dump()
    counts = dict.fromkeys(report.dense.neurons, 3072)
    data["dense"] |= {"neurons": counts, "kept_neurons": counts}
    for variant in data["variants"]:
        variant |= {"neurons": counts, "kept_neurons": dict.fromkeys(counts, 1024)}
    lines = summary.short_table(Report.model_validate(data)).splitlines()
    assert max(map(len, lines)) <= 100
    row = next(line for line in lines if line.startswith("heads-50"))
    assert "72/144  12,288/36,864" in row
    assert "52.1%" in row


def test_the_quality_plot_is_over_multiply_adds_where_neurons_were_removed():
    report = mixed_report()
    with plots.plot_style("quality"):
        axes = plots.quality_figure(report).axes[0]
    assert axes.get_xlabel() == "multiply-adds (%)"
    drawn = {float(x) for line in axes.lines for x in line.get_xdata()}
    assert {100 * variant.macs_share for variant in report.variants} <= drawn


def test_the_smallest_is_that_with_the_fewest_multiply_adds():
    """Not that with the fewest heads: heads-75 keeps more of them, but no neurons."""
    report = mixed_report()
    first, second, _ = report.variants
    small = first.model_copy(update={"macs_share": 0.4})
    report = report.model_copy(update={"variants": [small, second], "throughput": None, "gate": []})
    assert facts.headline(report) == small


# --- the page


def bars(page: Element, variant: str, kind: str) -> Element:
    (drawn,) = page.find("table", class_="map", data_variant=variant, data_kind=kind)
    return drawn


def test_neurons_have_a_bar_for_each_part_that_says_how_many():
    report = mixed_report()
    page = Tree(render_html(report)).root
    for variant in report.variants:
        for kind, counts in zip(KINDS, NEURONS[variant.name], strict=False):
            drawn = bars(page, variant.name, kind)
            label = f"feed-forward of {variant.name}: {sum(counts)} of 384 neurons kept"
            assert drawn.attributes["aria-label"].endswith(label)
            cells = drawn.find("td", class_="neurons")
            assert [cell.attributes["title"] for cell in cells] == [
                f"{kind}.{layer}: {kept} of 64 neurons kept ({100 * kept / 64:.0f}%)"
                for layer, kept in enumerate(counts)
            ]
            widths = [
                [float(bar.attributes["style"][len("width:") : -1]) for bar in cell.find("span")]
                for cell in cells
            ]
            assert widths == [[100, pytest.approx(100 * kept / 64, abs=0.1)] for kept in counts]
            empty = drawn.find("td", class_="count empty")
            assert [text.text for text in empty] == ["0/64"] * counts.count(0)
