"""Answers of an artifact to many rows, by a stand-in for a task that answers with what it got."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compressor import parallel
from compressor.evaluation import answers as answers_module
from compressor.tasks import Rows


class StandIn:
    """Answers `TEXT/PAIR`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.opened: list[tuple[Path, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []

    def open(self, directory: Path, **options: Any) -> str:
        self.opened.append((directory, options))
        return "runtime"

    def answer_settings(self, rows: Rows) -> dict[str, Any]:
        return {"null_answers": True}

    def answer(self, runtime: str, texts: list[str], pairs: list[str] | None, **more: Any) -> Any:
        assert runtime == "runtime"
        self.asked.append({"rows": len(texts), **more})
        return [f"{x}/{y}" for x, y in zip(texts, pairs or [""] * len(texts), strict=True)]


class Shown:
    def __init__(self) -> None:
        self.updates: list[tuple[str, int, int]] = []

    def update(self, what: str, done: int, total: int) -> None:
        self.updates.append((what, done, total))


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(answers_module, "_CHUNK_ROWS", 2)
    monkeypatch.setattr(answers_module, "TASKS", {"made-up": (made := StandIn())})
    return made


def rows(pairs: list[str] | None) -> Rows:
    return Rows("made-up", list("abcde"), pairs, ["x"] * 5, [], "")


@pytest.mark.parametrize("pairs", [None, list("vwxyz")])
def test_answers_keep_the_order_of_the_rows(task: StandIn, pairs: list[str] | None) -> None:
    progress = Shown()
    found = answers_module.answers(Path("out"), rows(pairs), "cpu", 3, progress)
    assert found == [f"{x}/{y}" for x, y in zip("abcde", pairs or [""] * 5, strict=True)]
    assert progress.updates == [("rows", 2, 5), ("rows", 4, 5), ("rows", 5, 5)]
    options = {"num_beams": 3, "null_answers": True}
    assert task.asked == [{"rows": count, **options} for count in (2, 2, 1)]


def test_the_artifact_is_opened_as_asked_for(task: StandIn, monkeypatch) -> None:
    """In a rank with its threads; alone with as many as the runtime takes by itself."""
    for threads in (None, 4):
        monkeypatch.setattr(parallel, "threads", lambda threads=threads: threads)
        answers_module.answers(Path("out"), rows(None), "cuda", None, Shown(), "int8", "openvino")
        options = {"device": "cuda", "precision": "int8", "engine": "openvino", "threads": threads}
        assert task.opened.pop() == (Path("out"), options)
