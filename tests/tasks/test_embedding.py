"""The task of embedding texts: its rows, its loss, and what distillation matches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from compressor.errors import InputError, UsageError
from compressor.importance import METHODS, ScoringJob, score_units
from compressor.importance.depth import layers_to_drop
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.rows import require_refused, write
from tests.helpers.score_models import write_queries
from tests.helpers.sentence_encoders import save_encoder, write_pairs, write_texts

task = TASKS["embedding"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return open_checkpoint(str(save_encoder(tmp_path_factory.mktemp("encoder") / "m")))


def batches_of(encoder, path: Path, **options):
    rows = task.read_rows(path)
    examples = task.encode(rows, encoder.tokenizer, encoder.max_source_tokens)
    return examples, task.batches(examples, encoder.model, **options)


def test_pairs_with_scores(tmp_path):
    table = "id\tsentence1\tsentence2\tscore\n1\ta b\tc\t3.5\n2\td\te f\t0\n"
    rows = task.read_rows(write(tmp_path / "a.tsv", table))
    assert (rows.sources, rows.pairs, rows.targets) == (["a b", "d"], ["c", "e f"], ["3.5", "0"])
    lines = [{"text": "a b", "b": "c", "n": 3.5}, {"text": "d", "b": "e f", "n": 0}]
    text = "\n".join(map(json.dumps, lines))
    named = task.read_rows(
        write(tmp_path / "a.jsonl", text), text_pair_column="b", label_column="n"
    )
    assert (named.sources, named.pairs, named.targets) == (rows.sources, rows.pairs, rows.targets)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "a b\nd\n"),
        ("a.tsv", "label\ttext\nx\ta b\ny\td\n"),  # of a classifier: its labels are not looked at
        ("a.csv", "words\na b\nd\n"),
        ("a.jsonl", '{"sentence": "a b"}\n{"sentence": "d"}\n'),
    ],
)
def test_texts_without_labels(name: str, content: str, tmp_path):
    rows = task.read_rows(write(tmp_path / name, content))
    assert (rows.sources, rows.pairs, rows.targets) == (["a b", "d"], None, ["", ""])
    with raises(InputError, "pairs-missing") as caught:
        task.require_answers(rows)
    assert name in str(caught.value)


def test_queries_with_texts_to_find(tmp_path):
    path = write_queries(tmp_path / "a.tsv", 6)
    rows = task.read_rows(path)
    assert rows.ranked
    assert rows.counted == (5, "queries")  # one has no relevant text
    assert task.metrics_of(rows) == ("ndcg@10", "mrr@10", "map")
    # The columns of other rows that options name are not those of queries.
    pairs = task.read_rows(path, text_column="text", text_pair_column="query", label_column="label")
    assert not pairs.ranked
    assert task.metrics_of(pairs) == ("spearman",)
    one = write(tmp_path / "b.tsv", "query\ttext\tlabel\nq\ta\t1\nq\tb\t0\nr\tb\t0\n")
    with raises(InputError, "too-few-queries"):
        task.require_answers(task.read_rows(one))


BAD = {
    "no relevance": ("a.tsv", "query\ttext\tlabel\na\tb\tyes\n", "relevance-not-whole",
                     ":2: the relevance 'yes'"),
    "empty text": ("a.tsv", "sentence1\tsentence2\tscore\na\t \t1\n", "cell-empty", ":2: 'sen"),
    "no number": ("a.tsv", "sentence1\tsentence2\tscore\na\tb\t1\na\tb\tx\n", "score-not-number",
                  ":3: the score 'x'"),
    "infinite": ("a.tsv", "sentence1\tsentence2\tscore\na\tb\tinf\n", "score-not-number", ":2:"),
    "true": ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": true}', "cell-not-text",
             ":1: 'score'"),
    "missing score": ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": 1}\n'
                      '{"sentence1": "a", "sentence2": "b"}', "cell-missing", ":2:"),
    "empty line": ("a.txt", "a\n\nb\n", "line-empty", ":2:"),
    "too few cells": ("a.tsv", "text\tx\na\tb\nc\n", "cell-count-differs", ":3:"),
    "not utf-8": ("a.txt", b"a\n\xff\n", "file-not-utf8", ":2:"),
    "suffix": ("a.xlsx", "a", "format-unknown", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_name_file_and_line(case: str, tmp_path):
    require_refused(task, tmp_path, BAD[case])


def test_a_column_that_is_named_must_be_there(tmp_path):
    path = write(tmp_path / "a.tsv", "sentence1\tsentence2\tscore\na\tb\t1\n")
    with raises(InputError, "column-missing"):
        task.read_rows(path, text_column="txt")
    with raises(InputError, "pairs-missing"):
        task.require_answers(task.read_rows(path, label_column="scores"))


def test_each_text_of_a_pair_is_a_row(encoder, tmp_path):
    path = write_pairs(tmp_path / "a.tsv", rows=9)
    rows = task.read_rows(path)
    examples, _ = batches_of(encoder, path)
    texts = [encoder.tokenizer.decode(x.source, skip_special_tokens=True) for x in examples]
    assert texts == [*rows.sources, *rows.pairs]
    assert [x.row for x in examples] == list(range(18))


@torch.no_grad()
def test_the_loss_is_the_part_in_a_fixed_random_direction(encoder, tmp_path):
    """By NumPy; the same in every batch, another direction for every row."""
    examples, batches = batches_of(encoder, write_texts(tmp_path / "a.txt", 12), batch_size=5)
    parts, directions = 0.0, []
    for batch in batches:
        for row, vector in zip(batch.rows, encoder.model(**batch.inputs()).logits, strict=True):
            drawn = torch.randn(32, generator=torch.Generator().manual_seed(row)).numpy()
            unit = vector.numpy() / np.linalg.norm(vector.numpy())
            parts += float(drawn @ unit)
            directions.append(drawn)
    total = sum(float(task.loss(encoder.model, batch)) for batch in batches)
    assert total == pytest.approx(parts, abs=1e-4)
    alone = task.batches(examples, encoder.model, batch_size=1)
    assert sum(float(task.loss(encoder.model, x)) for x in alone) == pytest.approx(total, abs=1e-4)
    assert abs(np.corrcoef(directions) - np.eye(12)).max() < 0.8


def test_second_moments_of_the_gradient_are_those_of_the_distance(encoder, tmp_path):
    """Over many directions, E (v . d)^2 of a small change d is its squared length."""
    _, (batch, *_) = batches_of(encoder, write_texts(tmp_path / "a.txt", 8))
    layer = encoder.layers[0]
    weight = encoder.model.get_submodule(layer.output).weight
    step = 1e-3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    slopes = []
    for start in range(0, 1600, 8):
        batch["labels"] = torch.arange(start, start + 8)
        (slope,) = torch.autograd.grad(task.loss(encoder.model, batch), weight)
        slopes.append(float((slope * step).sum()))
    before = task.predictions(task.logits(encoder.model, batch)).detach()
    with torch.no_grad():
        weight += step
        after = task.predictions(task.logits(encoder.model, batch))
        weight -= step
    change = float((after - before).square().sum())
    assert np.mean(np.square(slopes)) == pytest.approx(change, rel=0.35)


@torch.no_grad()
def test_the_divergence_of_unit_vectors_is_one_minus_the_cosine():
    rng = np.random.default_rng(0)
    found, wanted = (rng.normal(size=(5, 8)).astype(np.float32) for _ in range(2))
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    expected = float((1 - (found * wanted).sum(1) / lengths).sum())
    units = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (found, wanted))
    first, second = (task.predictions(torch.tensor(x)) for x in units)
    assert float(task.divergence(first, second)) == pytest.approx(expected, rel=1e-5)


def job_of(encoder, batches) -> ScoringJob:
    return ScoringJob(
        encoder.model, encoder.layers, Mask.full(encoder.layers), batches, task, encoder.tokenizer
    )


@pytest.mark.parametrize("name", ["second-order", "taylor", "fisher", "confidence", "magnitude"])
def test_methods_score_the_units_of_encoders(name: str, encoder, tmp_path):
    _, batches = batches_of(encoder, write_texts(tmp_path / "a.txt", 16))
    heads = [x for x in encoder.layers if x.is_attention]
    job = job_of(encoder, batches)
    job = ScoringJob(**vars(job) | {"layers": heads if name == "confidence" else job.layers})
    scores = score_units(METHODS[name](), job)
    assert {layer: len(values) for layer, values in scores.values.items()} == {
        x.name: x.units for x in job.layers
    }
    assert any(value > 0 for values in scores.values.values() for value in values)


@pytest.mark.parametrize("name", ["ablation", "relevance"])
def test_methods_that_go_by_answers_are_refused(name: str, encoder, tmp_path):
    _, batches = batches_of(encoder, write_texts(tmp_path / "a.txt", 9))
    with raises(UsageError, "method-for-other-tasks"):
        score_units(METHODS[name](), job_of(encoder, batches))
    with raises(UsageError, "task-without-answers"):
        task.predict(encoder.model, batches[0], encoder.tokenizer)


@torch.no_grad()
def test_the_layer_that_goes_first_changes_embeddings_least(encoder, tmp_path):
    _, batches = batches_of(encoder, write_texts(tmp_path / "a.txt", 16))
    order = layers_to_drop(encoder.model, encoder.layers, batches, task, {"encoder": 1})
    ((name, divergence),) = order.items()
    assert name in {x.layer for x in encoder.layers}
    assert 0 < divergence < 2  # 1 minus a cosine
