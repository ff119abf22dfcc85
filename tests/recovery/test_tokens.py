"""Recovery of models whose layers hand on fewer tokens than they get."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from compressor.model.sublayers import by_layer
from compressor.model.surgery import masked, prune, restore_shape
from compressor.model.token_selection import selecting_layers
from compressor.recovery import RecoveryJob
from compressor.recovery.distillation import Distillation
from compressor.recovery.hidden_states import block_tokens, outputs_of, shared_tokens
from tests.helpers.batches import examples
from tests.helpers.stages import divergence, job, reconstructed, repair
from tests.helpers.tokens import (
    bert_by_hand,
    handing_on_tenths,
    heads_and_tenths,
    one_token_model,
    rows_in,
)

DISTILL = {"learning_rate": 1e-3, "epochs": 4}


def token_job(mask, name: str = "bert", rows: int = 48, **options) -> RecoveryJob:
    return job(name, mask, rows, one_token_model(name), **options)


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet", "modernbert"])
@pytest.mark.slow
def test_reconstruction_comes_closer_on_other_rows(name: str):
    setup = token_job(heads_and_tenths(6, 3), name, rows=600)
    others = examples(name, 300, seed=1)
    recovered = reconstructed(setup)
    assert [x.hands_on for x in selecting_layers(recovered)][:2] == [6, 3]
    assert divergence(setup, recovered, others) < 0.9 * divergence(setup, setup.pruned, others)


@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert"])
@torch.no_grad()
def test_layers_that_miss_nothing_stay_as_they_are(name: str):
    """The first layer gets all tokens: those that it hands on are the dense model's."""
    setup = token_job(handing_on_tenths(5, 2), name, rows=200)
    recovered = reconstructed(setup)
    changed = {
        layer: max(
            float((recovered.get_submodule(x.output).weight - old.weight).abs().max())
            for x in sublayers
            for old in [setup.pruned.get_submodule(x.output)]
        )
        for layer, sublayers in by_layer(setup.layers).items()
    }
    first, second, last = changed.values()
    assert first < 1e-4
    assert second > 1e-2
    assert last > 1e-2


@torch.no_grad()
def hidden_states(model, batch, blocks, task):
    return outputs_of(model, task, batch, blocks)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_hidden_states_are_compared_at_the_same_tokens(name: str):
    """States before the first choice that has an effect are equal, of tokens in another order."""
    setup = token_job(handing_on_tenths(4, 4), name)
    blocks = [x[0] for x in by_layer(setup.layers).values()]
    (batch,) = setup.task.batches(setup.examples[:7], setup.dense)
    _, targets = hidden_states(setup.dense, batch, blocks, setup.task)
    _, states = hidden_states(setup.pruned, batch, blocks, setup.task)
    shared = shared_tokens(targets, setup.pruned, setup.task, batch, blocks)
    lengths = batch["attention_mask"].sum(1)
    kept = int((-(-lengths * 4 // 10)).sum())
    assert [len(x) for x in shared] == [len(x) for x in states] == [kept, kept, 7]
    assert int(block_tokens(setup.task, batch, setup.pruned, blocks[0]).sum()) == kept
    assert len(targets[0]) == int(lengths.sum())
    torch.testing.assert_close(shared[0], states[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(shared[1], states[1], atol=1e-2)


def test_the_difference_of_hidden_states_against_rows_by_hand():
    """After each layer, at the places of the tokens that are left; the last has the first token."""
    setup = token_job(handing_on_tenths(7, 3))
    held = setup.task.batches(setup.examples[:20], setup.dense)
    problem = Distillation(setup, setup.pruned, held, 1e-3, hidden=1.0)
    (batch,) = setup.task.batches(setup.examples[20:30], setup.dense)
    plain = Distillation(setup, setup.pruned, held, 1e-3, hidden=0.0)
    found = float((problem.loss(batch, 0.0) - plain.loss(batch, 0.0)).detach())
    squares: list[list[float]] = [[], [], []]
    for ids, _ in rows_in([batch]):
        _, dense = bert_by_hand(setup.dense, ids, (10, 10))
        _, cut = bert_by_hand(setup.dense, ids, (7, 3))
        for layer, (places, states) in enumerate(cut):
            wanted = dense[layer][1]
            count = len(places) if layer < 2 else 1
            for place, state in list(zip(places, states, strict=True))[:count]:
                squares[layer].append(float((wanted[place] - state).square().mean()))
    parts = [np.mean(x) / v for x, v in zip(squares, problem.variances, strict=True)]
    assert found == pytest.approx(np.mean(parts), rel=1e-3)


def test_a_part_of_a_step_counts_the_tokens_of_the_whole():
    """Gradients of a batch are those of its parts, added up."""
    setup = token_job(handing_on_tenths(5, 3))
    held = setup.task.batches(setup.examples[:8], setup.dense)
    problem = Distillation(setup, setup.pruned, held, 1e-3, hidden=1.0)
    (batch,) = setup.task.batches(setup.examples[8:28], setup.dense)
    whole = float(problem.loss(batch, 0.0).detach())
    parts = [batch.lines(slice(0, 9)), batch.lines(slice(9, 20))]
    added = sum(float(problem.loss(part, 0.0, batch).detach()) for part in parts)
    assert added == pytest.approx(whole, rel=1e-4)


def test_a_step_computes_the_tokens_that_are_left():
    setup = token_job(heads_and_tenths(6, 2))
    (batch,) = setup.task.batches(setup.examples, setup.dense)
    problem = Distillation(setup, setup.pruned, [batch], 1e-3, hidden=1.0)
    seen = {}
    for path, module in setup.pruned.named_modules():
        if path.endswith((".intermediate.dense", ".self.query", ".attention.output.dense")):
            module.register_forward_hook(
                lambda _, inputs, output, path=path: seen.update({path: tuple(output.shape[:2])})
            )
    problem.loss(batch, 0.0).backward()
    rows, tokens = batch["input_ids"].shape
    first, second = -(-6 * tokens // 10), -(-2 * tokens // 10)
    assert (tokens, first, second) == (12, 8, 3)
    for layer, (got, left) in enumerate(((tokens, first), (first, second))):
        prefix = f"bert.encoder.layer.{layer}"
        assert seen[f"{prefix}.attention.self.query"] == (rows, got)
        assert seen[f"{prefix}.attention.output.dense"] == (rows, left)
        assert seen[f"{prefix}.intermediate.dense"] == (rows, left)
    assert seen["bert.encoder.layer.2.intermediate.dense"] == (rows, 1)


def test_distillation_improves_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    mask = heads_and_tenths(6, 3)
    whole = repair(token_job(mask, rows=96), distill=DISTILL)
    setup = token_job(mask, rows=96)
    others = examples("bert", 200, seed=1)
    before = divergence(setup, setup.pruned, others)
    assert divergence(setup, whole.model, others) < 0.8 * before
    setup = dataclasses.replace(setup, state=tmp_path / "recovery.safetensors")
    validate, calls = Distillation.validate, []

    def stopping(problem: Distillation, progress: float) -> float:
        calls.append(progress)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return validate(problem, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "validate", stopping)
        with pytest.raises(KeyboardInterrupt):
            repair(setup, distill=DISTILL)
    assert list(tmp_path.iterdir())
    resumed = repair(setup, distill=DISTILL)
    assert resumed.text == whole.text
    expected = whole.model.state_dict()
    for name, weight in resumed.model.state_dict().items():
        torch.testing.assert_close(weight, expected[name])


@torch.no_grad()
def test_a_model_restored_between_steps_reads_all_tokens():
    """With its units masked again it answers as the recovered model does."""
    setup = token_job(heads_and_tenths(5, 3))
    recovered = repair(setup, reconstruct={}).model
    restored = restore_shape(setup.dense, recovered, setup.layers, setup.mask)
    assert not selecting_layers(restored)
    (batch,) = setup.task.batches(setup.examples, setup.dense)
    expected = setup.task.logits(recovered, batch)
    with masked(restored, setup.layers, setup.mask):
        torch.testing.assert_close(
            setup.task.logits(restored, batch), expected, rtol=1e-4, atol=1e-4
        )
    again = prune(restored, setup.layers, setup.mask)
    torch.testing.assert_close(setup.task.logits(again, batch), expected, rtol=1e-4, atol=1e-4)


def test_a_model_that_has_run_can_be_copied():
    setup = token_job(handing_on_tenths(5, 3))
    (batch,) = setup.task.batches(setup.examples, setup.dense)
    logits = setup.task.logits(setup.pruned, batch)
    copied = copy.deepcopy(setup.pruned)
    assert torch.equal(setup.task.logits(copied, batch), logits)
