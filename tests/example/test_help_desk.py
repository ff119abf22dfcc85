"""The bundled intent classifier: its rows are those of the generator, and its accuracy is told."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from compressor.request import example

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "help_desk"
PATTERNS = (FOLDER / "patterns.txt").read_text(encoding="utf-8")


def rows(path: Path) -> list[tuple[str, str]]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    assert header == "text\tlabel"
    return [(text, label) for text, label in (line.split("\t") for line in lines)]


def test_bundled_rows_are_what_the_generator_makes(tmp_path: Path):
    command = [sys.executable, FOLDER / "generate.py", "--output", tmp_path]
    subprocess.run(command, check=True)
    _, calibration, test = example.help_desk()
    assert (tmp_path / "calibration.tsv").read_bytes() == calibration.read_bytes()
    assert (tmp_path / "test.tsv").read_bytes() == test.read_bytes()
    parts = {name: rows(tmp_path / f"{name}.tsv") for name in ("train", "calibration", "test")}
    assert len(parts["train"]) == 12_000
    texts = [text for part in parts.values() for text, _ in part]
    assert len(texts) == len(set(texts))  # nothing that was trained on is measured or scored on


def test_there_are_many_intents_with_test_sentences_of_their_own():
    intents: dict[str, tuple[list[str], list[str]]] = {}
    for block in PATTERNS.split("\n[")[1:]:
        name, _, body = block.partition("]\n")
        train, test = body.split("---\n")
        intents[name] = train.strip().split("\n"), test.strip().split("\n")
    assert len(intents) >= 20
    known = {sentence for train, _ in intents.values() for sentence in train}
    for train, test in intents.values():
        assert len(train) >= 20
        assert len(test) >= 6
        assert not known & set(test)
    labels = Counter(label for _, label in rows(example.help_desk()[2]))
    assert set(labels) == set(intents)
    assert min(labels.values()) > 40


def test_the_model_is_small_and_complete():
    model, *_ = example.help_desk()
    assert (model / "model.safetensors").stat().st_size < 8_000_000
    names = {"README.md", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert names < {path.name for path in model.iterdir()}


@pytest.mark.slow
def test_accuracy_is_what_the_page_says():
    from transformers import pipeline

    model, _, test = example.help_desk()
    found = rows(test)
    dense = pipeline("text-classification", model=str(model))
    answers = dense([text for text, _ in found], batch_size=64)
    right = sum(answer["label"] == label for answer, (_, label) in zip(answers, found, strict=True))
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"{100 * right / len(found):.1f} % of `test.tsv`" in page
