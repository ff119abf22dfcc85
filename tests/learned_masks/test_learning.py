"""Masks learned from tiny models: exact counts, the right units, the same from the same seed."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import pytest
import torch

from compressor.errors import UsageError
from compressor.learned_masks import Subset
from compressor.learned_masks.hard_concrete_gates import open_probability
from compressor.model.layers import find_sublayers
from compressor.model.sublayers import Mask, belongs
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import TASKS
from compressor.training.data import hold_out
from tests.helpers.batches import examples
from tests.helpers.errors import raises
from tests.helpers.stages import MAKERS, learned_by, learning, trained
from tests.helpers.tiny import STRUCTURES, tiny_model

pytestmark = pytest.mark.slow


def test_the_lagrangian_brings_heads_and_neurons_to_their_counts():
    keep, multiples = {"heads": 7, "neurons": 64}, {"heads": 1, "neurons": 8}
    rows = examples("bert", 64)
    job = learning("bert", examples=rows, keep=keep, batch_size=8, multiples=multiples)
    learned = learned_by("hard-concrete", job, epochs=25, patience=99)
    for units, wanted, slack in (("heads", 7, 0.5), ("neurons", 64, 0.02 * 144)):
        values = [v for n, row in learned.scores.values.items() if belongs(n, units) for v in row]
        expected = open_probability(torch.tensor(values)).sum()
        assert expected.item() == pytest.approx(wanted, abs=slack)
        assert learned.mask.count(units) == wanted
    assert {learned.mask.counts()[f"encoder_ffn.{i}"] % 8 for i in range(3)} == {0}
    assert "had not settled" not in learned.text


@pytest.mark.parametrize(
    ("method", "keep", "least"),
    [
        *((method, {"heads": 6}, 6) for method in MAKERS),
        ("hard-concrete", {"neurons": 72}, 60),  # of 72; by chance 36
    ],
)
def test_units_that_do_nothing_go_first(method: str, keep: dict[str, int], least: int):
    """Their columns of the output projection are zero, so no loss can depend on them."""
    model, rng = tiny_model("distilbert"), random.Random(4)
    layers = [layer for layer in find_sublayers(model) if belongs(layer.name, *keep)]
    useless = {(x.name, unit) for x in layers for unit in rng.sample(range(x.units), x.units // 2)}
    with torch.no_grad():
        model.classifier.weight.mul_(20)  # so sure of its answers that any change is for the worse
        for layer in layers:
            weight = model.get_submodule(layer.output).weight
            units = weight.view(-1, layer.units, layer.unit_width)
            units[:, [unit for name, unit in useless if name == layer.name]] = 0
    task, rows = TASKS["classification"], []
    for example in examples("distilbert", 112):  # with what the model itself predicts as labels
        (batch,) = task.batches([example], model)
        with torch.no_grad():
            label = int(task.logits(model, batch).argmax(-1))
        rows.append(dataclasses.replace(example, target=(label,)))
    job = learning(
        "distilbert", model=model, examples=rows, keep=keep, batch_size=16,
        multiples={"heads": 1, "neurons": 1},
    )  # fmt: skip
    mask = learned_by(method, job, epochs=12).mask
    removed = {(n, u) for n, flags in mask.keep.items() for u, flag in enumerate(flags) if not flag}
    assert len(removed) == len(useless)
    assert len(removed & useless) >= least


@pytest.mark.parametrize("method", MAKERS)
@pytest.mark.parametrize(
    ("keep", "floor"),
    [({"heads": 8}, 1), ({"heads": 9}, 0), ({"encoder_self": 3, "cross": 6}, 1), ({"cross": 0}, 0)],
)
def test_head_counts_are_exact(method: str, keep: dict[str, int], floor: int):
    job = learning("marian", keep=keep)
    job = dataclasses.replace(job, floors=dict.fromkeys(job.floors, floor))
    mask = learned_by(method, job, epochs=1).mask
    for kind in mask.kinds():
        if "heads" not in keep:
            assert mask.count(kind) == keep.get(kind, mask.total(kind))
    assert mask.count() == keep.get("heads", mask.count())
    assert min(mask.counts().values()) >= floor


def changed(model, before: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, x in model.state_dict().items() if not torch.equal(x, before[name])]


@pytest.mark.parametrize(
    ("method", "weights", "keep"),
    [
        ("hard-concrete", "all", {"encoder_self": 5, "neurons": 64}),
        ("subset", "encoder", {"encoder_self": 5}),
        ("subset", "none", {"encoder_self": 5}),
    ],
)
@pytest.mark.parametrize("name", STRUCTURES)
def test_every_architecture_learns_and_the_given_model_stays(name: str, method, weights, keep):
    job = learning(name, keep=keep)
    before = {key: value.clone() for key, value in job.model.state_dict().items()}
    learned = learned_by(method, job, **trained(weights))
    counts = learned.mask.counts()
    assert learned.mask.count("encoder_self") == 5
    if "neurons" in keep:
        assert 64 <= learned.mask.count("neurons") < 64 + 32
        assert all(counts[f"encoder_ffn.{index}"] in (0, 32, 48) for index in range(2))
    assert {n: len(v) for n, v in learned.scores.values.items()} == Mask.full(job.layers).counts()
    assert not changed(job.model, before)
    if weights == "encoder":  # not what is outside, nor what both sides of a translator share
        outside = ("decoder", "classifier", "lm_head", "shared", "embed_tokens")
        tuned = changed(learned.model, before)
        assert tuned
        assert not any(part in name for name in tuned for part in outside)
    assert all(p.grad is None for p in job.model.parameters())
    assert (learned.model is job.model) == (weights == "none")


def test_a_larger_penalty_leaves_fewer_heads():
    job = learning("bert", keep=None, batch_size=8)
    counts = []
    for penalty in (1e-6, 0.25, 30.0):
        given = dataclasses.replace(job, penalty=penalty)
        learned = learned_by("hard-concrete", given, epochs=16)
        counts.append(learned.mask.count())
        kept_all = learned.mask.count() == learned.mask.total()
        assert ("no head was removed; a larger penalty" in learned.text) == kept_all
    assert counts[0] > counts[1] > counts[2] == 0
    floored = dataclasses.replace(job, floors={"encoder_self": 1}, penalty=30.0)
    assert learned_by("hard-concrete", floored, epochs=16).mask.counts() == {
        "encoder_self.0": 1,
        "encoder_self.1": 1,
        "encoder_self.2": 1,
    }


def test_the_text_tells_the_losses_of_soft_gates_and_of_the_mask():
    """The loss with the final mask is computed here once more, on the held-out rows."""
    job = learning("bert")
    learned = learned_by("subset", job)
    _, held = hold_out(job.examples, job.seed)
    total = 0.0
    for batch in job.task.batches(held, job.model):
        with torch.no_grad(), gated(job.model, job.layers, mask_gates(learned.mask)):
            total += job.task.loss(job.model, batch).item()
    assert f"{total / len(held):.4f} with the final mask" in learned.text
    assert learned.scores.cost["training_steps"] == 2  # 2 epochs of 32 rows


def same(one, other) -> bool:
    weights = [x.model.state_dict() for x in (one, other)]
    return (one.mask, one.scores.values, one.text) == (
        other.mask,
        other.scores.values,
        other.text,
    ) and all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


class Stopped(Exception):
    """What interrupts a training in the next test."""


def stop(at: int):
    """A progress that stops at such a call."""
    calls = itertools.count(1)

    def progress(done: int, total: int) -> None:
        if next(calls) == at:
            raise Stopped

    return progress


@pytest.mark.parametrize("method", MAKERS)
def test_the_seed_decides_in_a_stopped_training_too(method: str, tmp_path: Path, monkeypatch):
    """3 epochs of 4 steps for the gates, 1 for the weights; stopped within each."""
    monkeypatch.setattr("compressor.training.loop.SAVE_SECONDS", 0.0)
    job, options = learning("bert", batch_size=8), trained("all") | {"epochs": 4, "patience": 99}
    whole = learned_by(method, job, **options)
    other = learned_by(method, dataclasses.replace(job, seed=1), **options)
    assert other.scores.values != whole.scores.values
    for at in (5, 14):
        stored = dataclasses.replace(job, state=tmp_path / f"{at}.safetensors")
        with pytest.raises(Stopped):
            learned_by(method, dataclasses.replace(stored, progress=stop(at)), **options)
        torch.manual_seed(99)  # what is random elsewhere must not matter
        assert same(whole, learned_by(method, stored, **options))
    assert same(whole, learned_by(method, stored, **options))  # once more, when all is done


def test_what_cannot_be_learned():
    with raises(UsageError, "too-few-epochs"):
        learned_by("subset", learning("bert"), train_weights="all", epochs=1)
    many = Mask({f"encoder_ffn.{i}": (True,) * 700 for i in range(3)})
    with raises(UsageError, "method-for-few-units"):
        Subset().check_size({"neurons": 1000}, many)
