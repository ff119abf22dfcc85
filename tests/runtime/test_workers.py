"""Several workers: batches run at the same time, and answers are those of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compressor.commands import invoke
from compressor.errors import UsageError
from compressor.runtime import Classifier, Translator
from tests.helpers import runtime_artifacts, toy
from tests.helpers.errors import raises
from tests.runtime.test_in_place import in_place, pieces  # noqa: F401

TEXTS = [*toy.sentences(40, seed=3), "", *toy.sentences(9, seed=4)]


@pytest.fixture(scope="module")
def classifier() -> Path:
    return runtime_artifacts.classifier("bert").directory


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_classifier_answers_as_with_one(engine: str, classifier: Path) -> None:
    one, several = (Classifier(classifier, engine=engine, workers=count) for count in (1, 3))
    texts = [text for text in TEXTS if text]
    np.testing.assert_array_equal(
        several.logits(texts, batch_size=4), one.logits(texts, batch_size=4)
    )
    streamed = several.classify_stream(TEXTS, chunk_rows=20, batch_size=4)
    assert list(streamed) == list(one.classify_stream(TEXTS, chunk_rows=20, batch_size=4))


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
def test_a_translator_answers_as_with_one(in_place: Path, beams: int) -> None:  # noqa: F811
    """With caches that are written in place, each batch's its own."""
    one, several = (Translator(in_place, workers=count) for count in (1, 3))
    options = {"num_beams": beams, "batch_size": 4}
    assert several.translate(TEXTS, **options) == one.translate(TEXTS, **options)


def test_the_command_takes_workers(classifier: Path, tmp_path: Path, capsys) -> None:
    source = tmp_path / "texts.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    answers = []
    for workers in ("1", "2"):
        assert invoke(["classify", str(classifier), str(source), "--workers", workers]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert answers[0].count("\n") == len(TEXTS)
    with raises(UsageError, "number-below-one"):
        Classifier(classifier, workers=0)
