"""A run of a translator through the shell: layers and units go, and two engines are measured."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.run import run
from compressor.report.build_view import build_view
from compressor.report.defaults import fastest_engines
from compressor.report.facts import keeps_quality
from compressor.report.rules import check, parse_rules
from compressor.report.schema import load_report
from compressor.runtime import Translator
from tests.helpers.runs import Progress, check_manifest, recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def out(translated, tmp_path_factory) -> Path:
    return shutil.copytree(translated / "out", tmp_path_factory.mktemp("translated") / "out")


@pytest.fixture(scope="module")
def report(out):
    return load_report(out / "report.json")


def test_every_model_is_measured_in_every_engine(report, out):
    assert [(v.name, v.engine, v.precision) for v in report.variants] == [
        ("dense-ctranslate2", "ctranslate2", "fp32"),
        ("dense-ctranslate2-int8", "ctranslate2", "int8"),
        ("macs-0.5", "onnxruntime", "fp32"),
        ("macs-0.5-ctranslate2", "ctranslate2", "fp32"),
        ("macs-0.5-ctranslate2-int8", "ctranslate2", "int8"),
    ]
    _, _, half, same, rounded = report.variants
    assert [v.default for v in (half, same, rounded)] == [True, False, False]
    assert same.quality == half.quality
    assert {c.difference for c in same.base_comparisons} == {0}
    assert {check.name for check in half.checks} >= {
        "pruned equals masked", "reloaded equals saved", "ONNX equals PyTorch",
        "ONNX generates as PyTorch", "CTranslate2 generates as PyTorch",
    }  # fmt: skip
    assert {c.metric for c in half.comparisons} == {"bleu", "chrf"}
    check_manifest(out)
    for directory in (out, out / ".compress" / "dense"):
        assert Translator(directory, engine="ctranslate2").engine == "ctranslate2"
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "| macs-0.5-ctranslate2-int8 | 4 | ctranslate2 | int8 |" in text
    assert "The fastest build of macs-0.5, over the fastest dense build of any engine: " in text
    assert "; over the fastest dense build " in build_view(report).conclusion
    progress = Progress()
    assert run(recipe(out / "recipe.yaml"), out, progress=progress).variants == report.variants
    assert [message for message in progress.messages if message.endswith("…")] == []


def test_the_report_tells_how_many_translations_have_another_length(report, out, translated):
    """Of what is served, counted here; no row has more than 20 words."""
    lines = (translated / "rows.tsv").read_text(encoding="utf-8").splitlines()[1:]
    sources = [line.partition("\t")[0] for line in lines]
    answers = [Translator(x).translate(sources) for x in (out / ".compress" / "dense", out)]
    counts = [[len(re.findall(r"\w+", text)) for text in texts] for texts in answers]
    other = [10 * abs(a - b) > 3 * a for a, b in zip(*counts, strict=True)]
    half = report.variants[2].quality
    assert half.other_lengths == pytest.approx(sum(other) / len(sources))
    assert report.dense.quality.other_lengths is None
    assert (half.long_sources.rows, half.long_sources.score) == (0, None)


def test_layers_and_units_are_gone(report, out, checkpoints):
    """From the files, the report and the graphs; what is served equals what PyTorch generates."""
    record, config, dense, graphs = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (
            out / "units.json", out / "config.json", checkpoints["marian"] / "config.json",
            out / "onnx" / "graphs.json",
        )
    )  # fmt: skip
    half = report.variants[2]
    dropped = record["dropped_layers"]
    assert half.dropped_layers == sorted(dropped, key=lambda x: not x.startswith("encoder"))
    assert [layer.partition(".")[0] for layer in half.dropped_layers] == ["encoder", "decoder"]
    for stack in ("encoder", "decoder"):
        assert config[f"{stack}_layers"] == dense[f"{stack}_layers"] - 1
    assert len(graphs["decoder_self_heads"]) == config["decoder_layers"]
    assert any(record["kept"].values())  # others still have units
    assert half.macs_share <= 0.5
    weights = checkpoints["marian"] / "model.safetensors"
    assert report.dense.checkpoint_bytes == weights.stat().st_size  # without the copy beside it
    stored = load_file(out / "model.safetensors")
    assert half.parameters == sum(x.numel() for n, x in stored.items() if "logits_bias" not in n)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"skips {' and '.join(half.dropped_layers)}" in page

    loaded = open_checkpoint(str(out))
    texts = ["w5 und w7.", "w9 w9 w3"]
    batch = loaded.tokenizer(texts, return_tensors="pt", padding=True)
    ids = loaded.model.generate(**batch, num_beams=1)
    expected = loaded.tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert Translator(out).translate(texts, num_beams=1) == expected


def test_gains_are_over_the_same_engine_and_over_the_fastest(report):
    rows = {(row.variant, row.batch_size): row for row in report.throughput.rows}
    dense = [name for name, _ in rows if name.startswith("dense")]
    assert set(dense) == {"dense", "dense-ctranslate2", "dense-ctranslate2-int8"}
    for (name, size), row in rows.items():
        rates = {other: rows[other, size].sentences_per_second for other in dense}
        assert row.fastest == max(rates, key=rates.get)
        same = "dense-ctranslate2" if "ctranslate2" in name else "dense"
        assert row.engine == ("ctranslate2" if "ctranslate2" in name else "onnxruntime")
        assert (row.engine_speedup == 1) == (name == same)
        assert (row.fastest_speedup == 1) == (name == row.fastest)
        assert same != "dense" or name == "dense" or row.engine_speedup == row.speedup


def test_the_gate_holds_the_best_build_against_the_fastest_dense_one(report):
    """Of the builds that keep the quality."""
    *_, half, same, rounded = report.variants
    kept = {half.name, *(build.name for build in (same, rounded) if keeps_quality(build))}
    rows = [row for row in report.throughput.rows if row.batch_size == 4]
    best = max((r for r in rows if r.variant in kept), key=lambda r: r.fastest_speedup)
    for limit, met in ((best.fastest_speedup_interval[1] + 0.01, False), (0.01, True)):
        rules = parse_rules({"min_fastest_speedup": [f"{limit:.6f}@4"]})
        (outcome,) = check(report, rules)
        assert (outcome.variant, outcome.met) == (half.name, met)
        assert outcome.measured == best.fastest_speedup


def test_auto_is_the_fastest_engine_in_the_same_precision(report, out, tmp_path):
    copy = shutil.copytree(out, tmp_path / "out")
    graphs = copy / "onnx" / "graphs.json"
    data = json.loads(graphs.read_text())
    builds = report.variants[2:]
    product = dict.fromkeys(("onnxruntime", "ctranslate2"), 1.0)
    names = [build.name for build in builds[:2]]
    for row in report.throughput.rows:
        product[row.engine] *= row.sentences_per_second if row.variant in names else 1
    assert data["fastest_engines"]["fp32"] == max(product, key=product.get)
    for engine in ("onnxruntime", "ctranslate2"):
        graphs.write_text(json.dumps(data | {"fastest_engines": {"fp32": engine}}))
        opened = Translator(copy, engine="auto", verify=False)
        assert (opened.engine, opened.precision) == (engine, "fp32")
    # What loses quality is not chosen, whatever its speed.
    worse = [v.model_copy(update={"base_comparisons": []}) if v.precision == "int8" else v
             for v in builds]  # fmt: skip
    assert set(fastest_engines(worse, report.throughput)) == {"fp32"}
    assert fastest_engines(builds[:1], report.throughput) == {}
