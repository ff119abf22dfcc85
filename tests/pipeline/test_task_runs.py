"""What a run writes for every task: verified, judged, evaluated, timed and described."""

from __future__ import annotations

import json

import pytest

from compressor.report.schema import load_report
from tests.helpers.command_line import invoke
from tests.pipeline.task_runs import RUNS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", RUNS)
def test_a_task_is_verified_judged_and_described(name, task_run, tmp_path, capsys):
    job, folder = RUNS[name], task_run(name)
    out, dense, test = folder / "out", folder / "out" / ".compress" / "dense", folder / job.test
    report = load_report(out / "report.json")
    assert report.task == job.task
    assert [(x.rule, x.met) for x in report.gate] == [(f"max-metric-drop {job.drop}=1000", True)]
    pruned = next(x for x in report.variants if x.family != "dense")
    wanted = [word for word in ("reconstruct", "distill") if word in str(job.options)]
    assert all(word in pruned.recovery for word in wanted)
    card = (out / "README.md").read_text(encoding="utf-8")
    runtime, auto_class = job.classes
    assert f"from compressor.runtime import {runtime}\n" in card
    assert f"from transformers import {auto_class}\n" in card

    invoke("verify", out)
    invoke("gate", out / "report.json", "--max-metric-drop", f"{job.drop}=1000")
    invoke("report", out / "report.json", "-o", tmp_path / "reports")
    assert pruned.name in (tmp_path / "reports" / "report.md").read_text(encoding="utf-8")
    capsys.readouterr()
    invoke("evaluate", dense, out, "--test", test, "--resamples", "100", "--json")
    evaluated = json.loads(capsys.readouterr().out)["artifacts"]
    assert all(job.drop in x["quality"]["metrics"] for x in evaluated)
    assert any(x["comparisons"] for x in evaluated)
    invoke("inspect", out, "--json")
    assert json.loads(capsys.readouterr().out)["task"] == job.task


@pytest.mark.parametrize("name", ["embedding", "token-classification"])
def test_artifacts_are_timed_on_rows_of_their_task(name, task_run, capsys):
    """Texts alone are enough where there are no labels."""
    job, folder = RUNS[name], task_run(name)
    dense, out = folder / "out" / ".compress" / "dense", folder / "out"
    options = ("-b", "16", "--bench-seconds", "0.02", "--precision", "fp32", "--json")
    invoke("bench", dense, out, "--test", folder / job.calibration, *options)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(row["sentences_per_second"] > 0 for row in rows)
    assert len(rows) == 2
