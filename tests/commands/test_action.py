"""The composite action: its steps in a shell, as GitHub runs them; the example workflows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from compressor.commands import invoke
from compressor.report.schema import render_json
from tests.helpers.report_samples import hostile_report, translator_report

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_PYTHON = f"""#!/bin/sh
[ "$1 $2" = "-m pip" ] && {{ echo "$@" >> "$RUNNER_TEMP/pip.txt"; exit; }}
exec {sys.executable} "$@"
"""
# With a finished run at hand, `compress run` gives that instead.
_COMPRESS = f"""#!/bin/bash
if [ "$1" = run ] && [ -n "$FINISHED" ]; then
  printf '%s\\n' "$@" > "$RUNNER_TEMP/run.txt"
  mkdir -p "${{2#--output=}}" && cp "$FINISHED" "${{2#--output=}}/report.json"
  exit "${{RUN_STATUS:-0}}"
fi
exec {sys.executable} -m compressor "$@"
"""
_GH = f"""#!{sys.executable}
import os, pathlib, sys
log = pathlib.Path(os.environ["RUNNER_TEMP"], "gh.txt")
with log.open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if os.environ.get("GH_FAILS"):
    sys.exit("HTTP 403: Resource not accessible by integration")
if "--paginate" in sys.argv:
    assert os.environ["marker"].startswith("<!-- compress gate ")
    print(os.environ.get("COMMENTS", ""), end="")
"""
EXAMPLES = ROOT / "examples" / "ci"
HOSTILE = '$(touch "$RUNNER_TEMP/owned"); `touch $RUNNER_TEMP/owned`\n\'; touch owned #'


@dataclass
class Runner:
    """One job."""

    directory: Path  # an empty one, for the workspace and the runner's own files
    inputs: dict[str, str]
    github: dict[str, str] = field(default_factory=dict)  # values of the context, by path
    environment: dict[str, str] = field(default_factory=dict)  # more variables
    cache_hit: str = ""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    summary: str = ""
    log: str = ""
    ran: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.temporary, self.workspace = self.directory / "temp", self.directory / "workspace"
        tools = self.directory / "tools"
        for directory in (self.temporary, self.workspace, tools):
            directory.mkdir(exist_ok=True)
        for name, text in (("python", _PYTHON), ("compress", _COMPRESS), ("gh", _GH)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self._path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        known = {name: str(x.get("default", "")) for name, x in ACTION["inputs"].items()}
        assert self.inputs.keys() <= known.keys()
        self.inputs = known | self.inputs

    def run(self) -> int:
        """All steps until one fails; the status of the last."""
        self.outputs["cache"] = {"cache-hit": self.cache_hit}
        for step in STEPS:
            if "if" in step and not self._holds(step["if"]):
                continue
            if "run" not in step:
                self.ran.append(step["uses"])
                continue
            self.ran.append(step["name"])
            status = self._run(step)
            if status:
                return status
        return 0

    def _run(self, step: dict[str, Any]) -> int:
        assert step["shell"] == "bash"
        files = {n: self.temporary / f"{n}.txt" for n in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for path in files.values():
            path.write_text("")
        script = self.temporary / "step.sh"
        script.write_text(step["run"], encoding="utf-8")
        where = self.workspace / self._filled(step.get("working-directory", "."))
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(self.temporary),
            "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_REPOSITORY": "acme/models",
            "PATH": self._path, **{name: str(path) for name, path in files.items()},
            **self.environment,
            **{name: self._filled(str(value)) for name, value in step.get("env", {}).items()},
        }  # fmt: skip
        done = subprocess.run(
            [shutil.which("bash"), "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=where, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        self.log += done.stdout + done.stderr
        lines = files["GITHUB_OUTPUT"].read_text("utf-8").splitlines()
        self.outputs[step.get("id", "")] = dict(line.split("=", 1) for line in lines)
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text("utf-8")
        return done.returncode

    def _filled(self, text: str) -> str:
        return _EXPRESSION.sub(lambda found: self._value(found[1]), text)

    def _value(self, name: str) -> str:
        kind, _, rest = name.partition(".")
        if kind == "inputs":
            return self.inputs[rest]
        if kind == "steps":
            step, _, output = rest.partition(".outputs.")
            return self.outputs[step].get(output, "")
        if kind == "github":
            return self.github.get(rest, "")
        if name == "hashFiles(inputs.cache-files)":
            return self._hash_files(self.inputs["cache-files"])
        return {"runner.temp": str(self.temporary), "runner.os": "Linux"}[name]

    def _hash_files(self, patterns: str) -> str:
        """Of the contents of all files in the workspace that match; empty where none does."""
        found = {path for line in patterns.split() for path in self.workspace.glob(line)}
        files = sorted(path for path in found if path.is_file())
        return sha256(b"".join(path.read_bytes() for path in files)).hexdigest() if files else ""

    def _holds(self, condition: str) -> bool:
        """Conditions of the forms that the action has: `A`, `A == 'x'`, `A != 'x'`, with `&&`."""
        for part in condition.split(" && "):
            found = re.fullmatch(r"([\w.-]+)(?: (==|!=) '(.*)')?", part)
            assert found is not None, part
            value = self._value(found[1])
            if not (value if found[2] is None else (value == found[3]) == (found[2] == "==")):
                return False
        return True


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
    """It is compared with an earlier one; nothing is cached unless files are named."""
    job = runner(
        max_metric_drop="\nbleu=4\nchrf=9\n", min_speedup="0.9", max_size_mb="200",
        baseline="old.json",
    )  # fmt: skip
    (job.workspace / "old.json").write_text(render_json(translator_report()), "utf-8")
    assert job.run() == 0, job.log
    outputs = job.outputs["gate"]
    assert (outputs["passed"], outputs["verdict"]) == ("true", "passed")
    assert float(outputs["size-mb"]) == pytest.approx(140.526)  # heads-50, the headline
    assert float(outputs["quality-delta"]) == pytest.approx(33.9032 - 34.2134)
    assert json.loads(Path(outputs["report"]).read_text("utf-8"))["task"] == "translation"
    assert Path(outputs["artifact"]).is_dir()
    names = {path.name for path in Path(outputs["files"]).iterdir()}
    assert {"summary.md", "junit.xml", "badge.json", "benchmark-bigger.json"} <= names
    assert job.summary.startswith("## ✅ Passed: compress acme/opus-en-de")
    assert "<summary>Compared with the baseline</summary>" in job.summary
    declared = {re.fullmatch(r"\$\{\{ steps.gate.outputs.(.*) \}\}", x["value"])[1]
                for x in ACTION["outputs"].values()}  # fmt: skip
    assert declared == outputs.keys() == ACTION["outputs"].keys()
    assert "Comment" not in job.ran
    assert not [step for step in job.ran if step.startswith("actions/cache")]
    assert (job.temporary / "pip.txt").read_text().startswith("-m pip install")


@pytest.mark.parametrize(
    ("inputs", "environment", "status", "verdict"),
    [
        ({"max_metric_drop": "bleu=0.3"}, {"RUN_STATUS": "1"}, 1, "❌ Failed"),
        ({"min_speedup": "1.03@8", "inconclusive": "pass"}, {}, 0, "⚠️ Inconclusive"),
    ],
)
def test_the_last_step_alone_tells_the_verdict(runner, inputs, environment, status, verdict):
    """What came before, the summary and the files, is there."""
    job = runner(environment, **inputs)
    assert (job.run(), job.ran[-1]) == (status, "Verdict"), job.log
    assert f"## {verdict}" in job.summary
    assert job.outputs["gate"]["verdict"] == verdict.split()[1].lower()
    assert job.ran.count("actions/upload-artifact@v4") == 1


@pytest.mark.parametrize(
    ("inputs", "environment", "step", "status"),
    [
        ({"max_metric_drop": "0.3"}, {}, "Gate", 2),
        ({}, {"RUN_STATUS": "5"}, "Compress", 5),
        ({"cache_files": "nothing/*"}, {}, "What the results depend on", 4),
    ],
)
def test_errors_end_the_job_where_they_happen(runner, inputs, environment, step, status):
    job = runner(environment, **inputs)
    assert (job.run(), job.ran[-1]) == (status, step)


@pytest.mark.parametrize(
    ("environment", "call"),
    [
        ({}, "--method POST repos/acme/models/issues/7/comments"),
        ({"COMMENTS": "41\n42\n"}, "--method PATCH repos/acme/models/issues/comments/41"),
        ({"GH_FAILS": "1"}, None),
    ],
)
def test_one_comment_is_written_and_replaced(runner, environment, call):
    """Where it is not allowed, that is a warning."""
    job = runner(environment, comment="true")
    job.github = {"event.pull_request.number": "7", "token": "secret"}
    assert job.run() == 0, job.log
    _, *written = (job.temporary / "gh.txt").read_text().splitlines()
    body = f"-F body=@{job.outputs['gate']['files']}/comment.md"
    assert [f"{call} {body}" in line for line in written] == ([] if call is None else [True])
    assert ("::warning title=compress::no comment" in job.log) == (call is None)


def test_inputs_are_never_commands(runner):
    """All of them at once: the shell sees each before the first is refused."""
    names = ("max_metric_drop", "min_speedup", "max_size_mb", "max_macs", "baseline")
    job = runner(**dict.fromkeys((*names, "inconclusive"), HOSTILE))
    assert job.run() in (2, 4), job.log
    assert job.ran[-1] == "Gate"
    assert not list(job.directory.rglob("owned"))


def test_inputs_of_the_run_and_texts_of_its_report_stay_what_they_are(runner, tmp_path):
    job = runner(
        model=HOSTILE, calibration="a b,c.tsv", test="--keep=0.1", max_metric_drop="bleu=5"
    )
    (tmp_path / "finished.json").write_text(render_json(hostile_report()), "utf-8")
    assert job.run() == 0, job.log
    assert not list(job.directory.rglob("owned"))
    words = (job.temporary / "run.txt").read_text()
    assert words.endswith(f"--model={HOSTILE}\n--calibration=a b,c.tsv\n--test=--keep=0.1\n")
    assert "<script" not in job.summary
    assert job.outputs["gate"].keys() == ACTION["outputs"].keys()


def test_a_run_is_kept_in_the_cache_until_what_it_reads_changes(runner):
    given = {"working_directory": "project", "cache_files": "project/*.tsv"}
    job = runner(model="model", max_metric_drop="bleu=4", **given)
    rows = job.workspace / "project" / "rows.tsv"
    rows.parent.mkdir()
    rows.write_text("text\tlabel\n", "utf-8")
    (rows.parent / "recipe.yaml").write_text("max_macs: 1\n", "utf-8")
    assert job.run() == 0, job.log
    assert job.ran.count("actions/cache/save@v4") == 1
    again = runner(model="model", max_metric_drop="chrf=100", **given)
    again.cache_hit = "true"
    assert again.run() == 0, again.log
    assert again.outputs["key"] == job.outputs["key"]
    assert not {"Compress", "actions/cache/save@v4"} & set(again.ran)
    for model, content in ("other", ""), ("model", "w3\tLABEL_1\n"):
        with rows.open("a", encoding="utf-8") as file:
            file.write(content)
        other = runner(model=model, max_metric_drop="bleu=4", **given)
        assert other.run() == 0, other.log
        assert other.outputs["key"] != job.outputs["key"]


def test_no_expression_stands_in_a_script():
    """Those of the action, and of the example for GitHub, which fits the action."""
    workflow = yaml.safe_load((EXAMPLES / "github.yml").read_text("utf-8"))
    steps = workflow["jobs"]["compress"]["steps"]
    for step in [*STEPS, *steps]:
        assert "${{" not in step.get("run", "")
    ours = r"actions/(cache/restore|cache/save|cache|setup-python|upload-artifact)@v\d+"
    assert all(re.fullmatch(ours, step["uses"]) for step in STEPS if "uses" in step)
    (own,) = (step for step in steps if step.get("id") == "compress")
    required = {name for name, x in ACTION["inputs"].items() if x.get("required")}
    assert required <= own["with"].keys() <= ACTION["inputs"].keys()
    outputs = set(re.findall(r"steps\.compress\.outputs\.([\w-]+)", json.dumps(workflow)))
    assert outputs <= ACTION["outputs"].keys()


def test_the_example_for_gitlab_calls_commands_that_exist(capsys):
    job = yaml.safe_load((EXAMPLES / "gitlab.yml").read_text("utf-8"))["compress"]
    calls = [line.split() for line in job["script"] if line.startswith("compress ")]
    assert [words[1] for words in calls] == ["run", "gate"]
    for words in calls:
        assert invoke([words[1], "--help"]) == 0
        flags = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        assert {word for word in words if word.startswith("--")} <= flags
