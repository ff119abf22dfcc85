"""Exports that are refused: what the command was asked for, and what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from compressor.errors import CompressError, EnvironmentProblem, InputError, UsageError
from compressor.pipeline.run import run
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.damaged_checkpoints import configure
from tests.helpers.errors import raises
from tests.helpers.runs import recipe
from tests.helpers.sentence_encoders import save_encoder

PATHS = ("labels.tsv", "text", "empty")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models by architecture, and files of rows and texts."""
    root = tmp_path_factory.mktemp("refusals")
    for name in ("bert", "marian", "bart"):
        toy.checkpoint(root / name, name)
    toy.classifier(root / "splits")
    toy.first_layers(root / "marian", root / "splits-marian")
    save_encoder(root / "splits-encoder")
    for name in ("splits", "splits-marian", "splits-encoder"):
        configure("tokenizer_config.json", split_special_tokens=True)(root / name)
    toy.marian_with_two_vocabularies(root / "two")
    toy.labels_file(root / "labels.tsv")
    (root / "text").write_text("w3 w4\n", encoding="utf-8")
    (root / "empty").write_text(" \n", encoding="utf-8")
    return root


EXCLUDED, UNUSED = "options-exclude-each-other", "option-without-use"
USAGE = [
    ("bert", "--precision fp32,fp8", "precision-unknown"),
    ("bert", "--precision auto,int8", "precision-unknown"),
    ("bert", "--precision int8", "precision-without-fp32"),
    ("bert", "--layout optimum --calibration labels.tsv", UNUSED),
    ("bert", "--layout optimum --precision fp32,int8", EXCLUDED),
    ("bert", "--layout optimum --source-text text", EXCLUDED),
    ("bert", "--target-text text", UNUSED),
    ("marian", "--source-text text", "target-text-missing"),
    ("marian", "--target-text text --keep-languages fr", UNUSED),
    ("bert", "--source-text text --keep-languages fr", UNUSED),
    ("marian", "--layout ctranslate2 --target-text text", EXCLUDED),
    ("marian", "--layout ctranslate2 --precision fp32,int8", EXCLUDED),
    ("marian", "--layout ctranslate2 --engines onnxruntime,ctranslate2", EXCLUDED),
    ("marian", "--engines ctranslate2", "engines-without-onnxruntime"),
    ("marian", "--engines onnxruntime,openvino", "engine-not-for-task"),
    ("marian", "--engines onnxruntime,ctranslate", "engine-unknown"),
]
INPUT = [
    ("bert", "--layout ctranslate2", "layout-not-for-task"),
    ("marian", "--layout optimum", "layout-not-for-task"),
    ("two", "", "tokenizer-class-unsupported"),
    ("splits", "", "tokenizer-class-unsupported"),
    ("bert", "--source-text text", "tokenizer-cannot-be-cut"),
    ("bart", "--target-text empty", "target-text-empty"),
]


@pytest.mark.parametrize(
    ("error", "model", "options", "id"),
    [*((UsageError, *case) for case in USAGE), *((InputError, *case) for case in INPUT)],
)
def test_exports_that_are_refused(
    files: Path, tmp_path: Path, error: type[CompressError], model: str, options: str, id: str
):
    words = [files / x if x in PATHS else x for x in options.split()]
    with raises(error, id):
        invoke("export", "-m", files / model, "-o", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "options", "id"),
    [("source_text", {"speedup": 1.2}, EXCLUDED), ("target_text", {"keep": ["0.5"]}, UNUSED)],
)
def test_runs_that_are_refused(files: Path, tmp_path: Path, text: str, options: dict, id: str):
    base = {"model": str(files / "bert"), "calibration": str(files / "labels.tsv")}
    with raises(UsageError, id):
        run(recipe(**base, **{text: str(files / "text")}, **options), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layout"),
    [("splits", "optimum"), ("splits-encoder", "optimum"), ("splits-marian", "ctranslate2"),
     ("two", "ctranslate2")],
)  # fmt: skip
def test_a_hint_names_the_layout_that_takes_the_model(
    files: Path, tmp_path: Path, model: str, layout: str
):
    with raises(InputError, "tokenizer-class-unsupported") as caught:
        invoke("export", "-m", files / model, "-o", tmp_path / "out")
    assert re.findall(r"--layout (\w+)", str(caught.value)) == [layout]
    invoke("export", "-m", files / model, "-o", tmp_path / "out", "--layout", layout)


def test_ctranslate2_is_named_if_it_is_not_installed(files: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with raises(EnvironmentProblem, "ctranslate2-not-installed"):
        invoke("export", "-m", files / "marian", "-o", tmp_path / "out", "--layout", "ctranslate2")
