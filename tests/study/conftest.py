"""Toy checkpoints and trees that tests of several files study."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import toy
from tests.helpers.conllu import conllu
from tests.helpers.studies import Toy, short_answers


def small_translator(directory: Path) -> Path:
    """One layer on each side."""
    return toy.first_layers(toy.translator(directory.with_name("whole")), directory)


BUILDERS: dict[str, tuple[Callable, Callable]] = {
    "translation": (small_translator, toy.pairs_file),
    "classification": (toy.classifier, toy.labels_file),
}


@pytest.fixture(scope="module")
def toys(once) -> dict[str, Toy]:
    """A toy for each task; tests only read them."""

    def make(root: Path) -> None:
        for task, (build, rows) in BUILDERS.items():
            short_answers(build(root / task))
            rows(root / f"{task}-calibration.tsv", rows=16)
            rows(root / f"{task}-test.tsv", rows=12, seed=1)

    root = once("study-toys", make)
    return {
        task: Toy(root / task, root / f"{task}-calibration.tsv", root / f"{task}-test.tsv", task)
        for task in BUILDERS
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
