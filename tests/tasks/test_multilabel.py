"""Any number of labels per text: rows, loss, metrics, and a model exported and asked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from compressor.errors import InputError
from compressor.export import export_model
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.inputs import synthetic_probe
from compressor.runtime import MultiLabelClassifier
from compressor.tasks import TASKS, require_task
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.metrics import compare, score_answers
from tests.helpers.rows import write
from tests.helpers.score_models import save_scorer

task = TASKS["multilabel"]
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
    rows = task.read_rows(write(tmp_path / "a.tsv", "\n".join(["text\tlabel", *lines])),
                          labels=NAMES)  # fmt: skip
    assert task.label_values(rows)[:3] == [(0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0)]
    examples = task.encode(rows, model.tokenizer, 32)
    (batch,) = task.batches(examples, model.model, batch_tokens=None)
    logits = task.logits(model.model, batch)
    given = 1 / (1 + np.exp(-logits.double().numpy()))
    right = np.array([[n in rows.targets[r].split("\t") for n in NAMES] for r in batch.rows])
    loss = -np.log(np.where(right, given, 1 - given)).sum()
    assert float(task.loss(model.model, batch)) == pytest.approx(loss, rel=1e-5)
    assert task.term_mask(batch).shape == (12,)
    other = logits + torch.linspace(-1, 1, 48).reshape(12, 4)
    changed = 1 / (1 + np.exp(-other.double().numpy()))
    kl = given * np.log(given / changed) + (1 - given) * np.log((1 - given) / (1 - changed))
    divergence = task.divergence(task.predictions(other), task.predictions(logits))
    assert float(divergence) == pytest.approx(kl.sum(), rel=1e-4)
    answers = task.predict(model.model, batch, model.tokenizer)
    assert answers == ["\t".join(np.array(NAMES)[row > 0.5]) for row in given]
    assert len({*answers}) > 1


def test_which_checkpoints_have_several_labels(model, tmp_path):
    assert model.task == "multilabel"
    assert require_task(model) is task
    with raises(InputError, "classifier-unsupported") as caught:
        require_task(open_checkpoint(model.name, task="classification"))
    assert "--task multilabel" in str(caught.value)
    with raises(InputError, "not-multilabel"):
        require_task(open_checkpoint(str(save_scorer(tmp_path / "m")), task="multilabel"))


@pytest.mark.slow
@torch.no_grad()
def test_an_exported_model_gives_the_labels_of_pytorch(model, tmp_path, capsys):
    probe = synthetic_probe(model, task)
    out: Path = tmp_path / "out"
    export_model(Network(model, model.model, model.mask, None), probe.batches, probe.texts, out, [])
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
