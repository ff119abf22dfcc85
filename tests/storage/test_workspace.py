"""Records of finished stages: read where they can be relied on, made again where not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from compressor.errors import InputError, UsageError
from compressor.progress import SILENT
from compressor.storage.files import write_json
from compressor.storage.hashes import sha256_of
from compressor.storage.manifest import find_change, read_manifest
from compressor.storage.outputs import write_manifest
from compressor.storage.staging import staging
from compressor.storage.workspace import StageRecord, Workspace, open_workspace
from tests.helpers.errors import raises
from tests.helpers.runs import Progress


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    with open_workspace(tmp_path / "out", {}, SILENT) as opened:
        yield opened


GRAPHS = {"precisions": {"fp32": {"model": "model.onnx"}}, "default_precision": "fp32", "pad": 0}


def build(workspace: Workspace, result: int = 1) -> None:
    """Finish a stage that writes two files."""
    with workspace.making(workspace.root) as making:
        (making / "weights").write_bytes(b"12345")
        write_json(making / "graphs.json", GRAPHS)
    workspace.finish("build", StageRecord("build", {"plan": "a"}, result, workspace.made()), 0.0)


def read(workspace: Workspace) -> int | None:
    return workspace.read("build", int, "building")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2])


def test_what_was_finished_is_read(workspace):
    assert read(workspace) is None
    build(workspace, 7)
    assert read(workspace) == 7


@pytest.mark.parametrize("name", ["weights", "graphs.json"])
@pytest.mark.parametrize("harm", [zeros, cut, Path.unlink])
def test_a_lost_or_changed_file_makes_its_stage_unfinished(workspace, harm, name):
    build(workspace)
    harm(workspace.root / name)
    assert read(workspace) is None
    build(workspace, 2)
    assert read(workspace) == 2


def test_files_of_others_and_what_later_stages_add_are_no_loss(workspace):
    (workspace.root / "report.md").write_text("short", encoding="utf-8")
    build(workspace)
    more = GRAPHS["precisions"] | {"int8": {"model": "model.int8.onnx"}}
    later = {"precisions": more, "default_precision": "int8"}
    write_json(workspace.root / "graphs.json", GRAPHS | later)
    (workspace.root / "report.md").write_text("much longer", encoding="utf-8")
    (workspace.root / "weights.int8").touch()
    assert read(workspace) == 1
    (workspace.root / "report.md").unlink()
    assert read(workspace) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"pad": 1},
        {"precisions": {}},
        {"precisions": {"fp32": {"model": "other.onnx"}}},
        {"default_precision": "int8"},
        {"end": 2},
    ],
)
def test_what_a_stage_wrote_into_a_description_of_graphs_may_not_change(workspace, change):
    build(workspace)
    write_json(workspace.root / "graphs.json", GRAPHS | change)
    assert read(workspace) is None


def test_what_fails_leaves_nothing_under_its_final_name(workspace):
    def interrupted() -> None:
        with workspace.making(workspace.root / "out") as making:
            (making / "weights").write_bytes(b"123")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (workspace.root / "out").exists()
    assert workspace.made() == {}


def test_what_a_killed_run_was_making_is_removed(tmp_path):
    with open_workspace(tmp_path / "out", {}, SILENT) as opened, staging(opened.state) as staged:
        left = shutil.copytree(staged.parent, staged.parent.with_name(".writing-left"))
    with open_workspace(tmp_path / "out", {}, SILENT):
        assert not left.exists()


def test_two_runs_do_not_share_an_output(tmp_path):
    with open_workspace(tmp_path / "out", {}, SILENT) as first:
        build(first)
        with raises(InputError, "output-in-use") as caught:
            open_workspace(tmp_path / "out", {}, SILENT)
        assert str(tmp_path / "out") in str(caught.value)
        assert f"process {os.getpid()} on " in str(caught.value)
    with open_workspace(tmp_path / "out", {}, SILENT) as second:
        assert read(second) == 1


RECORD = {"stage": "build", "keys": {}, "result": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"stage": "build", "ke',
        "\x00 garbage",
        b"\xff\xfe\x00\x80",
        "[1, 2]",
        "null",
        json.dumps(RECORD | {"version": "0.0.1"}),
        json.dumps(RECORD | {"result": "many"}),
        json.dumps(RECORD | {"result": None}),
        json.dumps(RECORD | {"keys": [1]}),
        json.dumps(RECORD | {"files": ["weights"]}),
        json.dumps({"stage": "build"}),
    ],
)
def test_a_damaged_record_is_told_and_counts_as_not_there(tmp_path, text):
    progress = Progress()
    workspace = open_workspace(tmp_path / "out", {}, progress)
    path = workspace.state / "build.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert read(workspace) is None
    (message,) = progress.messages
    assert str(path) in message
    assert "building is done again" in message


def test_records_can_be_dropped_and_unreadable_ones_go_too(workspace):
    build(workspace)
    workspace.finish("other", StageRecord("other", {"plan": "b"}, 2), 0.0)
    (workspace.state / "bad.json").write_text("{", encoding="utf-8")
    workspace.drop(lambda record: record.keys["plan"] == "a")
    assert {path.stem for path in workspace.state.glob("*.json")} == {"other", "run"}


def test_a_stage_that_is_asked_for_often_is_told_once(tmp_path):
    progress = Progress()
    for _ in range(2):  # as if by two processes
        with open_workspace(tmp_path / "out", {}, progress) as opened:
            if read(opened) is None:
                opened.begin("build", "building")
                build(opened)
            assert [read(opened) for _ in range(3)] == [1, 1, 1]
    assert progress.messages == ["building …", "building: done before"]


def test_a_moved_workspace_still_finds_its_files(workspace, tmp_path):
    build(workspace)
    workspace.close()
    moved = workspace.root.rename(tmp_path / "moved")
    assert read(open_workspace(moved, {}, SILENT)) == 1


def test_another_run_is_refused_with_the_option_that_differs(tmp_path):
    root = tmp_path / "out"
    before = {"budget": {"name": "counts", "keep": ["0.5"]}, "throughput": {"threads": 1}}
    for _ in range(2):
        open_workspace(root, before, SILENT).close()
    with raises(UsageError, "output-of-another-run") as caught:
        open_workspace(root, before | {"budget": {"name": "counts", "keep": ["0.7"]}}, SILENT)
    assert "budget.keep=['0.5'], now it is ['0.7']" in str(caught.value)
    with raises(UsageError, "output-of-another-run") as caught:
        open_workspace(root, before | {"throughput": None}, SILENT)
    assert "throughput=" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"'])
def test_a_run_whose_options_are_lost_starts_again(tmp_path, text):
    root, progress = tmp_path / "out", Progress()
    with open_workspace(root, {"seed": 1}, SILENT) as first:
        build(first)
    path = root / ".compress" / "run.json"
    path.write_text(text, encoding="utf-8")
    with open_workspace(root, {"seed": 1}, progress) as second:
        assert read(second) is None
    (message,) = progress.messages
    assert str(path) in message
    with raises(UsageError, "output-of-another-run"):
        open_workspace(root, {"seed": 2}, SILENT)


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").touch()
    with raises(InputError, "output-not-empty"):
        open_workspace(tmp_path, {}, SILENT)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_manifest_lists_what_was_written_and_tells_what_changed(tmp_path):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "weights").write_bytes(b"12345")
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"graph")
    names = ["weights", "onnx/model.onnx"]
    hashes = {name: sha256_of(tmp_path / name) for name in names}
    write_manifest(tmp_path, {"tool": "compress 1", "seed": 3}, hashes)
    found = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    # printf 12345 | sha256sum
    digest = "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5"
    assert found["files"]["weights"] == {"bytes": 5, "sha256": digest}
    assert found["seed"] == 3
    listed = read_manifest(tmp_path)
    assert list(listed) == sorted(names)
    assert [find_change(tmp_path, name, x) for name, x in listed.items()] == ["", ""]
    (tmp_path / "weights").write_bytes(b"12346")
    assert find_change(tmp_path, "weights", listed["weights"])
    (tmp_path / "weights").write_bytes(b"1234")
    assert "4 bytes" in find_change(tmp_path, "weights", listed["weights"])
    (tmp_path / "weights").unlink()
    assert find_change(tmp_path, "weights", listed["weights"]) == "is missing"
