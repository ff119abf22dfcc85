"""Token classification: its rows, which token has the label, the loss, and the scores of units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from compressor.errors import InputError
from compressor.evaluation import metrics_of
from compressor.model.checkpoint import open_checkpoint
from compressor.tasks import TASKS, require_task
from tests.helpers.errors import raises
from tests.helpers.heads import TAGS, save_head, save_tagger, write_tagged
from tests.helpers.rows import write

task = TASKS["token-classification"]
CONLL = "-DOCSTART- O\n\nEU\tB-per\nrejects\tO\n\n\nthe O\n"


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    return open_checkpoint(str(save_tagger(tmp_path_factory.mktemp("tagger") / "m")))


def encoded(tagger, path, **options):
    rows = task.read_rows(path, labels=TAGS)
    examples = task.encode(rows, tagger.tokenizer, tagger.max_source_tokens)
    return rows, examples, task.batches(examples, tagger.model, **options)


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
    path = write(tmp_path / "a.conll", CONLL.replace("the", "abc"))
    rows, examples, _ = encoded(tagger, path)
    bare = replace(rows, targets=[task.blank_answer(list(TAGS))] * rows.count)
    blank = task.encode(bare, tagger.tokenizer, tagger.max_source_tokens)
    words, blank_words = (
        [[word for _, word in example.target] for example in some] for some in (examples, blank)
    )
    assert words == blank_words


@pytest.mark.parametrize(
    ("names", "id"),
    [
        (["O", "B per"], "label-not-a-word"),
        (["O", "per-B", "per-I"], "label-prefix-unknown"),
        (["o", "b-per", "i-per"], "label-prefix-unknown"),
        (["O", "B_per"], "label-prefix-unknown"),
    ],
)
def test_labels_in_another_form_are_refused(names: list[str], id: str, tmp_path):
    config = {"id2label": dict(enumerate(names)), "label2id": {x: i for i, x in enumerate(names)}}
    opened = open_checkpoint(str(save_head(tmp_path, "bert", "token-classification", **config)))
    with raises(InputError, id):
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
