"""Reports of several budgets and of several runs: what belongs to which variant."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from compressor.errors import InputError
from compressor.report import facts, render, sentences, tables
from compressor.report.combine import combine, only, share_scoring
from compressor.report.model_card import render_card
from compressor.report.schema import Report
from compressor.report.unit_maps import unit_maps
from compressor.results import Variant
from tests.helpers.errors import raises
from tests.helpers.report_samples import changed, translator_report


def scored_apart() -> Report:
    """The translator's report with other scores and methods for each variant."""
    report = translator_report()
    assert report.scoring is not None
    changed = []
    for number, variant in enumerate(report.variants, 1):
        values = {n: [number + v for v in found] for n, found in report.scoring.values.items()}
        own = {"signature": f"signature-{number}", "values": values}
        scoring = report.scoring.model_copy(update=own)
        changed.append(variant.model_copy(update={"scoring": scoring}))
    return report.model_copy(update={"scoring": None, "variants": changed})


def titles(report: Report, variant: Variant) -> str:
    """What the maps of a variant's heads tell."""
    rows = [row for found in unit_maps(report, variant) for row in found.rows]
    return "\n".join(title for row in rows for title, _ in row.cells)


def test_each_variant_shows_the_scores_its_own_heads_were_chosen_by():
    report = scored_apart()
    for number, variant in enumerate(report.variants, 1):
        first = variant.scoring.values["cross.0"][0]
        assert f"score {first!r}" in titles(report, variant)
        card = render_card(report, variant.name)
        assert f"signature-{number}" in card
        assert not any(f"signature-{n}" in card for n in (1, 2, 3) if n != number)
        own = only(report, variant)
        assert own.scoring == variant.scoring
        assert f"score {first!r}" in titles(own, own.variants[0])
    pairs = dict(tables.origin(report).rows)
    assert pairs["Scoring signature of heads-50"] == "signature-2"
    assert Report.model_validate_json(render(report, "json")) == report


def test_scores_that_all_variants_share_stand_once_in_the_report():
    report = translator_report()
    same = [v.model_copy(update={"scoring": report.scoring}) for v in report.variants]
    precision = same[0].model_copy(update={"name": "other", "base": same[0].name, "scoring": None})
    scoring, variants = share_scoring([*same, precision])
    assert scoring == report.scoring
    assert all(variant.scoring is None for variant in variants)
    own = only(report, report.variants[1])
    assert own.scoring == report.scoring
    assert dict(tables.origin(own).rows)["Scoring signature"] == report.scoring.signature
    apart = scored_apart().variants
    assert share_scoring(apart) == (None, apart)


def two_runs() -> tuple[Report, Report]:
    """The translator's report, and that of another run with everything a run may change changed."""
    first = translator_report()
    assert first.scoring is not None
    assert first.calibration is not None
    values = {name: [9 + v for v in found] for name, found in first.scoring.values.items()}
    changed = {
        "seed": 18,
        "command": "compress run --seed 18",
        "calibration": first.calibration.model_copy(update={"files": ["other.tsv"]}),
        "shared_rows": 40,
        "scoring": first.scoring.model_copy(update={"signature": "others", "values": values}),
        "versions": first.versions | {"torch": "2.14.0"},
        "throughput": None,
        "gate": [],
    }
    return first, first.model_copy(update=changed)


def test_every_fact_of_several_runs_is_that_of_the_run_it_came_from():
    first, second = two_runs()
    both = combine([first, second])
    names, others = ", ".join(v.name for v in first.variants), "heads-75-2, heads-50-2, heads-25-2"
    pairs = dict(tables.origin(both).rows + tables.environment(both).rows)
    assert pairs[f"Seed of {names}"] == "17"
    assert pairs[f"Seed of {others}"] == "18"
    assert pairs[f"Command of {others}"] == second.command
    assert "other.tsv" in pairs[f"Calibration data of {others}"]
    assert pairs[f"torch of {others}"] == "2.14.0"
    assert pairs["python"] == first.versions["python"]
    assert pairs["Scoring signature of heads-50-2"] == "others"
    assert "Seed" not in pairs
    assert (both.seed, both.command, both.calibration) == (None, "", None)
    variant = both.variants[4]
    assert f"score {9 + first.scoring.values['cross.0'][0]!r}" in titles(both, variant)
    assert "Of heads-75-2, heads-50-2 and heads-25-2: 40 of 1,000 test" in sentences.verdict(both)
    own = only(both, variant)
    assert (own.seed, own.command, own.shared_rows) == (18, second.command, 40)
    assert "other.tsv" in render_card(both, variant.name)
    assert Report.model_validate_json(render(both, "json")) == both
    third = combine([both, first])
    assert [run.seed for run in third.runs] == [17, 18, 17]
    assert third.runs[2].variants == ["heads-75-3", "heads-50-3", "heads-25-3"]


def test_gate_outcomes_of_all_runs_are_kept_with_their_variants():
    first, second = two_runs()
    both = combine([second, first])  # the rules are those of the second
    assert {found.variant for found in both.gate} == {f"{v.name}-2" for v in first.variants}
    root = ElementTree.fromstring(render(both, "junit"))
    assert (root.get("tests"), root.get("failures")) == ("6", "3")
    assert facts.headline(both).name == "heads-50"  # the gated ones fail


def test_timings_of_several_runs_are_said_to_be_elsewhere_not_to_be_missing():
    first, second = two_runs()
    both = combine([first, second])
    (sentence,) = sentences.speed_sentences(both)
    assert "each run's own report has them" in sentence
    assert "speed not shown" in sentences.verdict(both)
    neither = combine([second, second])
    assert sentences.speed_sentences(neither) == ["Throughput was not measured."]


@pytest.mark.parametrize(("place", "value"), [("metrics", 34.5), ("signatures", "beams:4")])
def test_runs_with_another_dense_quality_are_refused(place, value):
    first, second = two_runs()
    other = changed(second, "dense", "quality", place, "bleu", to=value)
    with raises(InputError, "reports-differ") as caught:
        combine([first, other])
    assert "dense quality" in str(caught.value)
