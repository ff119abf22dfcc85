"""`--max-drop` as a budget: the search, against looking at every number of heads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from compressor.budgets.counts import (
    QualityBudget,
    SpeedBudget,
    check_possible,
    fewest_units,
    parse_floors,
    split_max_drop,
)
from compressor.budgets.quality import acceptable, main_comparison, nested_mask, search
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.pipeline.recipe import build_recipe
from compressor.report import render, sentences
from compressor.report.combine import combine
from compressor.report.model_card import render_card
from compressor.report.schema import Report
from compressor.results import Comparison, QualityProbe, QualitySearch
from tests.helpers.report_samples import translator_report

HEADS = {"encoder_self.0": 8, "encoder_self.1": 8, "decoder_self.0": 8, "cross.0": 8}
FULL = Mask({name: (True,) * count for name, count in HEADS.items()})


def comparison(low: float, high: float, metric: str = "bleu") -> Comparison:
    middle = (low + high) / 2
    return Comparison(
        metric=metric, dense=30.0, pruned=30 + middle, difference=middle, interval=(low, high),
        p_value=0.5, resamples=1000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "drop", "accepted"),
    [
        (-0.9, -0.31, 0.3, False),  # wholly below -0.3
        (-0.9, -0.29, 0.3, True),
        (-0.9, -0.3, 0.3, True),  # just touching
        (-0.2, 0.4, 0.3, True),
        (0.1, 0.2, 0.0, True),  # better than dense
        (-0.2, -0.1, 0.0, False),
        (-0.2, 0.0, 0.0, True),
        (math.nan, math.nan, 100.0, False),
    ],
)
def test_what_is_acceptable(low, high, drop, accepted):
    assert acceptable(comparison(low, high), drop) is accepted


def test_the_tasks_main_metric_decides():
    found = [comparison(0, 1, "chrf"), comparison(0, 1, "bleu")]
    assert main_comparison(found, "translation").metric == "bleu"
    found = [comparison(0, 1, "mcc"), comparison(0, 1, "accuracy")]
    assert main_comparison(found, "classification").metric == "accuracy"


def probe_of(accepted: set[int]):
    return lambda kept: QualityProbe(
        kept=kept, comparison=comparison(-1, 0), accepted=kept in accepted
    )


@pytest.mark.parametrize("total", [1, 2, 7, 12, 144])
@pytest.mark.parametrize("fewest", [0, 1])
def test_the_search_finds_the_threshold(total, fewest):
    """For every place where acceptance may begin, in at most log2 of the numbers of heads."""
    for threshold in range(fewest, total + 1):
        kept, probes = search(total, fewest, probe_of(set(range(threshold, total + 1))))
        assert kept == threshold
        assert len({probe.kept for probe in probes}) == len(probes)
        assert all(fewest <= probe.kept < total for probe in probes)
        assert len(probes) <= 1 + math.ceil(math.log2(max(1, total - fewest)))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_accepted_the_find_is_at_an_edge(seed):
    rng = np.random.default_rng(seed)
    accepted = {kept for kept in range(32) if rng.random() < 0.5}
    kept, probes = search(32, 0, probe_of(accepted))
    judged = {probe.kept: probe.accepted for probe in probes}
    assert kept == 32 or judged[kept]
    assert kept == 0 or judged[kept - 1] is False


def test_masks_are_nested_and_respect_floors():
    rng = np.random.default_rng(0)
    values = {name: tuple(rng.random(count).tolist()) for name, count in HEADS.items()}
    scores = Scores(values, "random", "random", {})
    floors = parse_floors("cross=5,encoder_self=0", FULL)
    fewest = fewest_units(FULL, floors)
    assert fewest == 5 + 1
    before = nested_mask(scores, FULL, floors, fewest)
    assert before.count("cross") == 5
    for kept in range(fewest, 33):
        mask = nested_mask(scores, FULL, floors, kept)
        assert mask.count() == kept
        for name in HEADS:
            assert set(before.kept(name)) <= set(mask.kept(name))
        before = mask


def test_the_report_shows_every_probe_and_what_the_interval_leaves_out():
    _, probes = search(12, 4, probe_of(set(range(7, 13))))
    found = QualitySearch(drop=0.3, metric="bleu", probes=probes)
    report = translator_report().model_copy(update={"search": found})
    markdown, page = render(report, "markdown"), render(report, "html")
    for text in (markdown, page):
        assert "lies below -0.3" in text
        assert "do not account for that" in text
        assert f"{report.test.rows:,} rows of {report.test.files[0]}" in text
    for number, probe in enumerate(probes, 1):
        result = "accepted" if probe.accepted else "refused"
        row = f"| {number} | {probe.kept} | 29.50 | -0.50 | [-1.00, 0.00] | {result} |"
        assert row in markdown
    assert "do not account for that" in render_card(report, report.variants[0].name)
    assert Report.model_validate_json(render(report, "json")).search == found


def test_reports_side_by_side_tell_of_which_variants_heads_were_searched_on_test_rows():
    """Only the first run searched: what it says, its table and the missed drop stay its own."""
    _, probes = search(12, 4, probe_of(set(range(7, 13))))
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
        assert text.count("do not account for that") == 1
    assert f"{lost.name}: the measured drop of 7.55 in BLEU is more than the 5" in markdown
    assert page.count('id="table-probes-1"') == 1
    assert "do not account for that" in render_card(both, lost.name)
    assert "do not account for that" not in render_card(both, "heads-50")
    assert Report.model_validate_json(render(both, "json")) == both


@pytest.mark.parametrize(
    ("low", "high", "drop", "said"),
    [
        (-10.0, -0.2, 5, "The measured drop of 5.10 in BLEU is more than the 5 asked for, which "
         "1,000 test rows cannot tell apart: use more test rows."),
        (-10.0, -5.1, 5, "The measured drop of 7.55 in BLEU is more than the 5 asked for, and "
         "1,000 test rows show that it is."),
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
    kept, probes = search(3, 0, probe_of(set()))
    assert kept == 3
    found = QualitySearch(drop=0, metric="bleu", probes=probes)
    report = translator_report().model_copy(update={"search": found})
    assert "Not one head could go" in render(report, "markdown")


def test_plain_numbers_are_budgets_and_the_rest_are_rules():
    values = ["0.3", "bleu=0.5", " 1 ", "accuracy"]
    assert split_max_drop(values) == (["0.3", " 1 "], ["bleu=0.5", "accuracy"])
    for bad in ("-0.1", "nan", "inf"):
        with pytest.raises(UsageError, match="from 0 up"):
            split_max_drop([bad])


def test_measured_budgets_have_names_fit_for_files():
    assert QualityBudget.of(0.3).text == "max-drop 0.3"
    assert SpeedBudget.of(1.3, 16).text == "speedup 1.3 at batch 16"
    assert SpeedBudget.of(1.3, 16).slug == "speedup-1.3-at-batch-16"
    keep_all = dict.fromkeys(("encoder_self", "decoder_self", "cross"), 8)
    with pytest.raises(UsageError, match="max-drop 0.3: the floors keep all 32 heads"):
        check_possible(QualityBudget.of(0.3), keep_all, FULL)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {"keep": ["0.5"], "speedup": None, "drops": [], "rules": ["bleu=1"]}),
        ({"speedup": 1.3}, {"keep": [], "speedup": 1.3, "drops": [], "rules": ["bleu=1"]}),
        ({"max_drop": ["0.3"]}, {"keep": [], "speedup": None, "drops": [0.3], "rules": ["bleu=1"]}),
        (
            {"max_drop": ["chrf=2"]},
            {"keep": ["0.5"], "speedup": None, "drops": [], "rules": ["chrf=2"]},
        ),
    ],
)
def test_a_budget_flag_replaces_the_files_budget_and_leaves_its_rules(flags, expected, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("model: a\nkeep: 0.5\nmax_drop: bleu=1\n", encoding="utf-8")
    recipe = build_recipe(flags, file)
    found = {"drops": recipe.drop_budgets, "rules": recipe.drop_rules}
    assert found | {"keep": recipe.keep, "speedup": recipe.speedup} == expected


def test_a_drop_of_the_file_gives_way_to_another_budget(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("model: a\nmax_drop: [0.3, bleu=1]\n", encoding="utf-8")
    assert build_recipe({}, file).drop_budgets == [0.3]
    assert build_recipe({"max_drop": ["bleu=2"]}, file).max_drop == ["0.3", "bleu=2"]
    assert build_recipe({"remove": ["3"]}, file).max_drop == ["bleu=1"]
    with pytest.raises(UsageError, match="--at-batch 8 belongs to --speedup"):
        build_recipe({"at_batch": 8}, file)
    with pytest.raises(UsageError, match="--speedup 1.0"):
        build_recipe({"speedup": 1.0}, file)
