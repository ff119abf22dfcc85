"""Tags of words, and questions to texts: rows, windows, which token has the label, and the loss."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from compressor.errors import InputError
from compressor.evaluation import metrics_of
from compressor.model.checkpoint import open_checkpoint
from compressor.runtime.question_answerer import split_into_windows
from compressor.tasks import TASKS, require_task
from tests.helpers.errors import raises
from tests.helpers.files import write
from tests.helpers.heads import (
    TAGS,
    byte_tokenizer,
    piece_tokenizer,
    questions,
    save_head,
    save_reader,
    save_tagger,
    write_questions,
    write_tagged,
)

tagging = TASKS["token-classification"]
CONLL = "-DOCSTART- O\n\nEU\tB-per\nrejects\tO\n\n\nthe O\n"


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    return open_checkpoint(str(save_tagger(tmp_path_factory.mktemp("tagger") / "m")))


def encoded(tagger, path, **options):
    rows = tagging.read_rows(path, labels=TAGS)
    examples = tagging.encode(rows, tagger.tokenizer, tagger.max_source_tokens)
    return rows, examples, tagging.batches(examples, tagger.model, **options)


@torch.no_grad()
def test_the_loss_is_that_of_transformers_on_first_tokens(tagger, tmp_path):
    """Words are split, aligned and compared by transformers, each sentence alone."""
    rows, examples, batches = encoded(tagger, write_tagged(tmp_path / "a.conll", 12), batch_size=5)
    expected, words = 0.0, 0
    for source, target, example in zip(rows.sources, rows.targets, examples, strict=True):
        inputs = tagger.tokenizer(
            source.split(), is_split_into_words=True, truncation=True, return_tensors="pt"
        )
        numbers: list[Any] = inputs.word_ids()
        labels = [
            -100 if x is None or x == before else TAGS.index(target.split()[x])
            for x, before in zip(numbers, [None, *numbers], strict=False)
        ]
        assert [label for label, _ in example.target] == labels
        count = sum(label >= 0 for label in labels)
        found = tagger.model(**inputs, labels=torch.tensor([labels])).loss
        expected, words = expected + count * float(found), words + count
    assert sum(float(tagging.loss(tagger.model, x)) for x in batches) == pytest.approx(
        expected, 1e-5
    )
    assert sum(map(tagging.loss_terms, batches)) == words


def test_words_beyond_the_positions_have_no_label(tagger, tmp_path):
    lines = "".join(f"{word} B-loc\n" for word in ["abcdefghij"] * 5)
    _, (example,), (batch,) = encoded(tagger, write(tmp_path / "a.conll", lines))
    assert example.truncated
    assert len(example.source) == 32
    assert tagging.loss_terms(batch) == 4  # tokens 1, 9, 17 and 25 start words of 8 tokens
    (answer,) = tagging.predict(tagger.model, batch, tagger.tokenizer)
    assert len(answer.split()) == 4


def test_text_without_labels_is_every_word_of_it(tagger, tmp_path):
    """Distillation looks at the same tokens of further text as of rows."""
    path = write(tmp_path / "a.conll", CONLL.replace("the", "abc"))
    rows, examples, _ = encoded(tagger, path)
    bare = replace(rows, targets=[tagging.blank_answer(list(TAGS))] * rows.count)
    blank = tagging.encode(bare, tagger.tokenizer, tagger.max_source_tokens)
    words, blank_words = (
        [[word for _, word in example.target] for example in some] for some in (examples, blank)
    )
    assert words == blank_words


@pytest.mark.parametrize(
    "names", [["O", "B per"], ["O", "per-B", "per-I"], ["o", "b-per", "i-per"], ["O", "B_per"]]
)
def test_labels_in_another_form_are_refused(names: list[str], tmp_path):
    config = {"id2label": dict(enumerate(names)), "label2id": {x: i for i, x in enumerate(names)}}
    opened = open_checkpoint(str(save_head(tmp_path, "bert", "token-classification", **config)))
    with raises(InputError, "label-not-a-word"):
        require_task(opened)


@pytest.mark.parametrize(
    ("labels", "main"),
    [
        (TAGS, "entity_f1"),
        (("O", "B-per", "L-per", "U-per", "[CLS]"), "entity_f1"),
        (("NOUN", "SYM", "PUNCT"), "token_accuracy"),
        (("O", "PER", "ORG"), "token_accuracy"),  # seqeval sees no ORG
    ],
)
def test_entities_are_counted_where_labels_have_prefixes(labels, main: str, tmp_path):
    path = write(tmp_path / "a.conll", f"EU {labels[1]}\n")
    assert metrics_of(tagging.read_rows(path, labels=labels))[0] == main


answering = TASKS["question-answering"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return open_checkpoint(str(save_reader(tmp_path_factory.mktemp("reader") / "m")))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Questions, a fifth of them without an answer, as rows."""
    path = write_questions(tmp_path_factory.mktemp("data") / "a.json", questions(12, 0, 0.2))
    return answering.read_rows(path)


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


@pytest.mark.parametrize("kind", [piece_tokenizer, byte_tokenizer])
def test_windows_are_those_of_transformers(kind: Any, data):
    """So is the part of the context that each token stands for."""
    tokenizer = kind()
    made = split_into_windows(kind().backend_tokenizer, data.sources, data.pairs, 32)
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
    examples = answering.encode(data, reader.tokenizer, reader.max_source_tokens)
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
    assert answering.answer_settings(data) == {"null_answers": True}
    batches = answering.batches(examples, reader.model, batch_size=5)
    assert sum(float(answering.loss(reader.model, x)) for x in batches) == pytest.approx(
        expected, 1e-5
    )
    assert sum(map(answering.loss_terms, batches)) == 2 * len(labels)


def test_a_tokenizer_that_leaves_no_room_is_refused(data):
    with raises(InputError, "tokenizer-without-pairs"):
        answering.encode(data, piece_tokenizer(), 4)


def test_a_model_with_other_outputs_or_sides_is_refused(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(reader.tokenizer, "truncation_side", "left")
    with raises(InputError, "tokenizer-side-unsupported"):
        require_task(reader)
    opened = open_checkpoint(str(save_head(tmp_path, "bert", "question-answering", num_labels=3)))
    with raises(InputError, "outputs-of-another-task"):
        require_task(opened)
