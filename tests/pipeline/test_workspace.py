"""Stages that write files notice what was lost of them, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.pipeline.workspace import Workspace, open_workspace
from compressor.progress import SILENT, Silent


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    return open_workspace(tmp_path / "out", {}, SILENT)


def build(workspace: Workspace, count: int) -> int:
    """A stage that writes two files, and one that measures them; returns what the latter found."""

    def write() -> int:
        (workspace.root / "weights").write_bytes(b"12345")
        (workspace.root / "graphs.json").write_text("{}", encoding="utf-8")
        return count

    workspace.build("build", "building", write, workspace.root, ["measured"])
    return workspace.stage("measured", "measuring", lambda: count)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2])


@pytest.mark.parametrize("harm", [cut, Path.unlink])
def test_what_was_lost_is_made_again_and_measured_again(workspace, harm):
    assert build(workspace, 1) == 1
    harm(workspace.root / "weights")
    assert build(workspace, 2) == 2
    assert (workspace.root / "weights").read_bytes() == b"12345"
    assert build(workspace, 3) == 2


def test_files_of_others_and_what_later_stages_add_are_no_loss(workspace):
    (workspace.root / "report.md").write_text("short", encoding="utf-8")
    assert build(workspace, 1) == 1
    (workspace.root / "graphs.json").write_text('{"precisions": {}}', encoding="utf-8")
    (workspace.root / "report.md").write_text("much longer", encoding="utf-8")
    (workspace.root / "weights.int8").touch()
    assert build(workspace, 2) == 1
    (workspace.root / "report.md").unlink()
    assert build(workspace, 3) == 1
    (workspace.root / "graphs.json").unlink()
    assert build(workspace, 4) == 4


def test_a_stage_that_is_asked_for_often_is_told_once(tmp_path):
    said: list[str] = []

    class Listener(Silent):
        def message(self, text: str) -> None:
            said.append(text)

    for _ in range(2):  # as if by two processes
        opened = open_workspace(tmp_path / "out", {}, Listener())
        assert [opened.stage("one", "measuring", lambda: 1) for _ in range(3)] == [1, 1, 1]
    assert said == ["measuring …", "measuring: done before"]
