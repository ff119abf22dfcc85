"""Serving a model writes nothing below the home directory, and needs no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compressor.runtime import Classifier
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


def without_network() -> tuple[str, ...]:
    """What starts a command without a network; nothing where that cannot be had."""
    words = ("unshare", "--net")
    if shutil.which("unshare") is None or subprocess.run([*words, "true"]).returncode != 0:
        return ()
    return words


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_written_to_the_home_directory_and_no_network_is_missed(tmp_path, engine):
    expected = Classifier(runtime_artifacts.classifier("bert").directory).classify(["some text"])
    assert serve(tmp_path, engine, without_network()) == f"{expected}\n"
    assert list(tmp_path.rglob("*")) == []


def test_a_users_own_setting_stays(monkeypatch):
    """Whether onnxruntime then writes anything is its own affair, and depends on the machine."""
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    show = "import os, compressor.runtime; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert subprocess.check_output([sys.executable, "-c", show], text=True) == "0\n"
