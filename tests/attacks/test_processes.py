"""Processes and their surroundings: streams that are full or closed, a home, no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compressor.report.schema import render_json
from compressor.runtime import Classifier
from tests.helpers import runtime_artifacts
from tests.helpers.report_samples import translator_report

FAILS, PASSES = "--max-metric-drop bleu=0.0001", "--max-metric-drop bleu=99"
SERVE = """
import sys
from compressor.runtime import Classifier
print(Classifier(sys.argv[1], verify=False, engine=sys.argv[2]).classify(["some text"]))
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, as on Linux")
@pytest.mark.parametrize(
    ("rule", "streams", "status"),
    [
        (FAILS, "<&- >&- 2>&-", 1),
        (PASSES, "| true", 0),
        (PASSES, "--json >/dev/full", 4),  # a result that was wanted is lost
    ],
)
def test_a_gates_status_is_its_outcome(rule: str, streams: str, status: int, tmp_path):
    report = tmp_path / "report.json"
    report.write_text(render_json(translator_report()), encoding="utf-8")
    command = f'"$0" -m compressor gate "$1" {rule} {streams}'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command, sys.executable, report],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    if status == 4:
        assert "cannot write the result to standard output: No space left" in done.stderr


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_serving_writes_nothing_to_the_home_directory_and_misses_no_network(tmp_path, engine):
    artifact = str(runtime_artifacts.classifier("bert").directory)
    alone = ["unshare", "--net"]  # where that can be had
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"]).returncode != 0:
        alone = []
    variables = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    variables |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [*alone, sys.executable, "-c", SERVE, artifact, engine]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{Classifier(artifact).classify(['some text'])}\n"
    assert list(tmp_path.rglob("*")) == []
