"""The composite action: its steps in a shell, as GitHub runs them; the example workflows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from compressor.commands import invoke
from compressor.report.schema import render_json
from tests.helpers import toy
from tests.helpers.action import ACTION, ROOT, STEPS, Runner
from tests.helpers.report_samples import hostile_report, translator_report

EXAMPLES = ROOT / "examples" / "ci"
OURS = ("actions/cache", "actions/setup-python", "actions/upload-artifact")
HOSTILE = '$(touch "$RUNNER_TEMP/owned"); `touch $RUNNER_TEMP/owned`\n\'; touch owned #'


@pytest.fixture
def runner(tmp_path: Path) -> Any:
    """Makes a job whose `compress run` gives a finished report."""
    report = tmp_path / "finished.json"
    report.write_text(render_json(translator_report()), "utf-8")

    def make(environment: dict[str, str] | None = None, **inputs: str) -> Runner:
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        job = Runner(tmp_path, {"recipe": "recipe.yaml"} | given)
        job.environment |= {"FINISHED": str(report)} | (environment or {})
        (job.workspace / "recipe.yaml").write_text("max_metric_drop: bleu=9\n", "utf-8")
        return job

    return make


def test_a_job_that_passes(runner):
    job = runner(max_metric_drop="\nbleu=4\nchrf=9\n", min_speedup="0.9", max_size_mb="200")
    assert job.run() == 0, job.log
    outputs = job.outputs["gate"]
    assert (outputs["passed"], outputs["verdict"]) == ("true", "passed")
    assert float(outputs["size-mb"]) == pytest.approx(140.526)  # heads-50, the headline
    assert float(outputs["quality-delta"]) == pytest.approx(33.9032 - 34.2134)
    assert float(outputs["quality-interval-low"]) == pytest.approx(-0.6187)
    assert float(outputs["speedup"]) == pytest.approx(1.163)
    assert json.loads(Path(outputs["report"]).read_text("utf-8"))["task"] == "translation"
    assert Path(outputs["artifact"]).is_dir()
    names = {path.name for path in Path(outputs["files"]).iterdir()}
    assert names == {
        "summary.md", "comment.md", "junit.xml", "badge.json", "outputs.txt",
        "benchmark-bigger.json", "benchmark-smaller.json",
    }  # fmt: skip
    assert job.summary.startswith("## ✅ Passed: compress acme/opus-en-de")
    assert "All 12 gate checks are met." in job.summary
    assert job.summary.count("| max-metric-drop chrf=9 |") == 3
    declared = {re.fullmatch(r"\$\{\{ steps.gate.outputs.(.*) \}\}", x["value"])[1]
                for x in ACTION["outputs"].values()}  # fmt: skip
    assert declared == outputs.keys() == ACTION["outputs"].keys()
    assert "Comment" not in job.ran
    installed = (job.temporary / "pip.txt").read_text()
    assert installed.split()[:3] == ["-m", "pip", "install"]


def test_a_rule_that_is_not_met_fails_the_last_step_alone(runner):
    """What came before, the summary and the files, is there."""
    job = runner(max_metric_drop="bleu=0.3", environment={"RUN_STATUS": "1"})
    assert job.run() == 1
    assert job.ran[-1] == "Verdict"
    assert job.outputs["gate"]["verdict"] == "failed"
    assert job.summary.startswith("## ❌ Failed")
    assert job.ran.count("actions/upload-artifact@v4") == 1


@pytest.mark.parametrize(("inconclusive", "status"), [("", 1), ("pass", 0)])
def test_what_inconclusive_counts_as(runner, inconclusive, status):
    job = runner(min_speedup="1.03@8", max_metric_drop="bleu=5", inconclusive=inconclusive)
    assert job.run() == status
    assert job.outputs["gate"]["verdict"] == "inconclusive"
    assert "## ⚠️ Inconclusive" in job.summary
    at_eight = (1.021, 1.04, 1.112)  # the rule's batch size; which model leads depends on the rest
    assert float(job.outputs["gate"]["speedup"]) in at_eight


@pytest.mark.parametrize(
    ("inputs", "environment", "step", "status"),
    [
        ({"max_metric_drop": "0.3"}, {}, "Gate", 2),
        ({}, {"RUN_STATUS": "5"}, "Compress", 5),
    ],
)
def test_errors_end_the_job_where_they_happen(runner, inputs, environment, step, status):
    job = runner(environment, **inputs)
    assert (job.run(), job.ran[-1]) == (status, step)


def test_a_run_in_the_cache_is_not_repeated(runner, tmp_path):
    job = runner(cache_files="data/*")
    (job.workspace / "data").mkdir()
    rows = job.workspace / "data" / "rows.tsv"
    rows.write_text("one")
    assert job.run() == 0, job.log
    key = job.outputs["key"]["key"]
    assert job.ran.count("actions/cache/save@v4") == 1

    again = runner(cache_files="data/*", max_metric_drop="bleu=4")
    again.cache_hit = "true"
    (again.temporary / "run.txt").unlink()
    assert again.run() == 0, again.log
    assert again.outputs["key"]["key"] == key
    assert "Compress" not in again.ran
    assert "actions/cache/save@v4" not in again.ran
    assert not (again.temporary / "run.txt").exists()

    for change, content in (({"model": "other"}, "one"), ({}, "two")):
        rows.write_text(content)
        other = runner(cache_files="data/*", **change)
        assert other.run() == 0, other.log
        assert other.outputs["key"]["key"] != key


def test_nothing_is_cached_unless_the_files_are_named(runner):
    job = runner()
    assert job.run() == 0, job.log
    assert not [step for step in job.ran if step.startswith("actions/cache")]
    job = runner(cache_files="nothing/*")
    assert job.run() == 4
    assert "cache-files matches no file" in job.log


def test_an_earlier_run_is_compared_with(runner, tmp_path):
    job = runner(baseline="old.json")
    (job.workspace / "old.json").write_text(render_json(translator_report()), "utf-8")
    assert job.run() == 0, job.log
    assert "<summary>Compared with the baseline</summary>" in job.summary


@pytest.mark.parametrize(
    ("environment", "call"),
    [
        ({}, "--method POST repos/acme/models/issues/7/comments"),
        ({"COMMENTS": "41\n42\n"}, "--method PATCH repos/acme/models/issues/comments/41"),
    ],
)
def test_one_comment_is_written_and_replaced(runner, environment, call):
    job = runner(environment, comment="true")
    job.github = {"event.pull_request.number": "7", "token": "secret"}
    assert job.run() == 0, job.log
    looked, written = (job.temporary / "gh.txt").read_text().splitlines()
    assert "--paginate repos/acme/models/issues/7/comments" in looked
    assert f"{call} -F body=@{job.outputs['gate']['files']}/comment.md" in written


def test_a_comment_that_is_not_allowed_is_a_warning(runner):
    job = runner({"GH_FAILS": "1"}, comment="true")
    job.github = {"event.pull_request.number": "7"}
    assert job.run() == 0, job.log
    assert "::warning title=compress::no comment" in job.log


def test_inputs_are_never_commands(runner):
    """All of them at once: the shell sees each before the first is refused."""
    names = ("max_metric_drop", "min_speedup", "max_size_mb", "max_macs", "baseline")
    job = runner(**dict.fromkeys((*names, "inconclusive"), HOSTILE))
    assert job.run() in (2, 4), job.log
    assert job.ran[-1] == "Gate"
    assert not list(job.directory.rglob("owned"))


def test_inputs_of_the_run_arrive_as_they_are(runner):
    job = runner(model=HOSTILE, calibration="a b,c.tsv", test="--keep=0.1")
    assert job.run() == 0, job.log
    assert not list(job.directory.rglob("owned"))
    words = (job.temporary / "run.txt").read_text()
    assert words.endswith(f"--model={HOSTILE}\n--calibration=a b,c.tsv\n--test=--keep=0.1\n")


def test_texts_of_a_report_reach_neither_the_shell_nor_the_page(runner, tmp_path):
    job = runner(max_metric_drop="bleu=5")
    (tmp_path / "finished.json").write_text(render_json(hostile_report()), "utf-8")
    assert job.run() == 0, job.log
    assert "<script" not in job.summary
    assert job.outputs["gate"].keys() == ACTION["outputs"].keys()


def test_no_expression_stands_in_a_script():
    for step in STEPS:
        assert "${{" not in step.get("run", "")
        used = step.get("uses")
        if used is not None:
            assert re.fullmatch(rf"(?:{'|'.join(OURS)})(?:/\w+)?@v\d+", used)


def test_the_example_for_github_fits_the_action():
    workflow = yaml.safe_load((EXAMPLES / "github.yml").read_text("utf-8"))
    steps = workflow["jobs"]["compress"]["steps"]
    (own,) = (step for step in steps if step.get("id") == "compress")
    assert own["with"].keys() <= ACTION["inputs"].keys()
    used = set(re.findall(r"steps\.compress\.outputs\.([\w-]+)", json.dumps(workflow)))
    assert used <= ACTION["outputs"].keys()
    for step in steps:
        assert "${{" not in step.get("run", "")
    required = {name for name, x in ACTION["inputs"].items() if x.get("required")}
    assert required <= own["with"].keys()


def test_the_example_for_gitlab_calls_commands_that_exist(capsys):
    job = yaml.safe_load((EXAMPLES / "gitlab.yml").read_text("utf-8"))["compress"]
    calls = [line.split() for line in job["script"] if line.startswith("compress ")]
    assert [words[1] for words in calls] == ["run", "gate"]
    for words in calls:
        assert invoke([words[1], "--help"]) == 0
        flags = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        assert {word for word in words if word.startswith("--")} <= flags


@pytest.mark.slow
def test_a_toy_model_from_its_recipe_to_the_verdict(tmp_path):
    """Nothing is replaced but pip, and nothing is run again when the cache has it."""
    job = Runner(tmp_path, {"recipe": "recipe.yaml", "working-directory": "project"})
    project = job.workspace / "project"
    project.mkdir()
    toy.first_layers(toy.classifier(tmp_path / "whole"), project / "model")
    toy.labels_file(project / "rows.tsv")
    recipe = {
        "model": "model",
        "calibration": "rows.tsv",
        "test": "rows.tsv",
        "method": "magnitude",
        "keep": 0.5,
        "recover": "none",
        "resamples": 100,
        "bench": False,
        "max_metric_drop": "accuracy=100",
        "max_macs": 1,
        "device": "cpu",
    }
    (project / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    assert job.run() == 0, job.log
    outputs = job.outputs["gate"]
    assert outputs["verdict"] == "passed"
    assert (Path(outputs["artifact"]) / "model.safetensors").exists()
    again = Runner(tmp_path, job.inputs | {"max-metric-drop": "accuracy=99"}, cache_hit="true")
    assert again.run() in (0, 1), again.log
    assert again.outputs["key"] == job.outputs["key"]
    assert "Compress" not in again.ran
