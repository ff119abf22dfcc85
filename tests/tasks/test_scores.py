"""Regression, reranking and several labels per text: rows, losses, answers, which task is whose."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from compressor.errors import CompressWarning, InputError, UsageError
from compressor.export import export_model
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.inputs import random_check_batches
from compressor.runtime import MultiLabelClassifier
from compressor.tasks import TASKS, count_shared, require_task, split_rows
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.metrics import compare, score_answers
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


multilabel = TASKS["multilabel"]
NAMES = ["a", "b", "c", "d"]
TEXTS = toy.sentences(12, seed=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint of four labels."""
    root = tmp_path_factory.mktemp("multilabel")
    directory = toy.first_layers(save_scorer(root / "m", 4), root / "model")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config |= {
        "problem_type": "multi_label_classification",
        "id2label": dict(enumerate(NAMES)), "label2id": {n: i for i, n in enumerate(NAMES)},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return open_checkpoint(str(directory))


def test_f1_is_scikit_learns_also_in_every_draw():
    rng = np.random.default_rng(0)
    gold = rng.random((40, 4)) < [0.5, 0.4, 0.2, 0.05]
    dense, pruned = (gold ^ (rng.random((40, 4)) < share) for share in (0.1, 0.3))
    texts = [
        ["\t".join(n for n, given in zip(NAMES, row, strict=True) if given) for row in table]
        for table in (dense, pruned, gold)
    ]
    quality = score_answers("multilabel", texts[0], texts[2], NAMES)
    wanted = {
        f"{kind}_f1": 100 * f1_score(gold, dense, average=kind) for kind in ("micro", "macro")
    }
    assert quality.metrics == pytest.approx(wanted)
    drawn = np.random.default_rng(3).integers(40, size=(30, 40))
    found = {x.metric: x for x in compare("multilabel", *texts, resamples=30, seed=3)}
    differences = [
        100 * (f1_score(gold[i], pruned[i], average="micro")
               - f1_score(gold[i], dense[i], average="micro"))
        for i in drawn
    ]  # fmt: skip
    assert found["micro_f1"].interval == pytest.approx(np.quantile(differences, [0.025, 0.975]))
    nothing = score_answers("multilabel", [""] * 3, ["", "", ""], NAMES)
    assert nothing.metrics == {"micro_f1": 0, "macro_f1": 0}


@torch.no_grad()
def test_loss_divergence_and_answers(model, tmp_path):
    """By NumPy, of each label as a probability of its own."""
    lines = [f"{text}\t{'|'.join(NAMES[: i % 4])}" for i, text in enumerate(TEXTS)]
    rows = multilabel.read_rows(write(tmp_path / "a.tsv", "\n".join(["text\tlabel", *lines])),
                          labels=NAMES)  # fmt: skip
    assert multilabel.label_values(rows)[:3] == [(0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0)]
    examples = multilabel.encode(rows, model.tokenizer, 32)
    (batch,) = multilabel.batches(examples, model.model, batch_tokens=None)
    logits = multilabel.logits(model.model, batch)
    given = 1 / (1 + np.exp(-logits.double().numpy()))
    right = np.array([[n in rows.targets[r].split("\t") for n in NAMES] for r in batch.rows])
    loss = -np.log(np.where(right, given, 1 - given)).sum()
    assert float(multilabel.loss(model.model, batch)) == pytest.approx(loss, rel=1e-5)
    assert multilabel.term_mask(batch).shape == (12,)
    other = logits + torch.linspace(-1, 1, 48).reshape(12, 4)
    changed = 1 / (1 + np.exp(-other.double().numpy()))
    kl = given * np.log(given / changed) + (1 - given) * np.log((1 - given) / (1 - changed))
    divergence = multilabel.divergence(
        multilabel.predictions(other), multilabel.predictions(logits)
    )
    assert float(divergence) == pytest.approx(kl.sum(), rel=1e-4)
    answers = multilabel.predict(model.model, batch, model.tokenizer)
    assert answers == ["\t".join(np.array(NAMES)[row > 0.5]) for row in given]
    assert len({*answers}) > 1


def test_which_checkpoints_have_several_labels(model, tmp_path):
    assert model.task == "multilabel"
    assert require_task(model) is multilabel
    with raises(InputError, "classifier-unsupported") as caught:
        require_task(open_checkpoint(model.name, task="classification"))
    assert "--task multilabel" in str(caught.value)
    with raises(InputError, "not-multilabel"):
        require_task(open_checkpoint(str(save_scorer(tmp_path / "m")), task="multilabel"))


@pytest.mark.slow
@torch.no_grad()
def test_an_exported_model_gives_the_labels_of_pytorch(model, tmp_path, capsys):
    probe = random_check_batches(model, multilabel)
    out: Path = tmp_path / "out"
    export_model(Network(model, model.model, model.mask, None), probe, [], out, [])
    classifier = MultiLabelClassifier(out, verify=False)
    encoded = [model.tokenizer(t, return_tensors="pt") for t in TEXTS]
    logits = [model.model(e["input_ids"], e["attention_mask"]).logits[0] for e in encoded]
    expected = torch.stack(logits).double().sigmoid().numpy()
    np.testing.assert_allclose(classifier.probabilities(TEXTS), expected, atol=1e-5)
    labels = [[n for n, p in zip(NAMES, row, strict=True) if p > 0.5] for row in expected]
    assert classifier.classify(TEXTS) == labels
    lines = write(tmp_path / "lines.txt", "\n".join([*TEXTS, ""]) + "\n")
    invoke("classify", out, lines, "--no-verify", "-o", tmp_path / "plain")
    written = (tmp_path / "plain").read_text(encoding="utf-8").split("\n")[:-1]
    assert written == ["\t".join(row) for row in [*labels, []]]
    invoke(
        "classify", out, lines, "--no-verify", "--probabilities", "--jsonl", "-o", tmp_path / "json"
    )
    first = json.loads((tmp_path / "json").read_text(encoding="utf-8").splitlines()[0])
    assert first["labels"] == labels[0]
    assert list(first["probabilities"]) == NAMES
