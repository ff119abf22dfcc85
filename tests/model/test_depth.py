"""Dropping whole layers: skipped, left out of what is saved, chosen by their effect on outputs."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import compressor
from compressor.errors import InputError
from compressor.importance.depth import layers_to_drop
from compressor.model.architectures import architecture, architecture_of
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.layers import find_sublayers
from compressor.model.sublayers import Mask, renumbered
from compressor.model.surgery import (
    prune,
    relative_difference,
    skipped,
    verify_surgery,
    without_skipped,
)
from compressor.tasks import TASKS, Batch
from tests.helpers.batches import labelled_batch
from tests.helpers.errors import raises
from tests.helpers.tiny import (
    STACKS,
    TRANSLATOR_RELATIVES,
    TRANSLATORS,
    facts,
    ragged_batch,
    tiny_model,
    uneven_mask,
    word_tokenizer,
)

CASES = [*STACKS, *TRANSLATOR_RELATIVES, "mpnet", "modernbert", "deberta-v2"]


def dropped_of(name: str) -> list[str]:
    """Uneven layers are left; T5's decoder may not be deeper, and loses its table of positions."""
    if name in TRANSLATOR_RELATIVES:
        return ["encoder.0", "decoder.0"]
    return ["encoder.0", "decoder.1"] if name in TRANSLATORS else ["encoder.1"]


def opened(name: str, directory) -> Checkpoint:
    model = tiny_model(name)
    if name == "t5":  # the output layer has other weights than the embeddings, as FLAN-T5's has
        model.lm_head.weight = torch.nn.Parameter(1.5 * model.shared.weight.flip(0))
        model.config.scale_decoder_outputs = False
    model.save_pretrained(directory)
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


def saved(dense: Checkpoint, mask: Mask, directory: Path) -> tuple[Checkpoint, torch.nn.Module]:
    """A model without the skipped layers, and what transformers opens of it."""
    made = small(dense, mask)
    record = facts(dense.layers, mask) | {"dropped_layers": sorted(mask.dropped)}
    save_checkpoint(dense, made.model, record, directory)
    auto = getattr(transformers, dense.entry.auto_class)
    return made, auto.from_pretrained(directory, trust_remote_code=True)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_layers_are_dropped(name, tmp_path):
    """The library's model with fewer layers, saved as a checkpoint that needs no code beside it."""
    dense, batch = opened(name, tmp_path / "dense"), ragged_batch(tiny_model(name))
    mask = Mask.full(dense.layers).without_layers(dropped_of(name))
    with skipped(dense.model, dense.layers, mask):
        expected = dense.model(**batch).logits
    assert relative_difference(dense.model(**batch).logits, expected) > 0.05  # as it was before
    if name in STACKS:
        by_hand = shallow_by_hand(dense.model, dropped_of(name))
        torch.testing.assert_close(by_hand(**batch).logits, expected, rtol=1e-5, atol=1e-5)
    made, plain = saved(dense, mask, tmp_path / "out")
    assert not (tmp_path / "out" / "modeling_pruned.py").exists()
    assert type(plain) is type(dense.model)
    assert torch.equal(
        made.model(**batch).logits, compressor.load(tmp_path / "out")(**batch).logits
    )
    for model in (made.model, plain):  # the latter computes the last layer for all tokens
        torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_layers_and_units_are_dropped_together(name, tmp_path):
    """Pruned equals masked, reloaded equals saved; translators generate the same, cache and all."""
    dense, batch = opened(name, tmp_path / "dense"), ragged_batch(tiny_model(name))
    mask = uneven_mask(dense.layers).without_layers(dropped_of(name))
    made, plain = saved(dense, mask, tmp_path / "out")
    verify_surgery(dense.model, made.model, dense.layers, mask, [batch])
    again = open_checkpoint(str(tmp_path / "out"))
    assert again.mask == made.mask == Mask(renumbered(mask.keep, mask.dropped))
    assert [x.name for x in again.layers] == [x.name for x in made.layers]
    assert again.pruning is not None
    assert again.pruning.mask == mask
    for model in (again.model, plain):
        assert torch.equal(model(**batch).logits, made.model(**batch).logits)
    if made.model.config.is_encoder_decoder:
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        with_cache, without = (
            again.model.generate(**inputs, do_sample=False, max_new_tokens=8, use_cache=use)
            for use in (True, False)
        )
        assert torch.equal(with_cache, without)


def test_t5_keeps_as_many_layers_in_the_encoder_as_in_the_decoder(tmp_path):
    dense = opened("t5", tmp_path)
    with raises(InputError, "decoder-deeper-than-encoder"):
        small(dense, Mask.full(dense.layers).without_layers(["encoder.0", "encoder.1"]))


def test_a_first_layer_without_a_norm_stays():
    """Of ModernBERT, whose others begin with one."""
    model = tiny_model("modernbert")
    batch = labelled_batch(model)
    task = TASKS["classification"]
    dropped = layers_to_drop(model, find_sublayers(model), [batch], task, {"encoder": 2})
    assert set(dropped) == {"encoder.1", "encoder.2"}


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_the_layer_that_changes_predictions_least_is_dropped(name):
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

    dense = log_probabilities([])

    def divergence(dropped: list[str]) -> float:
        return float((np.exp(dense) * (dense - log_probabilities(dropped))).sum(-1).mean())

    every = [f"{stack}.{n}" for n in range(3)]
    # A decoder's last layer stays while two others are left.
    first = {x: divergence([x]) for x in (every[:2] if stack == "decoder" else every)}
    least = min(first, key=first.__getitem__)
    second = {x: divergence([least, x]) for x in every if x != least}
    chosen = layers_to_drop(model, layers, [batch], task, {stack: 2})
    assert list(chosen) == [least, min(second, key=second.__getitem__)]
    expected = [min(first.values()), min(second.values())]
    assert list(chosen.values()) == pytest.approx(expected, rel=1e-4)
