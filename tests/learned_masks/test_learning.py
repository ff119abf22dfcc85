"""Learned masks of tiny models: exact counts, the same mask again, and a given model untouched."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from compressor.errors import UsageError
from compressor.learned_masks import Learning, hard_concrete_distribution, learn
from compressor.learned_masks.base import distance_from_hard
from compressor.learned_masks.hard_concrete import HardConcrete
from compressor.learned_masks.lagrangian import SQUARE, WARMUP, Lagrangian
from compressor.learned_masks.layout import Layout
from compressor.learned_masks.problem import trained_parameters
from compressor.learned_masks.relaxation import UnitGroup, relaxed_subset
from compressor.learned_masks.subset import Subset
from compressor.model.architectures import find_sublayers
from compressor.model.sublayers import Mask, belongs, units_of
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import Example, get_task
from compressor.training import hold_out, loop
from tests.helpers.errors import raises
from tests.helpers.tiny import BUILDERS, LABELS, TRANSLATORS, tiny_model

pytestmark = pytest.mark.slow

MAKERS = ("hard-concrete", "subset")


def examples(name: str, rows: int = 40, seed: int = 0) -> list[Example]:
    rng = random.Random(seed)

    def tokens() -> tuple[int, ...]:
        return tuple(rng.randrange(6, 60) for _ in range(rng.choice([2, 3, 5, 8])))

    translation = name in TRANSLATORS
    return [
        Example(row, tokens(), tokens() if translation else (rng.randrange(LABELS),))
        for row in range(rows)
    ]


def own_answers(model, task, rows: list[Example]) -> list[Example]:
    """The rows with what the model itself predicts as labels: every useful head is needed."""
    answered = []
    for example in rows:
        (batch,) = task.batches([example], model)
        with torch.no_grad():
            found = task.logits(model, batch).argmax(-1)
        answered.append(dataclasses.replace(example, target=(int(found),)))
    return answered


def learning(name: str, **options) -> Learning:
    model = options.pop("model", None) or tiny_model(name)
    keep = options.setdefault("keep", {"heads": 5})
    units = {"heads"} if keep is None else {units_of(pool) for pool in keep}
    layers = [layer for layer in find_sublayers(model) if units_of(layer.kind) in units]
    defaults = {
        "model": model,
        "layers": layers,
        "examples": options.pop("examples", None) or examples(name),
        "task": get_task("translation" if name in TRANSLATORS else "classification"),
        "floors": dict.fromkeys(Mask.full(layers).kinds(), 0),
        "epochs": 2,
    }
    return Learning(**defaults | options)


def test_layout_puts_heads_of_counted_kinds_into_their_pools():
    layers = find_sublayers(tiny_model("marian"))[:8]  # 2 + 3 + 3 layers of 4 heads
    floors = {"encoder_self": 9, "decoder_self": 1, "cross": 2}
    layout = Layout(layers, {"encoder_self": 8, "cross": 6}, floors)
    assert layout.total == 20
    assert {n: len(p.members) for n, p in layout.pools.items()} == {"encoder_self": 8, "cross": 12}
    assert [group.count for group in layout.layer_groups] == [4, 4, 2, 2, 2]
    values = torch.arange(20.0)
    parts = layout.split(values)
    assert list(parts) == ["encoder_self.0", "encoder_self.1", "cross.0", "cross.1", "cross.2"]
    mask = layout.exact_mask(values)
    assert mask.counts() == {
        "encoder_self.0": 4, "encoder_self.1": 4, "decoder_self.0": 4, "decoder_self.1": 4,
        "decoder_self.2": 4, "cross.0": 2, "cross.1": 2, "cross.2": 2,
    }  # fmt: skip
    assert mask.kept("cross.0") == [2, 3]
    assert layout.flat(mask).tolist() == [1.0] * 8 + [0.0, 0.0, 1.0, 1.0] * 3
    scores = layout.score_values(values)
    assert set(scores["decoder_self.1"]) == {19.0}
    assert scores["cross.2"] == (16.0, 17.0, 18.0, 19.0)


def test_layout_puts_heads_and_neurons_into_pools_of_their_own():
    layers = find_sublayers(tiny_model("marian"))  # 2 x 48 and 3 x 40 neurons
    floors = dict.fromkeys(Mask.full(layers).kinds(), 0) | {"encoder_ffn": 20}
    multiples = {"heads": 1, "neurons": 8}
    layout = Layout(layers, {"encoder_ffn": 49, "cross": 6}, floors, multiples)
    assert layout.total == 2 * 48 + 3 * 4
    assert {n: len(p.members) for n, p in layout.pools.items()} == {"encoder_ffn": 96, "cross": 12}
    values = torch.cat([torch.arange(12.0), torch.arange(96.0)])  # cross-attention comes first
    assert list(layout.split(values)) == [
        "cross.0", "cross.1", "cross.2", "encoder_ffn.0", "encoder_ffn.1"
    ]  # fmt: skip
    mask = layout.exact_mask(values)
    # 24 are the least multiple of 8 above the floor; 24 + 24 would be less than the 49 wanted.
    assert mask.kept("encoder_ffn.0") == list(range(24, 48))
    assert mask.kept("encoder_ffn.1") == list(range(16, 48))
    assert mask.count("cross") == 6
    assert mask.count("decoder_ffn") == 120
    flat = layout.flat(mask)
    assert flat[:12].tolist() == [0.0] * 6 + [1.0] * 6
    assert flat[12:].sum().item() == 56
    # Shares of gates as in training: a sublayer with less than its floor counts with its floor.
    shares = torch.cat([torch.full((12,), 0.5), torch.full((48,), 0.25), torch.full((48,), 0.75)])
    assert layout.count(shares).tolist() == [20 + 36, 6]


def test_without_a_count_open_heads_stay_and_floors_are_filled_up():
    layers = find_sublayers(tiny_model("bert"))[:3]
    layout = Layout(layers, None, {"encoder_self": 1})
    values = torch.tensor([-1.0, -2.0, -0.5, -3.0, 2.0, -1.0, 1.0, -9.0, 1.0, 1.0, 1.0, 1.0])
    mask = layout.mask_of(values, values > 0)
    assert [mask.kept(layer.name) for layer in layers] == [[2], [0, 2], [0, 1, 2, 3]]


def test_multipliers_climb_while_there_are_too_many_heads_and_pull_only_on_open_gates():
    lagrangian = Lagrangian([UnitGroup((0, 1, 2, 3), 2)], torch.zeros(4, dtype=torch.long), "cpu")
    lagrangian.observe(torch.tensor([0.4, -0.9, 0.1, 0.1]))  # a batch in two parts, whose
    lagrangian.observe(torch.tensor([0.1, 0.4, 0.0, 0.0]))  # gradients are those of one in sum
    lagrangian.take_step()
    assert lagrangian.sensitivity.item() == pytest.approx(0.3)
    expected = torch.tensor([3.0], requires_grad=True)
    value = lagrangian.penalty(expected, progress=1.0)
    value.backward()
    assert value.item() == 0
    # By hand: excess (3 - 2) / 4, unit 0.3 * 4; d/ds of 5 x^2, and minus x and x^2 (ascent).
    assert expected.grad is not None
    assert lagrangian.multipliers.grad is not None
    np.testing.assert_allclose(expected.grad, [1.2 * 2 * SQUARE * 0.25 / 4], rtol=1e-6)
    np.testing.assert_allclose(lagrangian.multipliers.grad, [[-1.2 * 0.25, -1.2 * 0.0625]])


def test_each_pool_is_pulled_as_strongly_as_the_loss_cares_for_its_gates():
    """A neuron's gradient is a hundredth of a head's; by hand, as above, for each pool alone."""
    pools = [UnitGroup((0, 2), 1), UnitGroup((1, 3, 4, 5), 2)]
    lagrangian = Lagrangian(pools, torch.tensor([0, 1, 0, 1, 1, 1]), "cpu")
    gradient = torch.tensor([0.3, -0.004, -0.5, 0.002, 0.001, -0.001])
    lagrangian.observe(gradient)
    lagrangian.take_step()
    np.testing.assert_allclose(lagrangian.sensitivity, [0.4, 0.002], rtol=1e-6)
    lagrangian.observe(2 * gradient)
    lagrangian.take_step()  # nine parts of the old mean, one of the new
    np.testing.assert_allclose(lagrangian.sensitivity, [0.44, 0.0022], rtol=1e-5)
    expected = torch.tensor([2.0, 3.0], requires_grad=True)
    lagrangian.penalty(expected, progress=1.0).backward()
    pull = [0.44 * 2 * 2 * SQUARE * 0.5 / 2, 0.0022 * 4 * 2 * SQUARE * 0.25 / 4]
    np.testing.assert_allclose(expected.grad, pull, rtol=1e-5)


def test_a_batch_in_parts_teaches_hard_concrete_the_same(monkeypatch):
    """Long rows are trained on in parts, for memory; multipliers and gates must not notice."""
    found = []
    for most in (10**6, 20):
        monkeypatch.setattr(loop, "most_tokens", lambda model, most=most: most)
        lines: list[str] = []
        job = learning("bert", examples=examples("bert", 48), batch_size=8, epochs=4, patience=99)
        learned = learn("hard-concrete", dataclasses.replace(job, report=lines.append))
        found.append((learned.mask, learned.scores.values, lines))
    (whole, values, told), (parts, others, heard) = found
    assert parts == whole
    for name, row in values.items():
        np.testing.assert_allclose(others[name], row, atol=1e-3)
    assert [line.split("lambda")[1] for line in told] == [x.split("lambda")[1] for x in heard]


def test_with_a_penalty_a_gate_is_what_it_is_more_probably():
    """At log alpha -0.6 a gate is not 0 in 55 % of the draws, but 1 in 20 % only."""
    layers = find_sublayers(tiny_model("bert"))[:3]
    gates = HardConcrete(Layout(layers, None, {"encoder_self": 0}), penalty=0.1)
    with torch.no_grad():
        gates.log_alpha.copy_(torch.tensor([-0.6, 0.1, -0.1, 2.0] * 3))
    drawn = hard_concrete_distribution.sample(torch.full((4000,), -0.6), torch.rand(4000))
    assert (drawn == 0).sum() > 2 * (drawn == 1).sum()
    assert [gates.mask().kept(layer.name) for layer in layers] == [[1, 3]] * 3


def test_the_target_falls_to_the_wanted_count_and_stays():
    pools = [UnitGroup(tuple(range(10)), 4), UnitGroup((10, 11), 2)]
    lagrangian = Lagrangian(pools, torch.tensor([0] * 10 + [1] * 2), "cpu")
    found = [lagrangian.target(p).tolist() for p in (0.0, WARMUP / 2, WARMUP, 1.0)]
    np.testing.assert_allclose(found, [[10, 2], [7, 2], [4, 2], [4, 2]])
    assert not lagrangian.reached(torch.tensor([4.0, 2.0]), WARMUP / 2)
    assert lagrangian.reached(torch.tensor([4.4, 2.0]), 1.0)
    assert not lagrangian.reached(torch.tensor([4.6, 2.0]), 1.0)


def test_the_lagrangian_brings_hard_concrete_gates_to_the_wanted_count():
    lines: list[str] = []
    job = learning("bert", examples=examples("bert", 64), batch_size=8, epochs=25, patience=99)
    job = dataclasses.replace(job, report=lines.append)
    learned = learn("hard-concrete", job)
    log_alpha = torch.tensor([v for values in learned.scores.values.values() for v in values])
    assert hard_concrete_distribution.open_probability(log_alpha).sum().item() == pytest.approx(
        5, abs=0.5
    )
    assert learned.mask.count() == 5
    assert "had not settled" not in learned.text
    assert "5.0)" not in lines[0]
    assert "target 5.0" in lines[-1]


def test_the_lagrangian_brings_heads_and_neurons_to_their_counts():
    lines: list[str] = []
    keep = {"heads": 7, "neurons": 64}
    job = learning(
        "bert", examples=examples("bert", 64), keep=keep, batch_size=8, epochs=25, patience=99
    )
    job = dataclasses.replace(job, report=lines.append, multiples={"heads": 1, "neurons": 8})
    learned = learn("hard-concrete", job)
    for units, wanted, slack in (("heads", 7, 0.5), ("neurons", 64, 0.02 * 144)):
        values = [v for n, row in learned.scores.values.items() if belongs(n, units) for v in row]
        expected = hard_concrete_distribution.open_probability(torch.tensor(values)).sum()
        assert expected.item() == pytest.approx(wanted, abs=slack)
        assert learned.mask.count(units) == wanted
    assert {learned.mask.counts()[f"encoder_ffn.{i}"] % 8 for i in range(3)} == {0}
    assert "7 of 12 heads, 64 of 144 neurons kept" in learned.text
    assert "|multiple:8|" in learned.scores.signature
    assert re.search(r"heads expected \(target 7\.0, .* neurons expected \(target 64\.0", lines[-1])


def test_neurons_that_do_nothing_go_first():
    """Their columns of the projection that ends the feed-forward part are zero."""
    model, rng = tiny_model("distilbert"), random.Random(4)
    layers = [layer for layer in find_sublayers(model) if not layer.is_attention]
    useless = {(layer.name, neuron) for layer in layers for neuron in rng.sample(range(48), 24)}
    with torch.no_grad():
        model.classifier.weight.mul_(20)  # so sure of its answers that any change is for the worse
        for layer in layers:
            columns = [neuron for name, neuron in useless if name == layer.name]
            model.get_submodule(layer.output).weight[:, columns] = 0
    task = get_task("classification")
    rows = own_answers(model, task, examples("distilbert", 160))
    job = learning(
        "distilbert", model=model, examples=rows, keep={"neurons": 72}, epochs=15, batch_size=16
    )
    job = dataclasses.replace(job, multiples={"heads": 1, "neurons": 1})
    mask = learn("hard-concrete", job).mask
    removed = {(n, u) for n, flags in mask.keep.items() for u, flag in enumerate(flags) if not flag}
    assert len(removed) == 72
    assert len(removed & useless) >= 60  # by chance 36


@pytest.mark.parametrize("weights", ["none", "all"])
@pytest.mark.parametrize("name", BUILDERS)
def test_every_architecture_learns_which_heads_and_neurons_stay(name: str, weights):
    keep = {"encoder_self": 5, "neurons": 64}
    learned = learn("hard-concrete", learning(name, weights=weights, keep=keep, learning_rate=1e-3))
    assert learned.mask.count("encoder_self") == 5
    assert 64 <= learned.mask.count("neurons") < 64 + 32
    counts = learned.mask.counts()
    assert all(counts[f"encoder_ffn.{index}"] in (0, 32, 48) for index in range(2))


def test_too_many_units_for_a_softmax_each_are_refused():
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
            intermediate_size=700, num_labels=LABELS, pad_token_id=0,
        )
    )  # fmt: skip
    with raises(UsageError, "method-for-few-units") as caught:
        learn("subset", learning("bert", model=model, keep={"neurons": 1000, "heads": 5}))
    assert "2,112" in str(caught.value)
    heads = learning("bert", model=model, keep={"heads": 5}, epochs=1)
    assert learn("subset", heads).mask.count("heads") == 5


@pytest.mark.parametrize("method", MAKERS)
def test_heads_that_do_nothing_go_first(method: str):
    """Their columns of the output projection are zero, so no loss can depend on them."""
    model, rng = tiny_model("distilbert"), random.Random(4)
    layers = [layer for layer in find_sublayers(model) if layer.is_attention]
    useless = {(layer.name, head) for layer in layers for head in rng.sample(range(4), 2)}
    with torch.no_grad():
        model.classifier.weight.mul_(20)  # so sure of its answers that any change is for the worse
        for layer in layers:
            weight = model.get_submodule(layer.output).weight.view(
                -1, layer.units, layer.unit_width
            )
            for name, head in useless:
                if name == layer.name:
                    weight[:, head] = 0
    task = get_task("classification")
    rows = own_answers(model, task, examples("distilbert", 160))
    job = learning(
        "distilbert", model=model, examples=rows, keep={"heads": 6}, epochs=15, batch_size=16
    )
    mask = learn(method, job).mask
    removed = {(n, h) for n, flags in mask.keep.items() for h, flag in enumerate(flags) if not flag}
    assert removed == useless


@pytest.mark.parametrize("method", MAKERS)
@pytest.mark.parametrize(
    ("keep", "floor"),
    [({"heads": 8}, 1), ({"heads": 9}, 0), ({"encoder_self": 3, "cross": 6}, 1), ({"cross": 0}, 0)],
)
def test_head_counts_are_exact(method: str, keep: dict[str, int], floor: int):
    job = learning("marian", keep=keep)
    job = dataclasses.replace(job, epochs=1, floors=dict.fromkeys(job.floors, floor))
    mask = learn(method, job).mask
    for kind in mask.kinds():
        if "heads" not in keep:
            assert mask.count(kind) == keep.get(kind, mask.total(kind))
    assert mask.count() == keep.get("heads", mask.count())
    assert min(mask.counts().values()) >= floor


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        ("hard-concrete", "all"),
        ("hard-concrete", "none"),
        ("subset", "encoder"),
        ("subset", "none"),
    ],
)
@pytest.mark.parametrize("name", BUILDERS)
def test_every_architecture_learns_and_the_given_model_stays(name: str, method: str, weights):
    job = learning(name, weights=weights, learning_rate=1e-3)
    before = {key: value.clone() for key, value in job.model.state_dict().items()}
    learned = learn(method, job)
    assert learned.mask.count() == 5
    assert {n: len(v) for n, v in learned.scores.values.items()} == Mask.full(job.layers).counts()
    after = job.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(p.grad is None for p in job.model.parameters())
    assert not any(module.training for module in job.model.modules())
    assert (learned.model is job.model) == (weights == "none")
    assert f"|weights:{weights}|" in learned.scores.signature


@pytest.mark.parametrize("name", BUILDERS)
def test_encoder_weights_leave_the_decoder_or_the_classification_head_alone(name: str):
    """Everything outside is compared; for translators also what both sides share."""
    model = tiny_model(name)
    trained = trained_parameters(model, "encoder")
    assert any(layer.inputs["query"] + ".weight" in trained for layer in find_sublayers(model))
    for parameter_name in trained:
        assert "decoder" not in parameter_name
        assert not parameter_name.startswith(("classifier", "pre_classifier", "lm_head"))
        assert "shared" not in parameter_name
        assert "embed_tokens" not in parameter_name
    batch = examples(name, 1)
    if name in TRANSLATORS:
        # The decoder, fed with fixed encoder states, must not feel the encoder's weights move.
        states = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(0))
        ids = torch.tensor([list(batch[0].target)])
        with torch.no_grad():
            first = model(encoder_outputs=(states,), decoder_input_ids=ids).logits
            for parameter in trained.values():
                parameter.add_(1.0)
            second = model(encoder_outputs=(states,), decoder_input_ids=ids).logits
        assert torch.equal(first, second)


def facts(learned) -> tuple:
    weights = {name: value.clone() for name, value in learned.model.state_dict().items()}
    return learned.mask, learned.scores.values, weights, learned.text


def same(one: tuple, other: tuple) -> bool:
    weights = all(torch.equal(one[2][name], other[2][name]) for name in one[2])
    return weights and (one[0], one[1], one[3]) == (other[0], other[1], other[3])


@pytest.mark.parametrize("weights", ["none", "all"])
@pytest.mark.parametrize("method", MAKERS)
def test_the_seed_decides(method: str, weights):
    job = learning("electra", weights=weights, learning_rate=1e-3, batch_size=8)
    first = facts(learn(method, job))
    torch.manual_seed(99)  # what is random elsewhere must not matter
    assert same(first, facts(learn(method, job)))
    other = learn(method, dataclasses.replace(job, seed=1))
    assert other.scores.values != first[1]


class Stopped(Exception):
    """What interrupts a training in the next test."""


@pytest.mark.parametrize("stop_at", [5, 14])
@pytest.mark.parametrize("method", MAKERS)
def test_a_stopped_training_goes_on_as_if_it_had_not_stopped(
    method: str, stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """3 epochs of 4 steps for the gates, 1 for the weights; stopped within each."""
    monkeypatch.setattr("compressor.training.loop.SAVE_SECONDS", 0.0)
    job = learning("bert", weights="all", learning_rate=1e-3, batch_size=8, epochs=4)
    job = dataclasses.replace(job, patience=99)
    whole = facts(learn(method, job))
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise Stopped

    job = dataclasses.replace(job, state=tmp_path / "gates.safetensors")
    with pytest.raises(Stopped):
        learn(method, dataclasses.replace(job, progress=stop))
    assert same(whole, facts(learn(method, job)))
    assert same(whole, facts(learn(method, job)))  # once more, when all is done


@pytest.mark.parametrize("damage", [b"", b"not a training", None])
def test_a_damaged_state_is_made_again_with_a_message(tmp_path: Path, damage: bytes | None):
    """None: the file of a finished training, cut in half."""
    state, lines = tmp_path / "gates.safetensors", []
    job = dataclasses.replace(learning("bert"), state=state)
    whole = facts(learn("subset", job))
    state.write_bytes(state.read_bytes()[: state.stat().st_size // 2] if damage is None else damage)
    again = learn("subset", dataclasses.replace(job, report=lines.append))
    assert same(whole, facts(again))
    assert str(state) in lines[0]


@pytest.mark.parametrize("estimator", ["gumbel", "straight-through"])
def test_subset_gates_sum_to_the_count_and_harden(estimator):
    layers = find_sublayers(tiny_model("marian"))[:8]
    floors = {"encoder_self": 1, "decoder_self": 1, "cross": 1}
    gates = Subset(Layout(layers, {"encoder_self": 3, "cross": 5}, floors), estimator=estimator)
    with torch.no_grad():
        gates.weight.normal_(generator=torch.Generator().manual_seed(0))
    for progress in (0.0, 0.5, 1.0):
        drawn = gates.draw(progress)
        assert drawn[:8].sum().item() == pytest.approx(3, abs=1e-4)
        assert drawn[8:].sum().item() == pytest.approx(5, abs=1e-4)
        exact = bool(((drawn == 0) | (drawn == 1)).all())
        assert exact or (estimator == "gumbel")
        assert not exact or progress > 0 or (estimator == "straight-through")
        (drawn * torch.randn(20)).sum().backward()
    assert (
        distance_from_hard(gates.without_noise(1.0))[1]
        < distance_from_hard(gates.without_noise(0.0))[1] / 10
    )
    assert gates.temperature(1.0) < gates.temperature(0.5) < gates.temperature(0.0)


def test_a_cold_subset_and_its_mask_keep_the_same_heads_with_floors():
    layers = find_sublayers(tiny_model("marian"))[:8]
    floors = {"encoder_self": 0, "decoder_self": 1, "cross": 2}
    gates = Subset(Layout(layers, {"heads": 11}, floors))
    for seed in range(5):
        with torch.no_grad():
            gates.weight.normal_(0, 9, generator=torch.Generator().manual_seed(seed))
        expected = gates.layout.flat(gates.mask())
        found = relaxed_subset(gates.weight.detach(), gates.rounds, 1e-5)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_layer_at_its_floor_earns_nothing_by_closing():
    layers = find_sublayers(tiny_model("bert"))
    gates = HardConcrete(Layout(layers, {"heads": 5}, {"encoder_self": 2}))
    with torch.no_grad():
        gates.log_alpha[:4] = -3.0  # expected heads of the first layer: 0.4
    (expected,) = gates.expected()
    expected.backward()
    assert gates.log_alpha.grad is not None
    assert gates.log_alpha.grad[:4].abs().sum().item() == 0
    assert gates.log_alpha.grad[4:].min().item() > 0
    others = hard_concrete_distribution.open_probability(gates.log_alpha.detach()[4:]).sum().item()
    assert expected.item() == pytest.approx(2 + others, rel=1e-6)


def test_a_larger_penalty_leaves_fewer_heads():
    job = learning("bert", keep=None, batch_size=8, epochs=16)
    counts = []
    for penalty in (1e-6, 0.25, 30.0):
        learned = learn("hard-concrete", job, penalty=penalty)
        counts.append(learned.mask.count())
        assert f"|penalty:{penalty:g}|" in learned.scores.signature
        kept_all = learned.mask.count() == learned.mask.total()
        assert ("no head was removed; a larger penalty" in learned.text) == kept_all
    assert counts[0] > counts[1] > counts[2] == 0
    floored = dataclasses.replace(job, floors={"encoder_self": 1})
    assert learn("hard-concrete", floored, penalty=30.0).mask.counts() == {
        "encoder_self.0": 1, "encoder_self.1": 1, "encoder_self.2": 1,
    }  # fmt: skip


def test_the_text_tells_the_losses_of_soft_gates_and_of_the_mask():
    """The loss with the final mask is computed here once more, on the held-out rows."""
    job = learning("bert")
    learned = learn("subset", job)
    _, held = hold_out(job.examples, job.seed)
    total = 0.0
    for batch in job.task.batches(held, job.model):
        with torch.no_grad(), gated(job.model, job.layers, mask_gates(learned.mask)):
            total += job.task.loss(job.model, batch).item()
    assert f"{total / len(held):.4f} with the final mask" in learned.text
    assert f"5 of {learned.mask.total()} heads kept" in learned.text
    assert re.search(
        r"gates 0\.\d{3} from open or closed on average, \d\.\d{3} at most", learned.text
    )
    assert learned.scores.cost["training_steps"] == 2  # 2 epochs of 32 rows


def test_a_training_that_was_too_short_says_all_that_is_wrong():
    learned = learn("hard-concrete", learning("marian", batch_size=32, epochs=1))
    assert "the gates had not settled at the wanted number of units; train longer" in learned.text
    soft, hard = map(float, re.findall(r"(\d+\.\d{4}) with", learned.text))
    assert ("making the gates hard changed it" in learned.text) == (abs(hard - soft) > 0.05 * soft)


def test_fitting_that_does_not_help_is_dropped():
    job = learning("bert", weights="all", learning_rate=3.0, epochs=2)
    learned = learn("subset", job)
    assert "fitting the weights to the mask gained nothing and was dropped" in learned.text


@pytest.mark.parametrize(
    ("method", "settings", "options", "problem"),
    [
        ("lottery", {}, {}, "method-unknown"),
        ("hard-concrete", {}, {"penalty": 0.1}, "penalty-and-budget"),
        ("subset", {"keep": None}, {}, "budget-missing"),
        ("subset", {"weights": "all", "epochs": 1}, {}, "too-few-epochs"),
    ],
)
def test_options_that_do_not_go_together_are_an_error(
    method: str, settings: dict, options: dict, problem: str
):
    with raises(UsageError, problem):
        learn(method, learning("bert", **settings), **options)


def test_an_option_of_another_method_is_an_error():
    with pytest.raises(TypeError):
        learn("subset", learning("bert"), estimator="gumbel", start=0)


def test_floors_above_the_head_count_are_an_error():
    with pytest.raises(UsageError):
        learn("subset", learning("bert", floors={"encoder_self": 2}))
