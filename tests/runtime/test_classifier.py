"""Exported classifiers answer as PyTorch, for texts and for pairs of texts."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from compressor.errors import CompressWarning, InputError, UsageError
from compressor.evaluation.answers import answers
from compressor.progress import SILENT
from compressor.runtime import Classifier, Translator
from compressor.runtime.batching import by_length
from compressor.tasks import Rows
from tests.helpers import runtime_artifacts, toy
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import Exported
from tests.helpers.tiny import LABELS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["bert", "distilbert"])
def exported(request: pytest.FixtureRequest) -> Exported:
    """With token types and without."""
    return runtime_artifacts.classifier(request.param)


@torch.no_grad()
def expected_logits(
    exported: Exported, texts: list[str], pairs: list[str] | None = None
) -> np.ndarray:
    """One row at a time through PyTorch, so that nothing is padded."""
    rows = []
    for number, text in enumerate(texts):
        pair = None if pairs is None else pairs[number]
        inputs = exported.tokenizer(text, pair, return_tensors="pt")
        names = ("input_ids", "attention_mask")
        if exported.model.config.model_type == "bert":
            names += ("token_type_ids",)
            encoding = exported.tokenizer.backend_tokenizer.encode(text, pair)
            inputs["token_type_ids"] = torch.tensor([encoding.type_ids])
        rows.append(exported.model(**{name: inputs[name] for name in names}).logits[0].numpy())
    return np.stack(rows)


def test_logits_are_pytorchs_in_the_order_of_the_texts(exported: Exported) -> None:
    texts = [*toy.sentences(9), "", "   "]
    classifier = Classifier(exported.directory, threads=1)
    want = expected_logits(exported, texts)
    sizes = ({"batch_size": 1}, {"batch_size": 4}, {"batch_tokens": 1}, {"batch_tokens": 20})
    for limit in ({}, *sizes):
        np.testing.assert_allclose(classifier.logits(texts, **limit), want, atol=1e-4)
    labels = exported.model.config.id2label
    assert classifier.classify(texts) == [labels[int(row.argmax())] for row in want]
    assert len(set(classifier.classify(texts))) > 1
    assert classifier.labels == [labels[i] for i in range(LABELS)]


def test_pairs(exported: Exported) -> None:
    texts, pairs = toy.sentences(6, seed=1), toy.sentences(6, seed=2)
    classifier = Classifier(exported.directory, threads=1)
    want = expected_logits(exported, texts, pairs)
    np.testing.assert_allclose(classifier.logits(texts, pairs), want, atol=1e-4)
    assert np.abs(want - expected_logits(exported, texts)).max() > 0.01
    with raises(UsageError, "pairs-do-not-match-texts"):
        classifier.logits(texts, pairs[:5])


@pytest.mark.parametrize("paired", [False, True])
def test_streams_give_what_the_lists_give(exported: Exported, paired: bool) -> None:
    texts, pairs = toy.sentences(9, seed=5), toy.sentences(9, seed=6)
    pairs[4] = ""  # one text of two is enough
    classifier = Classifier(exported.directory, threads=1)
    want = classifier.probabilities(texts, pairs if paired else None)
    labels = classifier.classify(texts, pairs if paired else None)
    rows = list(zip(texts, pairs, strict=True)) if paired else list(texts)
    blank = ("", " ") if paired else "\t"
    rows[3:3] = [blank]
    for chunk_rows in (1, 4, 100):
        options = {"chunk_rows": chunk_rows, "batch_tokens": 30}
        got = list(classifier.probabilities_stream(iter(rows), **options))
        assert got.pop(3) is None
        np.testing.assert_allclose(got, want, atol=1e-5)
        got = list(classifier.classify_stream(iter(rows), **options))
        assert got.pop(3) == ""
        assert got == labels


def test_a_stream_reads_a_chunk_ahead_and_warns_at_its_end(exported: Exported) -> None:
    classifier = Classifier(exported.directory, threads=1)
    source = iter(["w5", "w7 " * 60, "", "w6 " * 70, "w8"])
    stream = classifier.classify_stream(source, chunk_rows=2)
    next(stream)
    next(stream)
    assert list(source) == ["", "w6 " * 70, "w8"]
    with pytest.warns(UserWarning, match="^1 of 2 texts were cut"):
        assert list(stream) == []
    with raises(UsageError, "number-below-one"):
        classifier.classify_stream(["w5"], chunk_rows=0)


def test_rows_of_an_evaluation_that_are_cut_are_told_once(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compressor.evaluation.answers._CHUNK_ROWS", 2)
    texts = ["w5 " * 60, "w6", "w7 " * 60, "w8"]
    rows = Rows("classification", texts, None, ["LABEL_0"] * 4, [], "")
    with pytest.warns(CompressWarning, match="^2 of the texts were cut to the ") as seen:
        assert len(answers(exported.directory, rows, "cpu", None, SILENT)) == 4
    assert len(seen) == 1


def test_batches_hold_their_limits() -> None:
    rng = np.random.default_rng(0)
    rows = [[1] * int(length) for length in rng.integers(1, 40, 300)]
    for size, tokens in ((None, None), (None, 90), (7, None), (7, 90), (None, 5)):
        batches = by_length(rows, size, tokens)
        assert sorted(place for batch in batches for place in batch) == list(range(300))
        lengths = [[len(rows[place]) for place in batch] for batch in batches]
        assert list(chain(*lengths)) == sorted(map(len, rows), reverse=True)
        budget = tokens or (1024 if size is None else 10**9)
        for number, batch in enumerate(lengths):
            assert len(batch) == 1 or len(batch) * batch[0] <= budget
            assert len(batch) <= (size or 300)
            if number + 1 < len(lengths):  # full: not a row more would have fitted
                assert len(batch) == size or (len(batch) + 1) * batch[0] > budget
    assert by_length(rows, default_tokens=90) == by_length(rows, None, 90)
    with raises(UsageError, "number-below-one"):
        by_length(rows, None, 0)


def test_one_text_in_place_of_a_list(exported: Exported) -> None:
    classifier = Classifier(exported.directory, threads=1)
    for answer in (classifier.classify, classifier.probabilities, classifier.classify_stream):
        with raises(UsageError, "text-not-in-a-list") as caught:
            answer("w5 w6")
        assert "['w5 w6']" in str(caught.value)


def test_long_texts_are_cut_as_by_transformers(exported: Exported) -> None:
    classifier = Classifier(exported.directory, threads=1)
    most = classifier.artifact.max_source_tokens
    texts, pairs = ["w5 " * 60, "w6"], ["w7 " * 20, "w8"]
    with pytest.warns(UserWarning, match=rf"1 of 2 texts were cut to the {most} tokens"):
        rows = classifier.encode(texts, pairs)
    options = {"truncation": True, "max_length": most}
    assert rows == exported.tokenizer(texts, pairs, **options)["input_ids"]
    assert len(rows[0]) == most


def test_translator_refuses_a_classifier(exported: Exported) -> None:
    with raises(InputError, "artifact-of-another-task"):
        Translator(exported.directory)


def test_probabilities_are_the_softmax(exported: Exported) -> None:
    texts = toy.sentences(5, seed=4)
    classifier = Classifier(exported.directory, threads=1)
    want = torch.from_numpy(expected_logits(exported, texts)).softmax(-1).numpy()
    np.testing.assert_allclose(classifier.probabilities(texts), want, atol=1e-5)
