"""Numbers, embeddings and several labels per text: queries, losses, answers, whose task it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from compressor.errors import CompressWarning, InputError, UsageError
from compressor.export.task_graphs import Network, export_model
from compressor.model.checkpoint import open_checkpoint
from compressor.runtime import MultiLabelClassifier
from compressor.tasks import TASKS, count_shared, require_task, split_rows
from compressor.tasks.opened import random_check_batches
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.files import write
from tests.helpers.heads import save_scorer, write_queries, write_scores
from tests.helpers.sentence_encoders import save_encoder, write_pairs, write_texts

regression, reranking, multilabel = (TASKS[x] for x in ("regression", "reranking", "multilabel"))
embedding = TASKS["embedding"]
NAMES = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Checkpoints with one output and two, a sentence encoder, and one with four labels."""
    root = tmp_path_factory.mktemp("models")
    opened = {n: open_checkpoint(str(save_scorer(root / str(n), n))) for n in (1, 2)}
    opened["encoder"] = open_checkpoint(str(save_encoder(root / "encoder")))
    directory = toy.first_layers(save_scorer(root / "m", 4), root / "multilabel")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config |= {
        "problem_type": "multi_label_classification",
        "id2label": dict(enumerate(NAMES)), "label2id": {n: i for i, n in enumerate(NAMES)},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return opened | {"multilabel": open_checkpoint(str(directory))}


def batches_of(task, checkpoint, path: Path | str, batch_size: int | None = None, labels=None):
    rows = task.read_rows(path, labels=labels)
    examples = task.encode(rows, checkpoint.tokenizer, checkpoint.max_source_tokens)
    batches = task.batches(examples, checkpoint.model, batch_tokens=None, batch_size=batch_size)
    return rows, examples, batches


def test_queries_without_a_relevant_text_are_left_out(tmp_path):
    path = write(tmp_path / "a.tsv", "query\ttext\tlabel\nq\ta\t0\nq\tb\t2\nr\tc\t0\ns\td\t1\n")
    for task in (reranking, embedding):
        rows = task.read_rows(path)
        assert rows.counted == (2, "queries")
        assert task.metrics_of(rows) == ("ndcg@10", "mrr@10", "map")
        with pytest.warns(CompressWarning, match="1 of 3 queries have no relevant text"):
            task.require_answers(rows)
        with raises(InputError, "too-few-queries"):
            task.require_answers(task.read_rows(path, limit=3))


def test_embeddings_are_measured_on_pairs_or_queries(tmp_path):
    """The columns of other rows that options name are not those of queries."""
    columns = {"text_column": "text", "text_pair_column": "query", "label_column": "label"}
    pairs = embedding.read_rows(write_queries(tmp_path / "a.tsv", 6), **columns)
    assert not pairs.ranked
    assert embedding.metrics_of(pairs) == ("spearman",)
    with raises(InputError, "pairs-missing"):
        embedding.require_answers(embedding.read_rows(write(tmp_path / "a.txt", "a\n")))


def test_a_query_is_on_one_side_of_a_split(tmp_path):
    path = write_queries(tmp_path / "a.tsv", 12)
    rows = reranking.read_rows(path)
    for seed in range(3):
        first, second = split_rows(rows, seed)
        assert set(first.sources) & set(second.sources) == set()
        assert sorted(first.targets + second.targets) == sorted(rows.targets)
        assert {first.ranked, second.ranked} == {True}
    # Another text of a known query is not new to the model.
    content = f"query\ttext\tlabel\n{rows.sources[0]}\tw3 w4 w5 w6\t1\nw9\tw3\t0\n"
    assert count_shared(reranking.read_rows(write(tmp_path / "b.tsv", content)), rows) == 1


@torch.no_grad()
def test_the_loss_of_regression_is_half_the_squared_error(models, tmp_path):
    model = models[1].model
    rows, _, (batch,) = batches_of(regression, models[1], write_scores(tmp_path / "a.tsv"))
    found = model(**batch.inputs()).logits[:, 0].numpy()
    right = np.array([float(rows.targets[row]) for row in batch.rows])
    loss = float(regression.loss(model, batch))
    assert loss == pytest.approx(((found - right) ** 2).sum() / 2, rel=1e-5)
    answers = regression.predict(model, batch, None)
    np.testing.assert_allclose([float(x) for x in answers], found, rtol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_loss_of_reranking_is_binary_cross_entropy(outputs: int, models, tmp_path):
    """By NumPy; with two classes the softmax's second is the probability."""
    model, path = models[outputs].model, write_queries(tmp_path / "a.tsv")
    rows, _, (batch,) = batches_of(reranking, models[outputs], path)
    logits = model(**batch.inputs()).logits.double().numpy()
    relevant = 1 / (1 + np.exp(-logits[:, 0]))
    if outputs == 2:
        relevant = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True))[:, 1]
    labels = np.array([rows.targets[row] != "0" for row in batch.rows])
    wanted = -np.log(np.where(labels, relevant, 1 - relevant)).sum()
    assert float(reranking.loss(model, batch)) == pytest.approx(wanted, rel=1e-5)
    answers = [float(x) for x in reranking.predict(model, batch, None)]
    np.testing.assert_allclose(answers, np.log(relevant / (1 - relevant)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_distillation_matches_numbers_and_unit_vectors():
    first, second = torch.tensor([[1.0, 3.0], [0.5, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 4.0]])
    ranked = [reranking.predictions(x) for x in (first, second)]  # 2 and -0.5; 1 and 2
    assert float(reranking.divergence(*ranked)) == pytest.approx((1 + 2.5**2) / 2)
    numbers = [regression.predictions(x[:, :1]) for x in (first, second)]
    assert float(regression.divergence(*numbers)) == pytest.approx((1 + 1.5**2) / 2)
    rng = np.random.default_rng(0)
    found, wanted = (rng.normal(size=(5, 8)).astype(np.float32) for _ in range(2))
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    expected = float((1 - (found * wanted).sum(1) / lengths).sum())  # 1 minus the cosine
    units = [torch.tensor(x / np.linalg.norm(x, axis=1, keepdims=True)) for x in (found, wanted)]
    divergence = embedding.divergence(*map(embedding.predictions, units))
    assert float(divergence) == pytest.approx(expected, rel=1e-5)


def test_which_task_a_checkpoint_is_for(models):
    for model, task in ((1, "regression"), (2, "classification"), ("multilabel", "multilabel")):
        assert models[model].task == task
        assert require_task(models[model]).name == task
    for model, task, advice in (
        (1, "reranking", None),
        (2, "reranking", None),
        (1, "classification", "--task regression or --task reranking"),
        (2, "regression", "--task classification or --task reranking or --task multilabel"),
        (2, "multilabel", None),
        (1, "multilabel", "--task regression or --task reranking"),
        ("multilabel", "classification", "or --task multilabel"),
    ):
        opened = open_checkpoint(str(models[model].directory), task=task)
        if advice is None:
            assert require_task(opened).name == task
            continue
        with raises(InputError, "outputs-of-another-task") as caught:
            require_task(opened)
        assert str(caught.value).endswith(advice)
    with raises(UsageError, "task-of-another-model"):
        require_task(open_checkpoint(str(models[1].directory), task="translation"))


def test_each_text_of_a_pair_is_a_row_to_embed(models, tmp_path):
    encoder = models["encoder"]
    rows, examples, _ = batches_of(embedding, encoder, write_pairs(tmp_path / "a.tsv", rows=9))
    texts = [encoder.tokenizer.decode(x.source, skip_special_tokens=True) for x in examples]
    assert texts == [*rows.sources, *rows.pairs]
    assert [x.row for x in examples] == list(range(18))


@torch.no_grad()
def test_the_loss_of_embedding_is_the_part_in_a_fixed_random_direction(models, tmp_path):
    """By NumPy; the same in every batch, another direction for every row."""
    encoder, path = models["encoder"], write_texts(tmp_path / "a.txt", 12)
    model, (_, examples, batches) = encoder.model, batches_of(embedding, encoder, path, 5)
    parts, directions = 0.0, []
    for batch in batches:
        for row, vector in zip(batch.rows, model(**batch.inputs()).logits, strict=True):
            drawn = torch.randn(32, generator=torch.Generator().manual_seed(row)).numpy()
            parts += float(drawn @ (vector.numpy() / np.linalg.norm(vector.numpy())))
            directions.append(drawn)
    for some in (batches, embedding.batches(examples, model, batch_size=1)):
        total = sum(float(embedding.loss(model, batch)) for batch in some)
        assert total == pytest.approx(parts, abs=1e-4)
    assert abs(np.corrcoef(directions) - np.eye(12)).max() < 0.8


@torch.no_grad()
def test_loss_divergence_and_answers_of_several_labels(models, tmp_path):
    """By NumPy, of each label as a probability of its own."""
    lines = [f"{text}\t{'|'.join(NAMES[: i % 4])}" for i, text in enumerate(toy.sentences(12))]
    path, model = (
        write(tmp_path / "a.tsv", "\n".join(["text\tlabel", *lines])),
        models["multilabel"],
    )
    rows, _, (batch,) = batches_of(multilabel, model, path, labels=NAMES)
    assert multilabel.label_values(rows)[:3] == [(0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0)]
    logits = multilabel.logits(model.model, batch)
    given = 1 / (1 + np.exp(-logits.double().numpy()))
    right = np.array([[n in rows.targets[r].split("\t") for n in NAMES] for r in batch.rows])
    loss = -np.log(np.where(right, given, 1 - given)).sum()
    assert float(multilabel.loss(model.model, batch)) == pytest.approx(loss, rel=1e-5)
    assert multilabel.term_mask(batch).shape == (12,)
    other = logits + torch.linspace(-1, 1, 48).reshape(12, 4)
    changed = 1 / (1 + np.exp(-other.double().numpy()))
    kl = given * np.log(given / changed) + (1 - given) * np.log((1 - given) / (1 - changed))
    divergence = multilabel.divergence(*map(multilabel.predictions, (other, logits)))
    assert float(divergence) == pytest.approx(kl.sum(), rel=1e-4)
    answers = multilabel.predict(model.model, batch, model.tokenizer)
    assert answers == ["\t".join(np.array(NAMES)[row > 0.5]) for row in given]
    assert len({*answers}) > 1


@pytest.mark.slow
@torch.no_grad()
def test_an_exported_model_gives_the_labels_of_pytorch(models, tmp_path):
    model, out, texts = models["multilabel"], tmp_path / "out", toy.sentences(12, seed=3)
    probe = random_check_batches(model, multilabel)
    export_model(Network(model, model.model, model.mask, None), probe, [], out, [])
    encoded = [model.tokenizer(text, return_tensors="pt") for text in texts]
    logits = [model.model(e["input_ids"], e["attention_mask"]).logits[0] for e in encoded]
    expected = torch.stack(logits).double().sigmoid().numpy()
    classifier = MultiLabelClassifier(out, verify=False)
    np.testing.assert_allclose(classifier.probabilities(texts), expected, atol=1e-5)
    labels = [[n for n, p in zip(NAMES, row, strict=True) if p > 0.5] for row in expected]
    assert classifier.classify(texts) == labels
    lines = write(tmp_path / "lines.txt", "\n".join([*texts, ""]) + "\n")
    command = ("classify", out, lines, "--no-verify")
    invoke(*command, "-o", tmp_path / "plain")
    written = (tmp_path / "plain").read_text(encoding="utf-8").split("\n")[:-1]
    assert written == ["\t".join(row) for row in [*labels, []]]
    invoke(*command, "--probabilities", "--jsonl", "-o", tmp_path / "json")
    first = json.loads((tmp_path / "json").read_text(encoding="utf-8").splitlines()[0])
    assert (first["labels"], list(first["probabilities"])) == (labels[0], NAMES)
