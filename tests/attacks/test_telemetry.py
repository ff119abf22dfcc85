"""Serving a model writes nothing below the home directory, and needs no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import runtime_artifacts

ENGINES = ("onnxruntime", "openvino")
SERVE = """
import sys
from compressor.runtime import Classifier
print(Classifier(sys.argv[1], verify=False, engine=sys.argv[2]).classify(["some text"]))
"""


def serve(home: Path, engine: str, before: tuple[str, ...] = ()) -> str:
    artifact = runtime_artifacts.classifier("bert").directory
    command = [*before, sys.executable, "-c", SERVE, str(artifact), engine]
    variables = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    variables |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    found = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_written_to_the_home_directory(tmp_path, engine):
    assert serve(tmp_path, engine)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_a_users_own_setting_stays(monkeypatch, given, expected):
    """Whether onnxruntime then writes anything is its own affair, and depends on the machine."""
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    if given is not None:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", given)
    show = "import os, compressor.runtime; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert subprocess.check_output([sys.executable, "-c", show], text=True).strip() == expected


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0,
    reason="no network namespace can be made here",
)
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_missed_without_a_network(tmp_path, engine):
    without = serve(tmp_path, engine, ("unshare", "--net"))
    assert without == serve(tmp_path, engine)
