"""Exported classifiers answer as PyTorch, for texts and for pairs of texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compressor.errors import CompressWarning
from compressor.evaluation.answers import answers
from compressor.progress import SILENT
from compressor.runtime import Classifier
from compressor.runtime.batching import by_length
from compressor.tasks import Rows
from tests.helpers import runtime_artifacts, toy
from tests.helpers.runtime_artifacts import Exported
from tests.helpers.tiny import LABELS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["bert", "distilbert"])
def exported(request: pytest.FixtureRequest) -> Exported:
    """With token types and without."""
    return runtime_artifacts.classifier(request.param)


@pytest.fixture
def classifier(exported: Exported) -> Classifier:
    return Classifier(exported.directory, threads=1)


@torch.no_grad()
def expected_logits(
    exported: Exported, texts: list[str], pairs: list[str] | None = None
) -> np.ndarray:
    """One row at a time through PyTorch, so that nothing is padded."""
    rows, has_types = [], exported.model.config.model_type == "bert"
    options = {"return_tensors": "pt", "return_token_type_ids": has_types}
    for text, pair in zip(texts, pairs or [None] * len(texts), strict=True):
        inputs = exported.tokenizer(text, pair, **options)
        rows.append(exported.model(**inputs).logits[0].numpy())
    return np.stack(rows)


TEXTS = [*toy.sentences(9), "", "   "]


def test_logits_are_pytorchs_in_the_order_of_the_texts(
    exported: Exported, classifier: Classifier
) -> None:
    want = expected_logits(exported, TEXTS)
    for limit in ({}, {"batch_size": 1}, {"batch_tokens": 20}):
        np.testing.assert_allclose(classifier.logits(TEXTS, **limit), want, atol=1e-4)


def test_labels_are_those_of_the_largest_logits(exported: Exported, classifier: Classifier) -> None:
    labels = exported.model.config.id2label
    assert classifier.labels == [labels[i] for i in range(LABELS)]
    found = classifier.classify(TEXTS)
    assert found == [labels[int(row.argmax())] for row in expected_logits(exported, TEXTS)]
    assert len(set(found)) > 1


def test_probabilities_are_the_softmax(exported: Exported, classifier: Classifier) -> None:
    want = torch.from_numpy(expected_logits(exported, TEXTS)).softmax(-1).numpy()
    np.testing.assert_allclose(classifier.probabilities(TEXTS), want, atol=1e-5)


def test_pairs_are_answered_as_by_pytorch(exported: Exported, classifier: Classifier) -> None:
    pairs = toy.sentences(11, seed=2)
    want = expected_logits(exported, TEXTS, pairs)
    np.testing.assert_allclose(classifier.logits(TEXTS, pairs), want, atol=1e-4)
    assert np.abs(want - expected_logits(exported, TEXTS)).max() > 0.01


@pytest.mark.parametrize("paired", [False, True])
def test_streams_give_what_the_lists_give(classifier: Classifier, paired: bool) -> None:
    texts, pairs = toy.sentences(9, seed=5), toy.sentences(9, seed=6)
    pairs[4] = ""  # one text of two is enough
    want = classifier.probabilities(texts, pairs if paired else None)
    labels = classifier.classify(texts, pairs if paired else None)
    rows = list(zip(texts, pairs, strict=True)) if paired else list(texts)
    rows[3:3] = [("", " ") if paired else "\t"]
    for chunk_rows in (1, 4, 100):
        options = {"chunk_rows": chunk_rows, "batch_tokens": 30}
        got = list(classifier.probabilities_stream(iter(rows), **options))
        assert got.pop(3) is None
        np.testing.assert_allclose(got, want, atol=1e-5)
        got = list(classifier.classify_stream(iter(rows), **options))
        assert got == [*labels[:3], "", *labels[3:]]


def test_an_evaluation_warns_once_of_rows_that_are_cut(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compressor.evaluation.answers._CHUNK_ROWS", 2)
    texts = ["w5 " * 60, "w6", "w7 " * 60, "w8"]
    rows = Rows("classification", texts, None, ["LABEL_0"] * 4, [], "")
    with pytest.warns(CompressWarning, match="^2 of the texts were cut to the ") as seen:
        assert len(answers(exported.directory, rows, "cpu", None, SILENT)) == 4
    assert len(seen) == 1


def test_long_texts_are_cut_as_by_transformers(exported: Exported, classifier: Classifier) -> None:
    most = classifier.artifact.max_source_tokens
    texts, pairs = ["w5 " * 60, "w6"], ["w7 " * 20, "w8"]
    with pytest.warns(UserWarning, match=rf"1 of 2 texts were cut to the {most} tokens"):
        rows = classifier.encode(texts, pairs)
    options = {"truncation": True, "max_length": most}
    assert rows == exported.tokenizer(texts, pairs, **options)["input_ids"]
    assert len(rows[0]) == most


def test_batches_hold_their_limits() -> None:
    rng = np.random.default_rng(0)
    rows = [[1] * int(length) for length in rng.integers(1, 40, 300)]
    for size, tokens in ((None, None), (7, 90), (None, 5)):
        batches = by_length(rows, size, tokens)
        assert sorted(row for batch in batches for row in batch) == list(range(300))
        budget = tokens or (1024 if size is None else 10**9)
        for batch in batches:
            longest = max(len(rows[row]) for row in batch)
            assert len(batch) == 1 or len(batch) * longest <= budget
            assert len(batch) <= (size or 300)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_several_workers_answer_as_one(engine: str, exported: Exported) -> None:
    texts = [*toy.sentences(40, seed=3), *toy.sentences(9, seed=4)]
    models = [Classifier(exported.directory, engine=engine, workers=count) for count in (1, 3)]
    logits = [model.logits(texts, batch_size=4) for model in models]
    np.testing.assert_array_equal(*logits)
