"""Rows that models of benchmarks are trained on, and those that are held out."""

from __future__ import annotations

from pathlib import Path

from benchmarks.finetune import split_labels


def test_data_without_rows_to_validate_on_gives_a_tenth_of_its_own(tmp_path: Path):
    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    work.mkdir()
    rows = [f"text {number}\tlabel" for number in range(95)]
    (data / "train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    parts = [x.read_text(encoding="utf-8").splitlines() for x in split_labels(data, work)]
    assert all(lines[0] == "text\tlabel" for lines in parts)
    learn, held = (lines[1:] for lines in parts)
    assert len(held) == 10
    assert sorted([*learn, *held]) == sorted(rows)


def test_data_with_rows_to_validate_on_is_taken_as_it_is(tmp_path: Path):
    for name in ("train.tsv", "valid.tsv"):
        (tmp_path / name).write_text("text\tlabel\n", encoding="utf-8")
    assert split_labels(tmp_path, tmp_path) == (tmp_path / "train.tsv", tmp_path / "valid.tsv")
