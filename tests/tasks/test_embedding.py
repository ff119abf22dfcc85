"""The task of embedding texts: its rows, its loss, and what distillation matches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.rows import write
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


def test_metrics_of_pairs_and_of_queries(tmp_path):
    path = write_queries(tmp_path / "a.tsv", 6)
    rows = task.read_rows(path)
    assert rows.counted == (5, "queries")  # one has no relevant text
    assert task.metrics_of(rows) == ("ndcg@10", "mrr@10", "map")
    # The columns of other rows that options name are not those of queries.
    pairs = task.read_rows(path, text_column="text", text_pair_column="query", label_column="label")
    assert not pairs.ranked
    assert task.metrics_of(pairs) == ("spearman",)
    one = write(tmp_path / "b.tsv", "query\ttext\tlabel\nq\ta\t1\nq\tb\t0\nr\tb\t0\n")
    with raises(InputError, "too-few-queries"):
        task.require_answers(task.read_rows(one))
    with raises(InputError, "pairs-missing"):
        task.require_answers(task.read_rows(write(tmp_path / "a.txt", "a\n")))


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


@torch.no_grad()
def test_the_divergence_of_unit_vectors_is_one_minus_the_cosine():
    rng = np.random.default_rng(0)
    found, wanted = (rng.normal(size=(5, 8)).astype(np.float32) for _ in range(2))
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    expected = float((1 - (found * wanted).sum(1) / lengths).sum())
    units = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (found, wanted))
    first, second = (task.predictions(torch.tensor(x)) for x in units)
    assert float(task.divergence(first, second)) == pytest.approx(expected, rel=1e-5)
