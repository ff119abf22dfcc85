"""Rows in batches, and logits as probabilities, by hand and as PyTorch has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compressor.errors import UsageError
from compressor.runtime import batching
from compressor.runtime.batching import (
    by_length,
    check_limits,
    collate,
    in_chunks,
    log_softmax,
    require_right_padding,
    require_texts,
    sigmoid,
)
from compressor.runtime.text import Encoded
from tests.helpers.errors import raises


def test_rows_are_padded_on_the_right() -> None:
    rows = [Encoded([5, 6, 7], [0, 0, 1]), Encoded([8], [1])]
    made = collate(rows, 9, ["input_ids", "attention_mask", "token_type_ids"])
    assert {name: array.tolist() for name, array in made.items()} == {
        "input_ids": [[5, 6, 7], [8, 9, 9]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "token_type_ids": [[0, 0, 1], [1, 0, 0]],
    }
    assert {array.dtype for array in made.values()} == {np.dtype(np.int64)}
    plain = collate([[5, 6], [7]], 9, ["token_type_ids"])
    assert plain["token_type_ids"].tolist() == [[0, 0], [0, 0]]
    assert collate([], 9, ["input_ids", "attention_mask"])["input_ids"].shape == (0, 0)


def test_batches_have_rows_of_similar_length_longest_first() -> None:
    rows = [[1] * length for length in (2, 5, 2, 7, 2, 0)]
    assert by_length(rows, batch_size=2) == [[3, 1], [0, 2], [4, 5]]
    assert by_length(rows, batch_tokens=10) == [[3], [1, 0], [2, 4, 5]]
    assert by_length(rows, batch_size=1, batch_tokens=10) == [[3], [1], [0], [2], [4], [5]]
    assert by_length(rows, batch_tokens=4) == [[3], [1], [0, 2], [4, 5]]  # longer ones are alone
    assert by_length(rows) == [[3, 1, 0, 2, 4, 5]]
    assert by_length(rows, default_tokens=14) == [[3, 1], [0, 2, 4, 5]]
    assert by_length([]) == []


def test_a_limit_below_one_is_an_error() -> None:
    check_limits(batch_size=None, batch_tokens=1)
    with raises(UsageError, "number-below-one") as caught:
        by_length([[1]], batch_tokens=0)
    assert "batch_tokens is 0" in str(caught.value)


def test_one_text_in_place_of_a_list_and_unequal_columns_are_errors() -> None:
    require_texts(["a", "b"], ["c", "d"])
    require_texts(iter("ab"), ["c"])  # whose number is not known
    for column in (("one text", None), (["a"], "one text")):
        with raises(UsageError, "text-not-in-a-list") as caught:
            require_texts(*column)
        assert "give a list of texts: ['one text']" in str(caught.value)
    with raises(UsageError, "pairs-do-not-match-texts") as caught:
        require_texts(["a", "b"], ["c"])
    assert "there are 2 first texts but 1 second ones" in str(caught.value)


def test_padding_before_a_token_is_an_error() -> None:
    require_right_padding(np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]]))
    for row in ([0, 1, 1], [1, 0, 1]):
        with raises(UsageError, "padding-not-on-the-right"):
            require_right_padding(np.array([[1, 1, 1], row]))


def test_a_chunk_is_read_when_it_is_asked_for() -> None:
    read: list[int] = []
    chunks = in_chunks((read.append(number) or number for number in range(5)), 2)
    assert read == []
    assert (next(chunks), read) == ([0, 1], [0, 1])
    assert list(chunks) == [[2, 3], [4]]


@pytest.mark.parametrize("block", [1, 20, 1 << 18])
def test_probabilities_are_pytorchs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of a row, of two, and of all; large logits do not overflow."""
    monkeypatch.setattr(batching, "_BLOCK", block)
    scores = np.random.default_rng(0).normal(0, 30, (5, 10)).astype(np.float32)
    scores[1] += 1000
    scores[2, 3] = -np.inf
    given = torch.from_numpy(scores.copy())
    log_softmax(scores)
    np.testing.assert_allclose(scores, given.log_softmax(-1).numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sigmoid(given.numpy()), given.sigmoid().numpy(), atol=1e-6)
