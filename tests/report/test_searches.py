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


def report_of(low: float = -0.95, high: float = 0.45, **changes) -> Report:
    """A search for a drop of 1 among 12 heads, on 300 rows; 300 others judge 7 heads, then 8.

    The delivered variant has its difference in the middle of `low` and `high`.
    """
    search = QualitySearch(
        drop=1,
        metric="bleu",
        probes=[
            judged(4, -3.0, -4.0, 8, accepted=False),
            judged(8, -0.2, -0.8, 4),
            judged(6, -0.6, -1.4, 6, accepted=False),
            judged(7, -0.3, -0.9, 5),
        ],
        proof="bound",
        rows=Source(files=["test.tsv"], rows=300, sha256="0" * 64),
        held_out=300,
        looks=[judged(7, -1.2, -1.9, 5, accepted=False), judged(8, -0.25, -0.95, 4)],
        delivered=4,
        proven=True,
    ).model_copy(update=changes)
    report = translator_report()
    variant = report.variants[0].model_copy(update={"comparisons": [comparison(low, high)]})
    update = {"variants": [variant], "gate": [], "throughput": None, "search": search}
    return report.model_copy(update=update)


def test_the_report_says_which_rows_were_searched_on_and_which_were_held_out():
    report = report_of()
    markdown = render(report, "markdown")
    for text in (markdown, render_card(report, "heads-75")):
        assert "judged 4 models on 300 rows" in text
        assert "measured on 300 rows that were held out" in text
        assert "These judged 2 models in turn" in text
        assert "too few" not in text
    assert "drop in BLEU is shown to be at most 1" in markdown
    assert "bound of the difference in BLEU is -0.95, within the limit" in markdown
    for row in (
        "| 1 | 4 | 90% | 27.00 | -3.00 | [-4.00, -2.00] | -4.00 | searched | refused |",
        "| 2 | 8 | 90% | 29.80 | -0.20 | [-0.80, +0.40] | -0.80 | searched | accepted |",
        "| 3 | 6 | 90% | 29.40 | -0.60 | [-1.40, +0.20] | -1.40 | searched | not proven |",
        "| 5 | 7 | 90% | 28.80 | -1.20 | [-1.90, -0.50] | -1.90 | held out | refused |",
    ):
        assert row in markdown
    assert Report.model_validate_json(render(report, "json")).search == report.search
    # Neurons are shown if the models differ in them.
    probes = [x.model_copy(update={"neurons": 1024 + x.kept}) for x in report.search.probes]
    markdown = render(report_of(probes=probes), "markdown")
    assert "| Heads kept | Neurons kept | Multiply-adds |" in markdown
    assert "| 4 | 7 | 1,031 | 90% |" in markdown


def test_what_few_rows_cannot_prove_is_in_the_verdict_with_how_many_would_do():
    """Rows by the normal approximation: with half the width h and room r, n (h / r)^2."""
    taken, mild = (
        judged(kept, difference, difference - half, position, accepted=False).model_copy(
            update={"rows_needed": ceil(300 * (half / round(1 + difference, 9)) ** 2)}
        )
        for kept, difference, half, position in ((6, -0.8, 3.0, 6), (11, -0.1, 2.5, 1))
    )
    assert [2 * x.rows_needed for x in (taken, mild)] == [135_000, 4_630]
    search = {"probes": [taken, mild], "looks": [taken], "delivered": 6, "proven": False}
    report = report_of(**search)
    markdown = render(report, "markdown")
    for text in (sentences.verdict(report), markdown, render_card(report, "heads-75")):
        assert (
            "600 test rows are too few to show that BLEU falls by at most 1: it can fall by 3.80; "
            "about 140,000 would do for this model if its drop stayed as measured, about 4,700 for "
            "the mildest cut that was tried."
        ) in text
    assert "is -3.80, beyond the limit" in markdown
    # Nothing is missing where proof was not asked for.
    waived = report_of(**search, proof="measured")
    assert "too few" not in sentences.verdict(waived)
    assert "proof was not asked for" in render(waived, "markdown")
    at_the_limit = judged(6, -1.0, -3.0, 6, accepted=False)
    report = report_of(probes=[at_the_limit], looks=[at_the_limit], delivered=6, proven=False)
    assert "no number of rows would do for this model" in sentences.verdict(report)


@pytest.mark.parametrize(
    ("low", "high", "drop", "words"),
    [
        (-10.0, -0.2, 5, "The measured drop of 5.10 in BLEU is more than the 5 asked for, but "
         "1,000 test rows are too few to be sure"),
        (-10.0, -5.1, 5, "The measured drop of 7.55 in BLEU is more than the 5 asked for, "
         "significantly so on 1,000 test rows."),
        (-10.0, -0.2, 5.1, ""),
        (1.0, 2.0, 0, ""),
    ],
)  # fmt: skip
def test_a_drop_above_the_one_asked_for_is_in_the_verdict(low, high, drop, words):
    report = report_of(low, high, drop=drop)
    verdict = sentences.verdict(report)
    assert words in verdict
    assert words in render(report, "markdown")
    assert bool(words) == ("measured drop" in verdict)


@pytest.mark.parametrize("reached", [True, False])
def test_the_report_shows_the_cost_table_and_every_try(reached: bool):
    """Two tries for 1.3, of which the second may have reached it."""
    costs = cost_table(
        {"encoder_self": [0.11, 0.07, 0.04, 0.01], "cross": [0.15, 0.13, 0.06, 0.03]},
        {"encoder_self": 2, "cross": 1},
    )
    tries = [
        SpeedTry(
            aim=1.3 + number / 10, predicted=1.31 + number / 10, kept=f"{10 - number} heads",
            speedup=speedup, speedup_interval=(speedup - 0.01, speedup + 0.01), met=met,
        )
        for number, (speedup, met) in enumerate([(1.25, False), (1.36, reached)])
    ]  # fmt: skip
    search = SpeedSearch(wanted=1.3, costs=costs, tries=tries)
    report = translator_report().model_copy(update={"search": search})
    markdown = render(report, "markdown")
    assert "1.3 times as fast at batch 16" in markdown
    for row in costs.rows:
        assert f" {500 * row.saved_share:.1f}"[:4] in markdown
    assert "| 1 | 1.300 | 10 heads | 1.310 | 1.25 [1.24, 1.26] | missed |" in markdown
    result = "reached" if reached else "missed"
    assert f"| 2 | 1.400 | 9 heads | 1.410 | 1.36 [1.35, 1.37] | {result} |" in markdown
    assert ("was not reached in 2 tries" in markdown) is not reached
    assert markdown.count("| cross-attention |") == 4
    assert Report.model_validate_json(render(report, "json")).search == search
