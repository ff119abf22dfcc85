"""What reports say of budgets that were measured: the candidates, the costs, the tries."""

from __future__ import annotations

import pytest

from compressor.report import render, sentences
from compressor.report.budgets import SEARCHED_ON_TEST
from compressor.report.combine import combine
from compressor.report.model_card import render_card
from compressor.report.schema import Report
from compressor.results import QualitySearch, SpeedSearch, SpeedTry
from tests.helpers.report_samples import translator_report
from tests.helpers.scores import comparison, cost_table, probe

# A search among 12 heads of which at least 4 stay; from 7 on they are accepted.
SEARCHED = ((4, False), (8, True), (6, False), (7, True))
COSTS = cost_table(
    {
        "encoder_self": [0.11, 0.07, 0.04, 0.01],
        "decoder_self": [0.19, 0.12, 0.10, 0.05],
        "cross": [0.15, 0.13, 0.06, 0.03],
    },
    {"encoder_self": 2, "decoder_self": 1, "cross": 1},
)


def test_the_report_shows_every_probe_and_what_the_interval_leaves_out():
    probes = [probe(kept, accepted) for kept, accepted in SEARCHED]
    found = QualitySearch(drop=0.3, metric="bleu", probes=probes)
    report = translator_report().model_copy(update={"search": found})
    markdown, page = render(report, "markdown"), render(report, "html")
    for text in (markdown, page):
        assert "lies below -0.3" in text
        assert SEARCHED_ON_TEST in text
        assert f"{report.test.rows:,} rows of {report.test.files[0]}" in text
    for number, tried in enumerate(probes, 1):
        result = "accepted" if tried.accepted else "refused"
        row = f"| {number} | {tried.kept} | 29.50 | -0.50 | [-1.00, 0.00] | {result} |"
        assert row in markdown
    assert SEARCHED_ON_TEST in render_card(report, report.variants[0].name)
    assert Report.model_validate_json(render(report, "json")).search == found


def test_reports_side_by_side_tell_of_which_variants_heads_were_searched_on_test_rows():
    """Only the first run searched: what it says, its table and the missed drop stay its own."""
    probes = [probe(kept, accepted) for kept, accepted in SEARCHED]
    plain = translator_report()
    lost = plain.variants[0].model_copy(update={"comparisons": [comparison(-10.0, -5.1)]})
    found = QualitySearch(drop=5, metric="bleu", probes=probes)
    changed = {"variants": [lost], "search": found, "gate": [], "throughput": None}
    both = combine(
        [plain.model_copy(update=changed), plain.model_copy(update={"throughput": None})]
    )
    assert both.search is None
    assert [run.search for run in both.runs] == [found, None]
    markdown, page = render(both, "markdown"), render(both, "html")
    for text in (markdown, page):
        assert f"{lost.name}: The search built and ran {len(probes)} models" in text
        assert text.count(SEARCHED_ON_TEST) == 1
    assert f"{lost.name}: the measured drop of 7.55 in BLEU is more than the 5" in markdown
    assert page.count('id="table-probes-1"') == 1
    assert SEARCHED_ON_TEST in render_card(both, lost.name)
    assert SEARCHED_ON_TEST not in render_card(both, "heads-50")
    assert Report.model_validate_json(render(both, "json")) == both


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
    search = QualitySearch(drop=drop, metric="bleu", probes=[])
    report = report.model_copy(update={"variants": [variant], "gate": [], "search": search})
    report = report.model_copy(update={"throughput": None})
    if said:
        assert said in sentences.verdict(report)
        assert said in render(report, "markdown")
    else:
        assert "measured drop" not in sentences.verdict(report)


def test_a_search_in_which_nothing_could_go_says_so():
    probes = [probe(kept, accepted=False) for kept in (0, 1, 2)]
    found = QualitySearch(drop=0, metric="bleu", probes=probes)
    report = translator_report().model_copy(update={"search": found})
    assert "No head could be removed." in render(report, "markdown")


def speed_search(*tries: tuple[float, bool]) -> SpeedSearch:
    """A search for 1.3 whose choices reached so much."""
    found = [
        SpeedTry(
            aim=1.3 + number / 10, predicted=1.31 + number / 10, kept=10 - number, speedup=speedup,
            speedup_interval=(speedup - 0.01, speedup + 0.01), met=met,
        )
        for number, (speedup, met) in enumerate(tries)
    ]  # fmt: skip
    return SpeedSearch(wanted=1.3, costs=COSTS, tries=found)


def test_the_report_shows_the_cost_table_and_every_try():
    """In Markdown, HTML and JSON; two tries of which the second reached 1.3."""
    search = speed_search((1.25, False), (1.36, True))
    report = translator_report().model_copy(update={"search": search})
    markdown, page = render(report, "markdown"), render(report, "html")
    for text in (markdown, page):
        assert "1.3 times as fast at batch 16" in text
        assert "missed" in text
        assert "reached" in text
        for row in search.costs.rows:
            assert f"{500 * row.saved_share:.1f}"[:3] in text
    assert "| 1 | 1.300 | 10 |" in markdown
    assert "| 2 | 1.400 | 9 |" in markdown
    assert markdown.count("| cross-attention |") == 4
    assert Report.model_validate_json(render(report, "json")).search == search


def test_the_report_says_that_the_wanted_speedup_was_missed():
    search = speed_search(*[(1.29, False)] * 4)
    report = translator_report().model_copy(update={"search": search})
    assert "was not reached in 4 tries" in render(report, "markdown")
