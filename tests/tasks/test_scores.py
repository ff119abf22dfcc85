"""Regression and reranking: their rows, their losses, what distillation matches, which is which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from compressor.errors import CompressWarning, InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.tasks import TASKS, count_shared, require_task, split_rows
from tests.helpers.errors import raises
from tests.helpers.rows import write
from tests.helpers.score_models import save_scorer, write_queries, write_scores

regression, reranking = TASKS["regression"], TASKS["reranking"]


@pytest.fixture(scope="module")
def scorers(tmp_path_factory):
    """Outputs -> a checkpoint with so many."""
    root = tmp_path_factory.mktemp("scorers")
    return {n: open_checkpoint(str(save_scorer(root / str(n), n))) for n in (1, 2)}


def batch_of(task, checkpoint, path: Path):
    rows = task.read_rows(path)
    examples = task.encode(rows, checkpoint.tokenizer, checkpoint.max_source_tokens)
    (batch,) = task.batches(examples, checkpoint.model, batch_tokens=None)
    return rows, batch


def test_queries_without_a_relevant_text_are_left_out(tmp_path):
    path = write(tmp_path / "a.tsv", "query\ttext\tlabel\nq\ta\t0\nq\tb\t2\nr\tc\t0\ns\td\t1\n")
    rows = reranking.read_rows(path)
    assert rows.counted == (2, "queries")
    with pytest.warns(CompressWarning, match="1 of 3 queries have no relevant text"):
        reranking.require_answers(rows)
    with raises(InputError, "too-few-queries"):
        reranking.require_answers(reranking.read_rows(path, limit=3))


def test_a_query_is_on_one_side_of_a_split(tmp_path):
    rows = reranking.read_rows(write_queries(tmp_path / "a.tsv", 12))
    for seed in range(3):
        first, second = split_rows(rows, seed)
        assert set(first.sources) & set(second.sources) == set()
        assert sorted(first.targets + second.targets) == sorted(rows.targets)
        assert {first.ranked, second.ranked} == {True}
    # Another text of a known query is not new to the model.
    lines = (tmp_path / "a.tsv").read_text(encoding="utf-8").splitlines()
    query = lines[1].split("\t")[0]
    other = reranking.read_rows(
        write(tmp_path / "b.tsv", f"{lines[0]}\n{query}\tw3 w4 w5 w6\t1\nw9\tw3\t0\n")
    )
    assert count_shared(other, rows) == 1


@torch.no_grad()
def test_the_loss_of_regression_is_half_the_squared_error(scorers, tmp_path):
    rows, batch = batch_of(regression, scorers[1], write_scores(tmp_path / "a.tsv"))
    found = scorers[1].model(**batch.inputs()).logits[:, 0].numpy()
    right = np.array([float(rows.targets[row]) for row in batch.rows])
    loss = float(regression.loss(scorers[1].model, batch))
    assert loss == pytest.approx(((found - right) ** 2).sum() / 2, rel=1e-5)
    answers = regression.predict(scorers[1].model, batch, scorers[1].tokenizer)
    np.testing.assert_allclose([float(x) for x in answers], found, rtol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_loss_of_reranking_is_binary_cross_entropy(outputs: int, scorers, tmp_path):
    """By NumPy; with two classes the softmax's second is the probability."""
    rows, batch = batch_of(reranking, scorers[outputs], write_queries(tmp_path / "a.tsv"))
    logits = scorers[outputs].model(**batch.inputs()).logits.double().numpy()
    if outputs == 1:
        relevant = 1 / (1 + np.exp(-logits[:, 0]))
    else:
        relevant = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True))[:, 1]
    labels = np.array([rows.targets[row] != "0" for row in batch.rows])
    wanted = -np.log(np.where(labels, relevant, 1 - relevant)).sum()
    assert float(reranking.loss(scorers[outputs].model, batch)) == pytest.approx(wanted, rel=1e-5)
    answers = reranking.predict(scorers[outputs].model, batch, scorers[outputs].tokenizer)
    scores = np.log(relevant / (1 - relevant))
    np.testing.assert_allclose([float(x) for x in answers], scores, rtol=1e-4, atol=1e-5)


def test_distillation_matches_the_numbers():
    first, second = torch.tensor([[1.0, 3.0], [0.5, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 4.0]])
    ranked = [reranking.predictions(x) for x in (first, second)]  # 2 and -0.5; 1 and 2
    assert float(reranking.divergence(*ranked)) == pytest.approx((1 + 2.5**2) / 2)
    numbers = [regression.predictions(x[:, :1]) for x in (first, second)]
    assert float(regression.divergence(*numbers)) == pytest.approx((1 + 1.5**2) / 2)


def test_which_task_a_checkpoint_is_for(scorers):
    def opened(outputs: int, task: str | None):
        return open_checkpoint(str(scorers[outputs].directory), task=task)

    assert scorers[1].task == "regression"
    assert scorers[2].task == "classification"
    for outputs, task in ((1, "reranking"), (2, "reranking"), (2, "classification")):
        assert require_task(opened(outputs, task)).name == task
    with raises(InputError, "classifier-unsupported") as caught:
        require_task(opened(1, "classification"))
    assert "--task regression or --task reranking" in str(caught.value)
    with raises(InputError, "not-a-regressor"):
        require_task(opened(2, "regression"))
    with raises(UsageError, "task-of-another-model"):
        require_task(opened(1, "translation"))
