"""Engines through a whole run: what is built, compared, timed, told, and recorded for `auto`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from compressor.budgets.cost_table import trial_mask
from compressor.errors import EnvironmentProblem, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.pipeline.evaluate import fastest_engines
from compressor.pipeline.run import run
from compressor.pipeline.time_masks import export_trial
from compressor.report.facts import keeps_quality
from compressor.report.rules import check, parse_rules
from compressor.report.schema import Report, load_report
from compressor.request.recipe import Recipe
from compressor.runtime import Translator
from compressor.runtime.engines.ctranslate2 import CTranslate2
from compressor.runtime.engines.openvino import OpenVino
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runs import Progress, check_manifest, recipe_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def translation(once, tmp_path_factory) -> tuple[Recipe, Path]:
    def make(folder: Path) -> None:
        toy.first_layers(toy.translator(folder / "whole"), folder / "marian")
        run(asked(folder), folder / "out")

    def asked(folder: Path) -> Recipe:
        options = {"method": "magnitude", "recover": "none"}
        engines = ["onnxruntime,ctranslate2"]
        return recipe_for(folder / "marian", folder, engines=engines, **options)

    made = once("engines-run", make)
    out = tmp_path_factory.mktemp("engines") / "out"
    return asked(made), shutil.copytree(made / "out", out)


def engines_of(report: Report) -> list[tuple[str, str, str]]:
    return [(v.name, v.engine, v.precision) for v in report.variants]


def test_every_model_is_measured_in_every_engine(translation):
    asked, out = translation
    report = load_report(out / "report.json")
    assert engines_of(report) == [
        ("dense-ctranslate2", "ctranslate2", "fp32"),
        ("dense-ctranslate2-int8", "ctranslate2", "int8"),
        ("keep-0.5", "onnxruntime", "fp32"),
        ("keep-0.5-ctranslate2", "ctranslate2", "fp32"),
        ("keep-0.5-ctranslate2-int8", "ctranslate2", "int8"),
    ]
    _, _, half, same, rounded = report.variants
    assert [v.default for v in (half, same, rounded)] == [True, False, False]
    assert same.quality == half.quality
    assert {c.difference for c in same.base_comparisons} == {0}
    assert "CTranslate2 generates as PyTorch" in {check.name for check in half.checks}
    check_manifest(out)
    for directory in (out, out / ".compress" / "dense"):
        assert Translator(directory, engine="ctranslate2").engine == "ctranslate2"
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "| keep-0.5-ctranslate2-int8 | 4 | ctranslate2 | int8 |" in text
    assert "The fastest build of keep-0.5, over the fastest dense build of any engine: " in text
    progress = Progress()
    assert run(asked, out, progress=progress) == load_report(out / "report.json")
    assert all("done before" in message for message in progress.messages)


def test_speed_is_measured_in_the_engine_that_pads_heads(translation, tmp_path):
    """CTranslate2 computes as many heads for each attention of a stack as the largest has."""
    checkpoint = open_checkpoint(translation[0].model.path)
    full = Mask.full(checkpoint.layers)
    dense = translation[1] / ".compress" / "dense"

    def model_bytes(*kinds: str) -> int:
        made = tmp_path / "-".join(kinds)
        mask = trial_mask(full, kinds, 2)
        export_trial(checkpoint, mask, dense, made, "ctranslate2")
        assert not (made / "onnx" / "decoder.onnx").exists()
        assert Translator(made, engine="ctranslate2").translate(["a b c"])
        return (made / "ctranslate2" / "model.bin").stat().st_size

    whole = (dense / "ctranslate2" / "model.bin").stat().st_size
    assert model_bytes("cross") == model_bytes("decoder_self") == whole
    assert model_bytes("decoder_self", "cross") < whole


def test_gains_are_told_over_the_same_engine_and_over_the_fastest(translation):
    report = load_report(translation[1] / "report.json")
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


def test_the_gate_holds_the_best_build_against_the_fastest_dense_one(translation):
    report = load_report(translation[1] / "report.json")
    *_, half, same, rounded = report.variants
    kept = {half.name, *(build.name for build in (same, rounded) if keeps_quality(build))}
    for size in {row.batch_size for row in report.throughput.rows}:
        rows = [row for row in report.throughput.rows if row.batch_size == size]
        best = max((r for r in rows if r.variant in kept), key=lambda r: r.fastest_speedup)
        for limit, met in ((best.fastest_speedup_interval[1] + 0.01, False), (0.01, True)):
            text = f"{limit:.6f}@{size}"
            outcomes = check(report, parse_rules({"min_fastest_speedup": [text]}))
            assert [(o.variant, o.met) for o in outcomes] == [(half.name, met)]
            assert outcomes[0].measured == best.fastest_speedup
            assert f"at batch {size} ({best.variant} over {best.fastest})" in outcomes[0].message
    lost = [v if v.name == half.name else v.model_copy(update={"base_comparisons": []})
            for v in report.variants]  # fmt: skip
    alone = report.model_copy(update={"variants": lost})
    outcomes = check(alone, parse_rules({"min_fastest_speedup": ["0.01@4"]}))
    assert f"({half.name} over " in outcomes[0].message


def test_auto_is_the_fastest_engine_in_the_same_precision(translation, tmp_path):
    out = shutil.copytree(translation[1], tmp_path / "out")
    report = load_report(out / "report.json")
    recorded = json.loads((out / "onnx" / "graphs.json").read_text())["fastest_engines"]
    builds = report.variants[2:]
    rates = {
        v.engine: [r.sentences_per_second for r in report.throughput.rows if r.variant == v.name]
        for v in builds[:2]
    }
    product = {engine: a * b for engine, (a, b) in rates.items()}
    assert recorded["fp32"] == max(product, key=product.get)
    for engine in ("onnxruntime", "ctranslate2"):
        data = json.loads((out / "onnx" / "graphs.json").read_text())
        data["fastest_engines"] = {"fp32": engine}
        (out / "onnx" / "graphs.json").write_text(json.dumps(data))
        opened = Translator(out, engine="auto", verify=False)
        assert (opened.engine, opened.precision) == (engine, "fp32")
    # What loses quality is not chosen, whatever its speed.
    worse = [
        v.model_copy(update={"base_comparisons": []}) if v.precision == "int8" else v
        for v in builds
    ]
    assert set(fastest_engines(worse, report.throughput)) == {"fp32"}
    assert fastest_engines(builds[:1], report.throughput) == {}


def test_classifiers_run_in_openvino(tmp_path, monkeypatch):
    dense = toy.first_layers(toy.classifier(tmp_path / "whole"), tmp_path / "bert")
    monkeypatch.setattr(OpenVino, "precisions", lambda directory, artifact: ["fp32"])
    asked = recipe_for(
        dense, tmp_path, engines=["onnxruntime,openvino"], method="magnitude", recover="none"
    )
    report = run(asked, tmp_path / "out")
    assert engines_of(report) == [
        ("dense-openvino", "openvino", "fp32"),
        ("keep-0.5", "onnxruntime", "fp32"),
        ("keep-0.5-openvino", "openvino", "fp32"),
    ]
    details = [check.detail for check in report.variants[1].checks]
    assert any(detail.endswith("OpenVINO CPU") for detail in details)
    assert {row.provider for row in report.throughput.rows} == {
        "CPUExecutionProvider", "OpenVINO CPU",
    }  # fmt: skip
    check_manifest(tmp_path / "out")


def test_engines_that_cannot_be_used_are_told_first(tmp_path, monkeypatch):
    dense = toy.translator(tmp_path / "marian")
    with raises(UsageError, "engine-not-for-task"):
        run(recipe_for(dense, tmp_path, engines=["onnxruntime,openvino"]), tmp_path / "out")

    def missing() -> None:
        raise EnvironmentProblem("the package ctranslate2 is not installed", id="not-there")

    monkeypatch.setattr(CTranslate2, "library", missing)
    with raises(EnvironmentProblem, "not-there"):
        run(recipe_for(dense, tmp_path, engines=["onnxruntime,ctranslate2"]), tmp_path / "out")
    assert not (tmp_path / "out" / ".compress").exists()
