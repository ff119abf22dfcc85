"""Reports of several budgets and of several runs: what belongs to which variant."""

from __future__ import annotations

from compressor.report import render, tables
from compressor.report.combine import only, share_scoring
from compressor.report.headmap import render_head_map
from compressor.report.model_card import render_card
from compressor.report.schema import Report
from tests.report_samples import translator_report


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


def test_each_variant_shows_the_scores_its_own_heads_were_chosen_by():
    report = scored_apart()
    for number, variant in enumerate(report.variants, 1):
        first = variant.scoring.values["cross.0"][0]
        assert f"score {first!r}" in render_head_map(report, variant, "cross")
        card = render_card(report, variant.name)
        assert f"signature-{number}" in card
        assert not any(f"signature-{n}" in card for n in (1, 2, 3) if n != number)
        own = only(report, variant)
        assert own.scoring == variant.scoring
        assert f"score {first!r}" in render_head_map(own, own.variants[0], "cross")
    pairs = dict(tables.origin(report))
    assert pairs["Scoring signature of heads-50"] == "signature-2"
    assert Report.model_validate_json(render(report, "json")) == report


def test_scores_that_all_variants_share_stand_once_in_the_report():
    report = translator_report()
    same = [v.model_copy(update={"scoring": report.scoring}) for v in report.variants]
    precision = same[0].model_copy(update={"name": "other", "base": same[0].name, "scoring": None})
    scoring, variants = share_scoring([*same, precision])
    assert scoring == report.scoring
    assert all(variant.scoring is None for variant in variants)
    apart = scored_apart().variants
    assert share_scoring(apart) == (None, apart)


def test_a_report_without_scores_of_its_variants_falls_back_to_its_own():
    report = translator_report()
    own = only(report, report.variants[1])
    assert own.scoring == report.scoring
    assert dict(tables.origin(own))["Scoring signature"] == report.scoring.signature
