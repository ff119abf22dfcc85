"""The page of what a GPU measured, from made-up files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu


def row(variant: str, batch: int, rate: float, tokens: float = 128.0, target: float = 0.0) -> dict:
    return {
        "reference": "transformers, eager", "variant": variant, "batch_size": batch,
        "source_tokens": tokens, "target_tokens": target, "sentences_per_second": rate,
        "latency_ms": {"p50": 1000 * batch / rate},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    timings = [
        row("transformers, eager", 1, 100.0), row("compress, dense, fp16", 1, 300.0),
        row("compress, pruned, fp16", 1, 330.0), row("transformers, eager", 256, 20_000.0),
        row("compress, dense, fp16", 256, 10_000.0), row("compress, pruned, fp16", 256, 15_000.0),
    ]  # fmt: skip
    result = {
        "name": "tiny", "title": "a tiny encoder", "target_length": None, "macs_share": 0.5,
        "budget": {"macs": "0.5"}, "peers": [], "timings": timings,
        "hardware": {"gpu": "The Card", "gpu driver": "1.2"}, "versions": {"torch": "2.11.0"},
    }  # fmt: skip
    (tmp_path / "speed-tiny-cuda.json").write_text(json.dumps(result), encoding="utf-8")
    (tmp_path / "stages.tsv").write_text("speed\t12\tok\n", encoding="utf-8")
    (tmp_path / "log.txt").write_text("not a result", encoding="utf-8")
    return tmp_path


def test_pruned_builds_are_compared_with_the_fastest_dense_one_of_any_program(folder: Path):
    text = gpu.page(folder)
    assert "one The Card (driver 1.2), with torch 2.11.0" in text
    assert "| compress, dense, fp16 (300) | compress, pruned, fp16 (330) | 1.10 |" in text
    # 20,000 rows a second of transformers, not the 10,000 of the same program.
    assert "| transformers, eager (20,000) | compress, pruned, fp16 (15,000) | 0.75 |" in text
    assert "| compress, dense, fp16 | 300 (1.00) | 10,000 (0.50) |" in text
    assert "| compress, pruned, fp16 | 3.03 | 17.07 |" in text  # milliseconds of a batch
    assert "| speed | 12 | ok |" in gpu.table(folder)


def test_the_page_is_that_of_the_published_files():
    written = gpu.PAGE.read_text(encoding="utf-8")
    assert written == gpu.page(gpu.PUBLISHED), "run python -m benchmarks.gpu publish FOLDER"
