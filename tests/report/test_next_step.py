"""The next step: the suggested gate passes on the report that suggests it, and is hardly looser."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from compressor.commands import invoke
from compressor.report.build_view import build_view
from compressor.report.next_step import rules_that_pass
from compressor.report.schema import Report, render_json
from compressor.report.terminal import ending
from tests.helpers.report_samples import changed, mixed_report, translator_report, with_timing


def without_loss(report: Report) -> Report:
    """The report of one model without a gate, whose quality and speed nothing is said against."""
    variants = [v for v in report.variants if v.name == "heads-50"]
    return report.model_copy(update={"variants": variants, "gate": []})


def of_interval(low: float, high: float) -> Report:
    """One whose BLEU has another interval."""
    report = without_loss(translator_report())
    return changed(report, "variants", 0, "comparisons", 0, "interval", to=(low, high))


def without_intervals(report: Report) -> Report:
    for batch in (1, 8, 32, 64):
        report = with_timing(report, "heads-50", batch, speedup=1.5, speedup_interval=None)
    return report


CASES = {
    "usual": without_loss(translator_report()),
    "neurons": without_loss(mixed_report()),
    "on a round number": of_interval(-0.7, 0.1),
    "above a round number": of_interval(-0.7000001, 0.1),
    "few rows": changed(of_interval(-9.87, 8.0), "variants", 0, "quality", "rows", to=20),
    "three models": translator_report().model_copy(update={"gate": []}),
    "no interval": without_intervals(without_loss(translator_report())),
}


def suggested(report: Report) -> list[str]:
    """The command of a gate for the report."""
    rules = rules_that_pass(report)
    return ["gate", "report.json", *(x for r in rules for x in (f"--{r.option}", r.text))]


@pytest.mark.parametrize("name", CASES)
def test_the_suggested_gate_passes_on_the_report_that_suggests_it(
    name, tmp_path, monkeypatch, capsys
):
    report = CASES[name]
    (tmp_path / "report.json").write_text(render_json(report), "utf-8")
    monkeypatch.chdir(tmp_path)
    command = suggested(report)
    assert len(command) > 2
    assert invoke([*command, "--json"]) == 0
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    assert {x["verdict"] for x in outcomes} == {"passed"}
    step = build_view(report).next_step
    if step.command.startswith("compress gate"):
        assert shlex.split(step.command)[1:] == command


@pytest.mark.parametrize("name", ["usual", "neurons", "above a round number"])
def test_a_gate_that_is_a_tenth_tighter_does_not_pass(name, tmp_path, monkeypatch):
    (tmp_path / "report.json").write_text(render_json(CASES[name]), "utf-8")
    monkeypatch.chdir(tmp_path)
    *_, drop, flag, speedup = suggested(CASES[name])
    metric, _, limit = drop.partition("=")
    ratio, _, batch = speedup.partition("@")
    tighter = (["--max-metric-drop", f"{metric}={float(limit) - 0.1:.1f}"],
               [flag, f"{float(ratio) + 0.1:.1f}@{batch}"])  # fmt: skip
    for words in tighter:
        assert invoke(["gate", "report.json", *words]) == 1


def test_the_end_of_a_run_names_files_from_where_it_was_started():
    report, output = CASES["usual"], Path("my out")
    lines = ending(build_view(report, output), output).splitlines()
    assert lines[0] == "Report: my out/report.html"
    words = shlex.split(lines[-1])
    assert words[:3] == ["compress", "gate", "my out/report.json"]
    untimed = report.model_copy(update={"throughput": None})
    assert shlex.split(ending(build_view(untimed, output), output).splitlines()[-1])[:4] == [
        "compress", "run", "-c", "my out/recipe.yaml"
    ]  # fmt: skip
