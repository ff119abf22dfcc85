"""Exports that are refused: what the command was asked for, and what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from compressor.errors import CompressError, EnvironmentProblem, InputError, UsageError
from compressor.pipeline.run import run
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.recipes import recipe

PATHS = ("labels.tsv", "pairs.tsv", "text", "empty", "binary", "none")  # the last does not exist


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models by architecture, and files of rows and texts."""
    root = tmp_path_factory.mktemp("refusals")
    for name in ("bert", "marian", "bart"):
        toy.checkpoint(root / name, name)
    splits = toy.classifier(root / "splits")
    path = splits / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"split_special_tokens": True}
    path.write_text(json.dumps(settings), encoding="utf-8")
    toy.marian_with_two_vocabularies(root / "two")
    toy.labels_file(root / "labels.tsv")
    toy.pairs_file(root / "pairs.tsv")
    (root / "text").write_text("w3 w4\n", encoding="utf-8")
    (root / "empty").write_text(" \n", encoding="utf-8")
    (root / "binary").write_bytes(b"\xff\xfe\n")
    return root


@pytest.mark.parametrize(
    ("model", "options", "error", "id", "part"),
    [
        ("bert", "--precision fp32,fp8", UsageError, "precision-unknown", "'fp8'"),
        ("bert", "--precision fp32,fp32", UsageError, "precision-given-twice", "names one twice"),
        ("bert", "--precision auto,int8", UsageError, "precision-auto-with-others", "alone"),
        ("bert", "--precision int8", UsageError, "precision-without-fp32", "lacks fp32"),
        ("bert", "--calibration labels.tsv", UsageError, "option-without-use", "for int8"),
        ("bert", "--layout optimum --calibration labels.tsv", UsageError, "option-without-use", ""),
        ("bert", "--layout optimum --precision fp32,int8", UsageError,
         "options-exclude-each-other", "fp32 alone"),
        ("bert", "--layout optimum --precision auto", UsageError,
         "options-exclude-each-other", "fp32 alone"),
        ("bert", "--layout optimum --source-text text", UsageError,
         "options-exclude-each-other", "--source-text"),
        ("bert", "--layout ctranslate2", InputError, "layout-not-for-task", "encoder-decoders"),
        ("marian", "--layout ctranslate2 --precision fp32,int8", UsageError,
         "options-exclude-each-other", "stores one precision"),
        ("marian", "--layout ctranslate2 --target-text text", UsageError,
         "options-exclude-each-other", "--target-text"),
        ("marian", "--layout ctranslate2 --calibration pairs.tsv", UsageError,
         "option-without-use", "does nothing"),
        ("two", "", InputError, "tokenizer-vocabularies-separate", "separate_vocabs"),
        ("splits", "", InputError, "tokenizer-splits-special-tokens", "split_special_tokens"),
        ("bert", "--source-text text", InputError, "tokenizer-cannot-be-cut", "WordLevel"),
        ("bert", "--source-text empty", InputError, "source-text-empty", "empty"),
        ("bert", "--source-text none", InputError, "file-missing", "none"),
        ("marian", "--source-text text", UsageError, "option-without-use", "--source-text"),
        ("bert", "--target-text text", UsageError, "option-without-use", "--target-text"),
        ("bart", "--target-text empty", InputError, "target-text-empty", "empty"),
        ("bart", "--target-text binary", InputError, "file-not-utf8", "binary"),
        ("bart", "--target-text none", InputError, "file-missing", "none"),
    ],
)  # fmt: skip
def test_exports_that_are_refused(
    files: Path, tmp_path: Path, model: str, options: str, error: type[CompressError], id: str,
    part: str,
):  # fmt: skip
    words = [files / x if x in PATHS else x for x in options.split()]
    with raises(error, id) as caught:
        invoke("export", "-m", files / model, "-o", tmp_path / "out", *words)
    assert part in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "rows", "options", "error", "id"),
    [
        ("bert", "labels.tsv", {"source_text": "text", "speedup": 1.2}, UsageError,
         "options-exclude-each-other"),
        ("bert", "labels.tsv", {"target_text": "text", "speedup": 1.2}, UsageError,
         "options-exclude-each-other"),
        ("bert", "labels.tsv", {"target_text": "text", "keep": ["0.5"]}, UsageError,
         "option-without-use"),
        ("bart", "pairs.tsv", {"target_text": "empty", "keep": ["0.5"]}, InputError,
         "target-text-empty"),
    ],
)  # fmt: skip
def test_runs_that_are_refused(
    files: Path, tmp_path: Path, model: str, rows: str, options: dict, error: type[CompressError],
    id: str,
):  # fmt: skip
    texts = {name: str(files / x) for name, x in options.items() if name.endswith("_text")}
    base = {"model": str(files / model), "calibration": str(files / rows)}
    with raises(error, id):
        run(recipe(**base, **(options | texts)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ctranslate2_is_named_if_it_is_not_installed(files: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with raises(EnvironmentProblem, "ctranslate2-not-installed") as caught:
        invoke("export", "-m", files / "marian", "-o", tmp_path / "out", "--layout", "ctranslate2")
    assert "pip install 'ctranslate2" in str(caught.value)
