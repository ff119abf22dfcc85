"""Which rows are read for summaries, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compressor.errors import InputError, UsageError
from compressor.tasks import TASKS
from tests.helpers.errors import raises

task = TASKS["summarization"]


def file(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.filterwarnings("error")  # no doubt whether the first line is a header
def test_columns(tmp_path: Path):
    """`source` and `target` wherever they are, else the first two, else those that are named."""
    usual = file(tmp_path / "a.tsv", "id\ttarget\tsource", "1\tshort\tlong")
    first = file(tmp_path / "b.csv", "article,highlights,id", "long,short,1")
    both = json.dumps({"source": "a", "target": "b", "text": "long", "gist": "one\ntwo"})
    named = file(tmp_path / "c.jsonl", both)
    found = [
        task.read_rows(usual),
        task.read_rows(first),
        task.read_rows(named, source_column="text", target_column="gist"),
    ]
    assert [(rows.sources, rows.targets) for rows in found] == [
        (["long"], ["short"]), (["long"], ["short"]), (["long"], ["one\ntwo"]),
    ]  # fmt: skip
    assert found[0].task == "summarization"
    assert TASKS["translation"].read_rows(usual).sources == ["long"]


@pytest.mark.parametrize(
    ("lines", "id"),
    [
        (["source\ttarget", "long\tshort", "long\t "], "cell-empty"),
        (["source", "long"], "too-few-columns"),
        (["source\ttarget", "long\tshort\tmore"], "cell-count-differs"),
    ],
)
def test_bad_rows(lines: list[str], id: str, tmp_path: Path):
    with raises(InputError, id) as caught:
        task.read_rows(file(tmp_path / "rows.tsv", *lines))
    assert caught.value.exit_code == 4


def test_one_named_column_is_not_enough(tmp_path: Path):
    with raises(UsageError, "column-of-a-pair-missing"):
        task.read_rows(file(tmp_path / "rows.tsv", "a\tb", "1\t2"), source_column="a")
