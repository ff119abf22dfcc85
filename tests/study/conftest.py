"""Toy checkpoints and trees that tests of several files study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import toy
from tests.helpers.conllu import conllu
from tests.helpers.studies import Toy


@pytest.fixture(scope="module")
def toys(once) -> dict[str, Toy]:
    """A toy for each task; tests only read them."""

    def make(root: Path) -> None:
        toy.classifier(root / "classification")
        toy.first_layers(toy.translator(root / "two-layers"), root / "translation")
        # Translations of at most 7 tokens, so that tests are quick.
        path = root / "translation" / "generation_config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) | {"max_length": 8}
        path.write_text(json.dumps(settings), encoding="utf-8")
        for task, rows in (("classification", toy.labels_file), ("translation", toy.pairs_file)):
            rows(root / f"{task}-calibration.tsv", rows=16)
            rows(root / f"{task}-test.tsv", rows=12, seed=1)

    root = once("study-toys", make)
    return {
        task: Toy(root / task, root / f"{task}-calibration.tsv", root / f"{task}-test.tsv", task)
        for task in ("classification", "translation")
    }


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> Path:
    """Sentences of the words that the toys know; each word hangs on the one before it."""
    path = tmp_path_factory.mktemp("trees") / "trees.conllu"
    sentences = []
    for number in range(40):
        words = [f"w{3 + (number * 5 + 7 * place) % 57}" for place in range(3 + number % 4)]
        sentences.append(
            conllu(*(
                f"{place} {word} {place - 1} {'root' if place == 1 else 'obj'}"
                for place, word in enumerate(words, 1)
            ))
        )  # fmt: skip
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path
