"""Reports of several budgets: what belongs to which variant."""

from __future__ import annotations

from compressor.report import render, tables
from compressor.report.model_card import render_card
from compressor.report.one_variant import only, share_scoring
from compressor.report.schema import Report
from compressor.report.unit_maps import unit_maps
from compressor.results import Variant
from tests.helpers.report_samples import translator_report


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
