"""Rows of both tasks, and files of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.tasks import Task
from tests.helpers.errors import raises

PAIRS = [("Hello there.", "Hallo du."), ('He said "no".', "Er sagte „nein“."), ("Go!", "Geh!")]
LABELS = ["balance", "card_lost", "weather"]


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def tsv(rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ("en", "de")) -> str:
    return "".join("\t".join(row) + "\n" for row in [header, *rows])


def require_refused(task: Task, path: Path, case: tuple[Any, ...], labels: Any = None) -> None:
    """Check that a file in a directory is an error that names it and the place in it."""
    name, content, error, place = case
    file = write(path / name, content)
    with raises(InputError, error) as caught:
        task.read_rows(file, labels=labels)
    assert f"{file}{place}" in str(caught.value)
