"""Saving and loading: what comes back is what was saved, or there is an error."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import compressor
from compressor.errors import InputError
from compressor.model.architectures import find_sublayers
from compressor.model.checkpoint import (
    checkpoint_files,
    open_checkpoint,
    round_to,
    save_checkpoint,
)
from compressor.model.surgery import prune
from tests.helpers.tiny import (
    BUILDERS,
    facts,
    ragged_batch,
    tiny_model,
    uneven_mask,
    word_tokenizer,
)


def save_dense(name: str, directory, dtype=torch.float32):
    model = tiny_model(name).to(dtype)
    model.save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", BUILDERS)
def test_reloaded_equals_saved(name: str, dtype, tmp_path):
    save_dense(name, tmp_path / "dense", dtype)
    dense = open_checkpoint(str(tmp_path / "dense"))
    assert dense.dtype == dtype
    mask = uneven_mask(dense.layers)
    pruned = prune(dense.model, dense.layers, mask)
    round_to(pruned, dense.dtype)
    save_checkpoint(dense, pruned, facts(dense.layers, mask), tmp_path / "pruned")
    loaded = compressor.load(tmp_path / "pruned")
    batch = ragged_batch(pruned)
    assert torch.equal(loaded(**batch).logits, pruned(**batch).logits)
    assert open_checkpoint(str(tmp_path / "pruned")).mask == mask
    stored = load_file(tmp_path / "pruned" / "model.safetensors")
    assert {v.dtype for v in stored.values()} == {dtype}


def _damaged(tmp_path, change):
    save_dense("marian", tmp_path / "dense")
    dense = open_checkpoint(str(tmp_path / "dense"))
    mask = uneven_mask(dense.layers)
    pruned = prune(dense.model, dense.layers, mask)
    save_checkpoint(dense, pruned, facts(dense.layers, mask), tmp_path / "pruned")
    path = tmp_path / "pruned" / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})
    return tmp_path / "pruned"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.encoder.layers.0.fc1.weight"), "lacks 1 weights, first model.enc"),
        (lambda w: w.update(extra=torch.ones(1)), "has unexpected 1 weights, first extra"),
        (
            lambda w: w.update({"model.encoder.layers.0.fc1.bias": torch.ones(3)}),
            "misfits 1 weights",
        ),
    ],
)
def test_loading_is_strict(change, message, tmp_path):
    with pytest.raises(InputError, match=message):
        compressor.load(_damaged(tmp_path, change))


def test_a_checkpoint_without_a_trained_head_is_refused(tmp_path):
    """A bare encoder would get a random classification head; that must not pass silently."""
    model = tiny_model("bert")
    model.bert.config.architectures = ["BertModel"]
    model.bert.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="lacks 2 of the weights.*classifier.*fine-tune"):
        open_checkpoint(str(tmp_path))


def _configure(directory, **options) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | options), encoding="utf-8")


def test_attention_that_the_library_would_leave_out_is_refused(tmp_path):
    """Relative positions: transformers 5 drops their weights, and with them what the model says."""
    model = save_dense("bert", tmp_path)
    _configure(tmp_path, position_embedding_type="relative_key")
    with pytest.raises(InputError, match="has relative_key positions.*absolute positions"):
        open_checkpoint(str(tmp_path))
    _configure(tmp_path, position_embedding_type="absolute")
    left_over = {"bert.pooler.unknown": torch.ones(2)}
    save_file(model.state_dict() | left_over, tmp_path / "model.safetensors")
    assert open_checkpoint(str(tmp_path)).mask.count() == 12
    left_over = {"bert.encoder.layer.1.attention.self.distance_embedding.weight": torch.ones(2)}
    save_file(model.state_dict() | left_over, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="1 weights in its attention.*distance_embedding"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", BUILDERS)
def test_forms_of_calling_that_a_configuration_asks_for_change_nothing(name: str, tmp_path):
    save_dense(name, tmp_path)
    model = open_checkpoint(str(tmp_path)).model
    _configure(tmp_path, return_dict=False, chunk_size_feed_forward=2)
    loaded = open_checkpoint(str(tmp_path)).model
    batch = ragged_batch(model)
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    assert loaded.config.chunk_size_feed_forward == 0


def test_pickles_are_loaded_only_when_asked_for(tmp_path):
    model = save_dense("bert", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="--allow-pickle"):
        open_checkpoint(str(tmp_path))
    loaded = open_checkpoint(str(tmp_path), allow_pickle=True).model
    batch = ragged_batch(model)
    torch.testing.assert_close(loaded(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_precision_of_a_pickle_is_kept(dtype, tmp_path):
    model = save_dense("bert", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.to(dtype).state_dict(), tmp_path / "pytorch_model.bin")
    assert open_checkpoint(str(tmp_path), allow_pickle=True).dtype == dtype


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem_type": "multi_label_classification"}, "answers with several labels per text"),
        ({"problem_type": "regression"}, "answers with a number per text"),
        ({"id2label": {"0": "score"}, "label2id": {"score": 0}}, "answers with a number per text"),
    ],
)
def test_models_that_do_not_choose_one_of_several_labels_are_refused(change, message, tmp_path):
    save_dense("bert", tmp_path)
    _configure(tmp_path, **change)
    with pytest.raises(InputError, match=message):
        open_checkpoint(str(tmp_path))


def test_notes_beside_a_checkpoint_are_not_part_of_it(tmp_path):
    save_dense("bert", tmp_path)
    before = checkpoint_files(tmp_path)
    assert tmp_path / "model.safetensors" in before
    for name in ("README.md", "loss.png", "notes.log"):
        (tmp_path / name).write_text("seen", encoding="utf-8")
    assert checkpoint_files(tmp_path) == before
    (tmp_path / "vocab.txt").write_text("w5", encoding="utf-8")
    assert checkpoint_files(tmp_path) == sorted([*before, tmp_path / "vocab.txt"])


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda p: None, "has no config.json"),
        (lambda p: (p / "config.json").write_text("{"), "not a model configuration"),
        (
            lambda p: (p / "config.json").write_text(json.dumps({"model_type": "t5"})),
            "'t5'.*is not supported",
        ),
        (
            lambda p: (p / "config.json").write_text(json.dumps({"model_type": "bert"})),
            "has no weights",
        ),
    ],
)
def test_broken_directories(prepare, message, tmp_path):
    prepare(tmp_path)
    with pytest.raises(InputError, match=message):
        open_checkpoint(str(tmp_path))


def test_missing_paths_are_not_taken_for_hub_ids(tmp_path):
    with pytest.raises(InputError, match="there is no directory"):
        open_checkpoint(str(tmp_path / "nothing" / "here"))
    with pytest.raises(InputError, match="makes no sense for the directory"):
        open_checkpoint(str(tmp_path), revision="main")


def test_layers_of_a_pruned_checkpoint_describe_the_dense_model(tmp_path):
    directory = _damaged(tmp_path, lambda weights: None)
    loaded = open_checkpoint(str(directory))
    assert loaded.layers == find_sublayers(tiny_model("marian"))
    assert loaded.heads["method"] == "test"
