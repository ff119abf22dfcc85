"""Whole layers that go: skipped, left out of what is saved, found by what skipping them costs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers

import compressor
from compressor.errors import VerificationError
from compressor.importance.depth import layers_to_drop
from compressor.model.architectures import architecture, architecture_of, find_sublayers
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.depth import skipped, without_skipped
from compressor.model.saving import save_checkpoint
from compressor.model.sublayers import Mask, renumbered
from compressor.model.surgery import prune, relative_difference, verify_surgery
from compressor.tasks import TASKS, Batch
from tests.helpers.errors import raises
from tests.helpers.tiny import (
    STACKS,
    TRANSLATORS,
    facts,
    ragged_batch,
    tiny_model,
    uneven_mask,
    word_tokenizer,
)


def dropped_of(name: str) -> list[str]:
    """A first layer and, of a decoder, one in the middle; uneven layers are left."""
    return ["encoder.0", "decoder.1"] if name in TRANSLATORS else ["encoder.1"]


def other_of(name: str) -> list[str]:
    return ["encoder.1"] if name in TRANSLATORS else ["encoder.2"]


def opened(name: str, directory) -> Checkpoint:
    tiny_model(name).save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return open_checkpoint(str(directory))


def small(dense: Checkpoint, mask: Mask) -> Checkpoint:
    return without_skipped(dense, prune(dense.model, dense.layers, mask), mask)


def shallow_by_hand(model: torch.nn.Module, dropped: list[str]) -> torch.nn.Module:
    """A model of the library with fewer layers, and the weights of those that are left."""
    entry = architecture_of(model)
    config = copy.deepcopy(model.config)
    stacks = {x.layer_path.rpartition(".")[0]: x.layer for x in find_sublayers(model)}
    state = model.state_dict()
    for path, layer in stacks.items():
        stack = layer.partition(".")[0]
        sizes = entry.encoder if stack == "encoder" else entry.decoder
        left = [n for n in range(getattr(config, sizes.layers)) if f"{stack}.{n}" not in dropped]
        setattr(config, sizes.layers, len(left))
        moved = {key: state.pop(key) for key in list(state) if key.startswith(f"{path}.")}
        for new, old in enumerate(left):
            prefix = f"{path}.{old}."
            for key, value in moved.items():
                if key.startswith(prefix):
                    state[f"{path}.{new}.{key.removeprefix(prefix)}"] = value
    made = type(model)(config)
    made.load_state_dict(state)
    return made.eval()


@pytest.mark.parametrize("name", STACKS)
def test_a_model_without_layers_is_the_library_s_model_with_fewer(name, tmp_path):
    """Saved as an ordinary checkpoint that needs no code beside it."""
    dense, batch = opened(name, tmp_path / "dense"), ragged_batch(tiny_model(name))
    mask = Mask.full(dense.layers).without_layers(dropped_of(name))
    made = small(dense, mask)
    expected = shallow_by_hand(dense.model, dropped_of(name))(**batch).logits
    torch.testing.assert_close(made.model(**batch).logits, expected, rtol=0, atol=0)
    assert relative_difference(dense.model(**batch).logits, expected) > 0.05
    with skipped(dense.model, dense.layers, mask):
        assert torch.equal(dense.model(**batch).logits, expected)
    assert not torch.equal(dense.model(**batch).logits, expected)  # as it was before

    record = facts(dense.layers, mask) | {"dropped_layers": sorted(mask.dropped)}
    save_checkpoint(dense, made.model, record, tmp_path / "out")
    assert not (tmp_path / "out" / "modeling_pruned.py").exists()
    plain = getattr(transformers, dense.entry.auto_class).from_pretrained(tmp_path / "out")
    assert type(plain) is type(dense.model)
    assert torch.equal(plain(**batch).logits, expected)
    assert torch.equal(compressor.load(tmp_path / "out")(**batch).logits, expected)


@pytest.mark.parametrize("name", STACKS)
def test_layers_and_units_go_together(name, tmp_path):
    """Pruned equals masked, reloaded equals saved; translators generate the same, cache and all."""
    dense, batch = opened(name, tmp_path / "dense"), ragged_batch(tiny_model(name))
    mask = uneven_mask(dense.layers).without_layers(dropped_of(name))
    made = small(dense, mask)
    verify_surgery(dense.model, made.model, dense.layers, mask, [batch])
    other = uneven_mask(dense.layers).without_layers(other_of(name))
    with raises(VerificationError, "pruned-differs-from-masked"):
        verify_surgery(dense.model, small(dense, other).model, dense.layers, mask, [batch])

    record = facts(dense.layers, mask) | {"dropped_layers": sorted(mask.dropped)}
    save_checkpoint(dense, made.model, record, tmp_path / "out")
    again = open_checkpoint(str(tmp_path / "out"))
    assert again.mask == made.mask == Mask(renumbered(mask.keep, mask.dropped))
    assert [x.name for x in again.layers] == [x.name for x in made.layers]
    assert again.pruning is not None
    assert again.pruning.mask == mask
    assert torch.equal(again.model(**batch).logits, made.model(**batch).logits)
    if name in TRANSLATORS:
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        with_cache, without = (
            again.model.generate(**inputs, do_sample=False, max_new_tokens=8, use_cache=use)
            for use in (True, False)
        )
        assert torch.equal(with_cache, without)


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_the_layer_that_goes_changes_predictions_least(name):
    """Against divergences worked out in NumPy, of models built with fewer layers by hand."""
    model = tiny_model(name)
    layers, task = find_sublayers(model), TASKS[architecture(name).task]
    inputs = ragged_batch(model)
    rows = [[7, 8, 9, 2, -100, -100], [4, 2, -100, -100, -100, -100], [5, 6, 7, 8, 9, 2]]
    inputs["labels"] = torch.tensor(rows if name in TRANSLATORS else [0, 1, 2])
    batch = Batch(inputs, range(3))
    stack = "decoder" if name in TRANSLATORS else "encoder"

    def log_probabilities(dropped: list[str]) -> np.ndarray:
        logits = task.logits(shallow_by_hand(model, dropped), batch).detach().numpy()
        chosen = logits[task.term_mask(batch).numpy()].astype(np.float64)
        return chosen - np.log(np.exp(chosen).sum(-1, keepdims=True))

    wanted = log_probabilities([])

    def divergence(dropped: list[str]) -> float:
        found = log_probabilities(dropped)
        return float((np.exp(wanted) * (wanted - found)).sum(-1).mean())

    first = {x: divergence([x]) for x in (f"{stack}.{n}" for n in range(3))}
    least = min(first, key=first.__getitem__)
    second = {x: divergence([least, x]) for x in first if x != least}
    found = layers_to_drop(model, layers, [batch], task, {stack: 2})
    assert list(found) == [least, min(second, key=second.__getitem__)]
    expected = [min(first.values()), min(second.values())]
    assert list(found.values()) == pytest.approx(expected, rel=1e-4)
