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
        "latency_ms": {"p50": 1000 * batch / rate}, "limit": 1.0, "limit_macs": 2.0,
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


def test_publishing_replaces_the_earlier_files_and_leaves_predictions_out(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    kept = tmp_path_factory.mktemp("kept") / "gpu"
    kept.mkdir()
    (kept / "earlier-report.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(gpu, "PUBLISHED", kept)
    monkeypatch.setattr(gpu, "PAGE", kept.parent / "gpu.md")
    gpu.publish(folder)
    assert sorted(path.name for path in kept.iterdir()) == ["speed-tiny-cuda.json", "stages.tsv"]
    assert "limit" not in (kept / "speed-tiny-cuda.json").read_text(encoding="utf-8")
    assert gpu.PAGE.read_text(encoding="utf-8") == gpu.page(folder)


def test_forms_have_a_line_each_and_a_column_for_each_size():
    found = {
        "dense nodes": [3, {"Add": 3}], "fused mha 6 heads 1x32 bound": 1.218,
        "fused mha 6 heads 256x128 bound": 8.754, "dense b64 source 9: product, ms a token": 1.4,
        "fused mha 6 heads 1x32 cuda graph": "ERR refused",
    }  # fmt: skip
    assert gpu.forms(found).splitlines()[2:] == [
        "| fused mha 6 heads, bound | 1.22 | 8.75 | – |",
        "| dense, product, ms a token | – | – | 1.40 |",
        "| fused mha 6 heads, cuda graph | refused | – | – |",
    ]


def test_the_page_is_that_of_the_published_files():
    written = gpu.PAGE.read_text(encoding="utf-8")
    assert written == gpu.page(gpu.PUBLISHED), "run python -m benchmarks.gpu publish FOLDER"
