"""Question answering: its rows, its windows, which tokens are the answer, the loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.runtime.question_answerer import split
from compressor.tasks import TASKS, require_task
from tests.helpers.errors import raises
from tests.helpers.heads import (
    byte_tokenizer,
    piece_tokenizer,
    questions,
    save_head,
    save_reader,
    write_questions,
)
from tests.helpers.rows import write

task = TASKS["question-answering"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return open_checkpoint(str(save_reader(tmp_path_factory.mktemp("reader") / "m")))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Questions, a fifth of them without an answer, as rows."""
    path = write_questions(tmp_path_factory.mktemp("data") / "a.json", questions(12, 0, 0.2))
    return task.read_rows(path)


def by_transformers(tokenizer: Any, rows: Any, number: int) -> Any:
    """The windows of a row, made by transformers."""
    specials = tokenizer.num_special_tokens_to_add(pair=True)
    asked = len(tokenizer(rows.sources[number], add_special_tokens=False)["input_ids"])
    room = 32 - specials - asked
    return tokenizer(
        rows.sources[number], rows.pairs[number], truncation="only_second", max_length=32,
        stride=room // 2, return_overflowing_tokens=True, return_offsets_mapping=True,
        return_token_type_ids=True,
    )  # fmt: skip


def test_rows_of_both_versions(tmp_path):
    paragraph = {
        "context": "Ada came.",
        "qas": [
            {"question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}] * 2},
            {"question": "When?", "is_impossible": True, "answers": [], "plausible_answers": [1]},
        ],
    }
    rows = task.read_rows(write_questions(tmp_path / "a.json", [paragraph]))
    assert (rows.sources, rows.pairs) == (["Who?", "When?"], ["Ada came."] * 2)
    assert list(map(json.loads, rows.targets)) == [[["Ada", 0]] * 2, []]
    assert task.answer_settings(rows) == {"null_answers": True}


def test_rows_of_the_datasets_library(data, tmp_path):
    """A question an object, in lines, in a list and in `data`: the rows of SQuAD's own form."""
    flat = [
        {
            "id": str(number), "title": "t", "question": asked, "context": context,
            "answers": {
                "text": [text for text, _ in json.loads(gold)],
                "answer_start": [start for _, start in json.loads(gold)],
            },
        }
        for number, (asked, context, gold) in enumerate(
            zip(data.sources, data.pairs, data.targets, strict=True)
        )
    ]  # fmt: skip
    lines = "".join(f"{json.dumps(row)}\n" for row in flat)
    for name, content in (
        ("a.jsonl", lines),
        ("list.json", json.dumps(flat)),
        ("data.json", json.dumps({"data": flat})),
    ):
        assert task.read_rows(write(tmp_path / name, content)).sha256 == data.sha256
    with raises(InputError, "json-malformed") as caught:
        task.read_rows(write(tmp_path / "lines.json", lines))
    assert "call the file .jsonl" in str(caught.value)


@pytest.mark.parametrize("kind", [piece_tokenizer, byte_tokenizer])
def test_windows_are_those_of_transformers(kind: Any, data):
    """So is the part of the context that each token stands for."""
    tokenizer = kind()
    made = split(kind().backend_tokenizer, data.sources, data.pairs, 32)
    assert max(map(len, made)) > 3
    for number, windows in enumerate(made):
        expected = by_transformers(tokenizer, data, number)
        assert [x.ids for x in windows] == expected["input_ids"]
        assert [x.types for x in windows] == expected["token_type_ids"]
        for part, window in enumerate(windows):
            places = zip(expected["offset_mapping"][part], expected.sequence_ids(part), strict=True)
            assert window.offsets == [place for place, text in places if text == 1]


@torch.no_grad()
def test_the_loss_is_that_of_transformers(reader, data):
    """On windows and answers that transformers finds; each window alone, not padded."""
    examples = task.encode(data, reader.tokenizer, reader.max_source_tokens)
    expected, labels = 0.0, []
    for number, target in enumerate(data.targets):
        inputs = by_transformers(reader.tokenizer, data, number)
        for part, ids in enumerate(inputs["input_ids"]):
            label = (0, 0)
            if answers := json.loads(target):
                text, start = answers[0]
                first = inputs.char_to_token(part, start, 1)
                last = inputs.char_to_token(part, start + len(text) - 1, 1)
                if first is not None and last is not None:
                    label = (first, last)
            labels.append(label)
            found = reader.model(
                input_ids=torch.tensor([ids]),
                token_type_ids=torch.tensor([inputs["token_type_ids"][part]]),
                start_positions=torch.tensor([label[0]]), end_positions=torch.tensor([label[1]]),
            )  # fmt: skip
            expected += 2 * float(found.loss)
    assert [x.target for x in examples] == labels
    assert [x.row for x in examples] == list(range(len(labels)))
    assert 0 < labels.count((0, 0)) < len(labels)
    batches = task.batches(examples, reader.model, batch_size=5)
    assert sum(float(task.loss(reader.model, x)) for x in batches) == pytest.approx(expected, 1e-5)
    assert sum(map(task.loss_terms, batches)) == 2 * len(labels)


def test_a_long_question_is_cut_and_leaves_room():
    """Half of a window at most, so that its context is read."""
    tokenizer = piece_tokenizer().backend_tokenizer
    ((window, *_),) = split(tokenizer, ["abcdefghij" * 5], ["ab abcdefgh"], 32)
    assert window.cut
    assert window.first == 1 + (32 - 3) // 2 + 1
    assert len(window.ids) <= 32
    assert window.tokens_of(0, 2) == (window.first, window.first)
    assert window.tokens_of(0, 99) is None


def test_a_tokenizer_that_leaves_no_room_is_refused(data):
    with raises(InputError, "tokenizer-without-pairs"):
        task.encode(data, piece_tokenizer(), 4)


def test_a_model_with_other_outputs_is_refused(tmp_path):
    opened = open_checkpoint(str(save_head(tmp_path, "bert", "question-answering", num_labels=3)))
    with raises(InputError, "config-malformed"):
        require_task(opened)
