"""The benchmarks' tables, from made-up cells; and one real cell on a toy model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import one_pair
from benchmarks.quality.cells import Cell, Experiment, fill, read
from benchmarks.quality.draw import table
from compressor.options.sections import Data
from compressor.progress import SILENT
from tests.helpers import toy


def row(method: str, recover: str, kept: int, quality: float, high: float, **more) -> dict:
    return {
        "method": method, "seed": 0, "recover": recover, "kept": kept, "steps": 1, "heads": 1,
        "quality": quality, "dense": 40.0, "interval": [-9.0, high], **more,
    }  # fmt: skip


ROWS = [
    row("taylor", "none", 60, 30.0, -5.0),  # its interval ends at 35, the best value
    row("fisher", "none", 60, 29.0, -6.0),  # ends at 34, below it
    row("second-order", "reconstruct", 60, 35.0, -4.0),
    row("random", "none", 60, 10.0, -25.0),
    row("random", "none", 60, 16.0, -20.0, seed=1),
    row("second-order", "reconstruct", 40, 31.0, -6.0, steps=4),
]


def test_the_table_marks_cells_whose_interval_reaches_the_best():
    lines = table(ROWS, "translator").splitlines()
    cells = {
        tuple(part.strip() for part in line.split("|")[1:3]): line.split("|")[6].strip()
        for line in lines
        if line.startswith("| ")
    }
    assert cells["none", "taylor"] == "**30.00**"
    assert cells["none", "fisher"] == "29.00"
    assert cells["reconstruct", "second-order"] == "**35.00**"
    assert cells["none", "random"] == "13.00 ± 3.00"
    assert cells["reconstruct", "second-order, 4 steps"] == "–"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    data = Data(
        calibration=str(toy.labels_file(tmp_path / "calibration.tsv")),
        test=str(toy.labels_file(tmp_path / "test.tsv", seed=1)),
    )
    model = str(toy.classifier(tmp_path / "model"))
    return Experiment(model, data, SILENT, tmp_path, gate_epochs=2, distill_epochs=1)


def test_cells_are_computed_once(experiment: Experiment, tmp_path: Path):

    def wanted(cell: Cell) -> bool:
        wanted = cell.method == "subset" and cell.seed == 0 and cell.of == "heads"
        return wanted and cell.kept == 50 and cell.steps == 1

    path = tmp_path / "cells.jsonl"
    rows = fill(experiment, path, wanted, SILENT)
    assert [found["recover"] for found in rows] == [
        "none", "reconstruct", "distill", "reconstruct+distill",
    ]  # fmt: skip
    assert {found["heads"] for found in rows} == {6}
    assert read(path) == [{**found, "interval": list(found["interval"])} for found in rows]
    again = fill(experiment, path, wanted, SILENT)
    assert len(again) == len(path.read_text(encoding="utf-8").splitlines()) == 4


def test_sizes_of_one_pair_are_shown_with_what_is_left():
    found = {
        "tokens": 20_000, "width": 256, "layers": 4, "kept": [20_000, 4_000],
        "checkpoint_bytes": [50_000_000, 30_000_000], "int8_bytes": [16_000_000, 7_000_000],
        "lines": 64, "same": {"transformers": [64, 63], "graphs, fp32": [64, 62]},
    }  # fmt: skip
    row = one_pair.table([found]).splitlines()[-1]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == [
        "20,000, 256, 4 + 4", "20,000 → 4,000 (20%)", "50 → 30 (60%)", "16 → 7 (44%)", "64",
        "64 and 63", "64 and 62",
    ]  # fmt: skip


def test_tokens_of_made_up_languages_fill_the_vocabulary():
    """Each is merged from two that are there, and texts of the pair are spelled without them."""
    made = one_pair.byte_pairs(["ab ab abc"] * 4, 1_000)
    tokens, merges = made["vocab"], made["merges"]
    assert sorted(tokens.values()) == [*range(len(tokens))]
    assert len(tokens) >= 1_000
    assert all({a, b, a + b} <= tokens.keys() for a, b in merges)
