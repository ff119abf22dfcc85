"""What reports say of budgets that were measured: the candidates, the costs, the tries."""

from __future__ import annotations

from math import ceil

import pytest

from compressor.report import render, sentences
from compressor.report.model_card import render_card
from compressor.report.schema import Report
from compressor.results import QualitySearch, Source, SpeedSearch, SpeedTry
from tests.helpers.report_samples import translator_report
from tests.helpers.scores import comparison, cost_table, judged

COSTS = cost_table(
    {
        "encoder_self": [0.11, 0.07, 0.04, 0.01],
        "decoder_self": [0.19, 0.12, 0.10, 0.05],
        "cross": [0.15, 0.13, 0.06, 0.03],
    },
    {"encoder_self": 2, "decoder_self": 1, "cross": 1},
)


def searched(**changes) -> QualitySearch:
    """A search for a drop of 1 among 12 heads, on 300 rows; 300 others judge 7 heads, then 8."""
    probes = [
        judged(4, -3.0, -4.0, 8, accepted=False),
        judged(8, -0.2, -0.8, 4),
        judged(6, -0.6, -1.4, 6, accepted=False),
        judged(7, -0.3, -0.9, 5),
    ]
    looks = [judged(7, -1.2, -1.9, 5, accepted=False), judged(8, -0.25, -0.95, 4)]
    rows = Source(files=["test.tsv"], rows=300, sha256="0" * 64)
    found = QualitySearch(
        drop=1, metric="bleu", probes=probes, proof="bound", rows=rows, held_out=300, looks=looks,
        delivered=4, proven=True,
    )  # fmt: skip
    return found.model_copy(update=changes)


def report_of(search: QualitySearch) -> Report:
    """A report of one variant that lost next to nothing."""
    report = translator_report()
    variant = report.variants[0].model_copy(update={"comparisons": [comparison(-0.95, 0.45)]})
    changed = {"variants": [variant], "gate": [], "throughput": None, "search": search}
    return report.model_copy(update=changed)


def test_the_report_says_which_rows_were_searched_on_and_which_were_held_out():
    report = report_of(searched())
    card = render_card(report, report.variants[0].name)
    for text in (render(report, "markdown"), card):
        assert "judged 4 models on 300 rows" in text
        assert "measured on 300 rows that were held out" in text
        assert "These judged 2 models in turn" in text
        assert "too few" not in text
    markdown = render(report, "markdown")
    assert "drop in BLEU is shown to be at most 1" in markdown
    assert "bound of the difference in BLEU is -0.95, within the limit" in markdown
    for row in (
        "| 1 | 4 | 90% | 27.00 | -3.00 | [-4.00, -2.00] | -4.00 | searched | refused |",
        "| 2 | 8 | 90% | 29.80 | -0.20 | [-0.80, +0.40] | -0.80 | searched | accepted |",
        "| 3 | 6 | 90% | 29.40 | -0.60 | [-1.40, +0.20] | -1.40 | searched | not proven |",
        "| 5 | 7 | 90% | 28.80 | -1.20 | [-1.90, -0.50] | -1.90 | held out | refused |",
        "| 6 | 8 | 90% | 29.75 | -0.25 | [-0.95, +0.45] | -0.95 | held out | accepted |",
    ):
        assert row in markdown
    assert Report.model_validate_json(render(report, "json")).search == report.search


def test_what_few_rows_cannot_prove_is_told_in_the_verdict_with_how_many_would_do():
    """Rows by the normal approximation: with half the width h and room r, n (h / r)^2."""
    needed = [ceil(300 * (half / room) ** 2) for half, room in ((3.0, 0.2), (2.5, 0.9))]
    taken, mild = (
        judged(kept, difference, difference - half, position, accepted=False)
        for kept, difference, half, position in ((6, -0.8, 3.0, 6), (11, -0.1, 2.5, 1))
    )
    taken, mild = (
        found.model_copy(update={"rows_needed": rows})
        for found, rows in zip((taken, mild), needed, strict=True)
    )
    search = searched(probes=[taken, mild], looks=[taken], delivered=6, proven=False)
    warning = (
        "600 test rows are too few to show that BLEU falls by at most 1: it can fall by 3.80; "
        "about 140,000 would do for this model if its drop stayed as measured, about 4,700 for the "
        "mildest cut that was tried."
    )
    assert [2 * rows for rows in needed] == [135_000, 4_630]
    report = report_of(search)
    card = render_card(report, report.variants[0].name)
    assert warning in sentences.verdict(report)
    for text in (render(report, "markdown"), card):
        assert warning in text
    assert "is -3.80, beyond the limit" in render(report, "markdown")
    assert Report.model_validate_json(render(report, "json")).search.proven is False
    # Nothing is missing where proof was not asked for.
    waived = report_of(search.model_copy(update={"proof": "measured"}))
    assert "too few" not in sentences.verdict(waived)
    assert "proof was not asked for" in render(waived, "markdown")


def test_a_drop_at_the_limit_is_proven_by_no_number_of_rows():
    taken = judged(6, -1.0, -3.0, 6, accepted=False)
    search = searched(probes=[taken], looks=[taken], delivered=6, proven=False)
    assert "no number of rows would do for this model" in sentences.verdict(report_of(search))


def test_neurons_are_shown_where_probes_differ_in_them():
    probes = [
        found.model_copy(update={"neurons": 1024 + found.kept, "macs": 0.425})
        for found in searched().probes
    ]
    markdown = render(report_of(searched(probes=probes)), "markdown")
    assert "| Heads kept | Neurons kept | Multiply-adds |" in markdown
    assert "| 4 | 7 | 1,031 | 42% |" in markdown


@pytest.mark.parametrize(
    ("low", "high", "drop", "said"),
    [
        (-10.0, -0.2, 5, "The measured drop of 5.10 in BLEU is more than the 5 asked for, but "
         "1,000 test rows are too few to be sure"),
        (-10.0, -5.1, 5, "The measured drop of 7.55 in BLEU is more than the 5 asked for, "
         "significantly so on 1,000 test rows."),
        (-10.0, -0.2, 5.1, ""),
        (1.0, 2.0, 0, ""),
    ],
)  # fmt: skip
def test_a_drop_above_the_one_asked_for_is_told_in_the_verdict(low, high, drop, said):
    report = translator_report()
    variant = report.variants[0].model_copy(update={"comparisons": [comparison(low, high)]})
    report = report.model_copy(update={"variants": [variant], "gate": []})
    report = report.model_copy(update={"throughput": None, "search": searched(drop=drop)})
    if said:
        assert said in sentences.verdict(report)
        assert said in render(report, "markdown")
    else:
        assert "measured drop" not in sentences.verdict(report)


def speed_search(*tries: tuple[float, bool]) -> SpeedSearch:
    """A search for 1.3 whose choices reached so much."""
    found = [
        SpeedTry(
            aim=1.3 + number / 10, predicted=1.31 + number / 10, kept=f"{10 - number} heads",
            speedup=speedup, speedup_interval=(speedup - 0.01, speedup + 0.01), met=met,
        )
        for number, (speedup, met) in enumerate(tries)
    ]  # fmt: skip
    return SpeedSearch(wanted=1.3, costs=COSTS, tries=found)


def test_the_report_shows_the_cost_table_and_every_try():
    """In Markdown and JSON; two tries of which the second reached 1.3."""
    search = speed_search((1.25, False), (1.36, True))
    report = translator_report().model_copy(update={"search": search})
    markdown = render(report, "markdown")
    assert "1.3 times as fast at batch 16" in markdown
    for row in search.costs.rows:
        assert f" {500 * row.saved_share:.1f}"[:4] in markdown
    assert "| 1 | 1.300 | 10 heads | 1.310 | 1.25 [1.24, 1.26] | missed |" in markdown
    assert "| 2 | 1.400 | 9 heads | 1.410 | 1.36 [1.35, 1.37] | reached |" in markdown
    assert markdown.count("| cross-attention |") == 4
    assert Report.model_validate_json(render(report, "json")).search == search


def test_the_report_says_that_the_wanted_speedup_was_missed():
    search = speed_search(*[(1.29, False)] * 4)
    report = translator_report().model_copy(update={"search": search})
    assert "was not reached in 4 tries" in render(report, "markdown")
