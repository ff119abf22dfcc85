"""Files of the user's are never replaced, and what was not finished does not look finished."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compressor.commands import invoke as status_of
from compressor.errors import InputError
from compressor.storage.files import written_at_once
from compressor.storage.locks import Lock
from compressor.storage.manifest import read_manifest
from compressor.storage.outputs import require_new, whole_output
from tests.helpers import runtime_artifacts
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.report_samples import translator_report

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
HALF = """
import os, sys, time
from pathlib import Path
from compressor.storage.files import written_at_once
with written_at_once(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


@posix
def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    path = tmp_path / "scores.json"
    process = subprocess.Popen([sys.executable, "-c", HALF, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    with written_at_once(tmp_path / "other") as temporary:  # of a process that is alive: kept
        temporary.write_text("other", encoding="utf-8")
    assert len(list(tmp_path.glob(".writing-*"))) == 1
    process.kill()
    process.wait()
    assert not path.exists()
    with written_at_once(path) as temporary:
        temporary.write_text("whole", encoding="utf-8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "scores.json"]


def test_an_error_keeps_the_file_of_before(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("before", encoding="utf-8")
    with pytest.raises(KeyboardInterrupt), written_at_once(path) as temporary:  # noqa: PT012
        temporary.write_text("half", encoding="utf-8")
        raise KeyboardInterrupt
    assert path.read_text(encoding="utf-8") == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["scores.json"]


HOLD = """
import sys, time
from pathlib import Path
from compressor.storage.staging import lock_output
lock = lock_output(Path(sys.argv[1]), Path("out"))
print("locked", flush=True)
time.sleep(60)
"""


@posix
def test_a_lock_says_who_holds_it_and_ends_with_its_process(tmp_path):
    path = tmp_path / "lock"
    hold = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE)
    assert hold.stdout is not None
    assert hold.stdout.readline() == b"locked\n"
    lock = Lock(path)
    assert not lock.acquire()
    assert f"process {hold.pid} on " in lock.holder()
    hold.kill()
    hold.wait()
    assert lock.acquire()
    lock.release()
    assert not path.exists()


def test_a_single_step_that_is_killed_can_be_started_again(tmp_path):
    out = tmp_path / "out"
    with whole_output(out, 0, "writing") as making:
        (making / "onnx").mkdir()
        (making / "onnx" / "model.onnx").write_bytes(b"graph")
        with raises(InputError, "output-in-use"):
            require_new(out)
    assert list(read_manifest(out) or {}) == ["onnx/model.onnx"]
    # As if it had been killed after it moved the graph, and while it made something else.
    digest = (read_manifest(out) or {})["onnx/model.onnx"].sha256
    (out / "manifest.json").unlink()
    left = out / ".writing-output"
    (left / "new").mkdir(parents=True)
    (left / "new" / "config.json").touch()
    (left / "lock").touch()
    moving = json.dumps({"onnx/model.onnx": digest, "config.json": digest})
    (left / "moving.json").write_text(moving, encoding="utf-8")
    require_new(out)
    assert list(out.iterdir()) == []


def test_a_step_that_fails_leaves_no_directory(tmp_path):
    def write() -> None:
        with whole_output(tmp_path / "out", 0, "writing") as making:
            (making / "config.json").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def report(tmp_path) -> Path:
    path = tmp_path / "r.json"
    path.write_text(translator_report().model_dump_json(), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "options"), [("report.md", ()), ("quality.png", ("--plots",))])
def test_a_report_never_replaces_a_file_beside_reports_of_ours(report, tmp_path, name, options):
    out = tmp_path / "out"
    invoke("report", report, "-o", out)
    (out / name).write_bytes(b"\x89PNG holiday")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with raises(InputError, "output-not-ours"):
        invoke("report", report, "-o", out, *options)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_report_in_an_artifact_keeps_its_manifest_true(report, tmp_path):
    made = runtime_artifacts.classifier("bert").directory
    out = Path(shutil.copytree(made, tmp_path / "out"))
    written, manifest = out / "report.json", out / "manifest.json"
    gate = ["gate", str(written), "--max-metric-drop", "bleu=100"]
    invoke("report", report, "-o", out)
    assert {"report.md", "report.html", "report.json"} <= set(read_manifest(out) or {})
    assert status_of(gate) == 0
    written.write_text(written.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert status_of(gate) == 4
    assert status_of([*gate, "--no-verify"]) == 0
    data = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(data | {"files": {}}), encoding="utf-8")
    assert status_of(gate) == 4
