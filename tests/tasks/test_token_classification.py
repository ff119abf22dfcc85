"""Token classification: its rows, which token has the label, the loss, and the scores of units."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from compressor.errors import InputError, UsageError
from compressor.evaluation import metrics_of
from compressor.importance import METHODS, ScoringJob, score_units
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.tasks import TASKS, require_task
from tests.helpers.errors import raises
from tests.helpers.heads import TAGS, save_head, save_tagger, write_tagged
from tests.helpers.rows import require_refused, write

task = TASKS["token-classification"]
CONLL = "-DOCSTART- O\n\nEU\tB-per\nrejects\tO\n\n\nthe O\n"


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    return open_checkpoint(str(save_tagger(tmp_path_factory.mktemp("tagger") / "m")))


def encoded(tagger, path, **options):
    rows = task.read_rows(path, labels=TAGS)
    examples = task.encode(rows, tagger.tokenizer, tagger.max_source_tokens)
    return rows, examples, task.batches(examples, tagger.model, **options)


def test_columns_and_json_lists_are_the_same_rows(tmp_path):
    rows = task.read_rows(write(tmp_path / "a.conll", CONLL))
    assert (rows.sources, rows.targets) == (["EU rejects", "the"], ["B-per O", "O"])
    objects = [{"w": ["EU", "rejects"], "t": [1, 0]}, {"w": ["the"], "t": ["O"]}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, objects)))
    named = task.read_rows(path, labels=TAGS, text_column="w", label_column="t")
    assert named.sha256 == rows.sha256
    four = task.read_rows(write(tmp_path / "a.txt", "EU NNP B-NP B-per\nrejects VBZ B-VP O\n"))
    assert four.targets == ["B-per O"]


BAD = {
    "one column": ("a.conll", "EU B-per\nrejects\n", "cell-count-differs", ":2:"),
    "more columns": ("a.conll", "EU B-per\nrejects VBZ O\n", "cell-count-differs", ":2:"),
    "no word": ("a.tsv", "EU\tB-per\n\tO\n", "cell-empty", ":2:"),
    "no tag": ("a.tsv", "EU\tB-per\nrejects\t\n", "tag-not-a-word", ":2:"),
    "other tag": ("a.conll", "EU B-per\nrejects B-pre\n", "label-unknown", ":2:"),
    "space": ("a.jsonl", '{"tokens": ["a b"], "tags": ["O"]}', "word-with-space", ":1:"),
    "fewer tags": ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"], "tags": []}',
                   "tags-do-not-match-words", ":2:"),
    "no list": ("a.jsonl", '{"tokens": "a", "tags": ["O"]}', "cell-not-list", ":1:"),
    "no words": ("a.jsonl", '{"tokens": [], "tags": []}', "tags-do-not-match-words", ":1:"),
    "number": ("a.jsonl", '{"tokens": [3], "tags": ["O"]}', "cell-not-text", ":1:"),
    "no column": ("a.jsonl", '{"words": [], "tags": []}', "column-missing", ""),
    "nothing": ("a.conll", "\n\n", "too-few-rows", ""),
    "suffix": ("a.csv", "a,O\n", "format-unknown", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_name_file_and_line(case: str, tmp_path):
    require_refused(task, tmp_path, BAD[case], TAGS)


def test_options_of_tables_are_refused_for_columns(tmp_path):
    path = write(tmp_path / "a.conll", CONLL)
    with raises(UsageError, "columns-of-plain-text"):
        task.read_rows(path, text_column="w")
    with raises(UsageError, "header-of-plain-text"):
        task.read_rows(path, header=False)


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
    assert sum(float(task.loss(tagger.model, x)) for x in batches) == pytest.approx(expected, 1e-5)
    assert sum(map(task.loss_terms, batches)) == words


def test_words_beyond_the_positions_have_no_label(tagger, tmp_path):
    lines = "".join(f"{word} B-loc\n" for word in ["abcdefghij"] * 5)
    with pytest.warns(UserWarning, match="words beyond the 32 tokens .*: 1$"):
        _, (example,), (batch,) = encoded(tagger, write(tmp_path / "a.conll", lines))
    assert example.truncated
    assert len(example.source) == 32
    assert task.loss_terms(batch) == 4  # tokens 1, 9, 17 and 25 start words of 8 tokens
    (answer,) = task.predict(tagger.model, batch, tagger.tokenizer)
    assert len(answer.split()) == 4


def test_text_without_labels_is_every_word_of_it(tagger, tmp_path):
    """Distillation looks at the same tokens of further text as of rows."""
    rows = task.read_rows(write(tmp_path / "a.conll", CONLL.replace("the", "abc")), labels=TAGS)
    blank = task.blank_answer(list(TAGS))
    bare = type(rows)(**vars(rows) | {"targets": [blank] * rows.count})
    found = [
        [word for _, word in example.target]
        for example in task.encode(bare, tagger.tokenizer, tagger.max_source_tokens)
    ]
    assert found == [
        [word for _, word in example.target]
        for example in task.encode(rows, tagger.tokenizer, tagger.max_source_tokens)
    ]


@pytest.mark.parametrize("name", ["second-order", "ablation", "relevance", "confidence"])
def test_methods_score_heads(name: str, tagger, tmp_path):
    _, _, batches = encoded(tagger, write_tagged(tmp_path / "a.conll", 9))
    heads = [x for x in tagger.layers if x.is_attention]
    job = ScoringJob(tagger.model, heads, Mask.full(heads), batches, task, tagger.tokenizer)
    scores = score_units(METHODS[name](), job)
    assert {layer: len(values) for layer, values in scores.values.items()} == {
        x.name: x.units for x in heads
    }
    assert any(value for values in scores.values.values() for value in values)


def test_labels_of_several_words_are_refused(tmp_path):
    names = {"id2label": {0: "O", 1: "B per"}, "label2id": {"O": 0, "B per": 1}}
    opened = open_checkpoint(str(save_head(tmp_path, "bert", "token-classification", **names)))
    with raises(InputError, "label-not-a-word"):
        require_task(opened)


@pytest.mark.parametrize("names", ["O per-B per-I", "o b-per i-per", "O B_per"])
def test_prefixes_in_another_form_are_refused(names: str, tmp_path):
    names = names.split()
    config = {"id2label": dict(enumerate(names)), "label2id": {x: i for i, x in enumerate(names)}}
    opened = open_checkpoint(str(save_head(tmp_path, "bert", "token-classification", **config)))
    with raises(InputError, "label-prefix-unknown"):
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
    assert metrics_of(task.read_rows(path, labels=labels))[0] == main
