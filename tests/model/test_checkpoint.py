"""Saving and loading: what comes back is what was saved, or there is an error."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import compressor
from compressor.errors import InputError
from compressor.export.generation import generation_settings
from compressor.model import saving
from compressor.model.architectures import find_sublayers
from compressor.model.checkpoint import open_checkpoint
from compressor.model.location import checkpoint_files
from compressor.model.saving import round_to, save_checkpoint
from compressor.model.surgery import prune
from compressor.model.weights import computed_weights
from compressor.tasks import require_task
from tests.helpers.errors import raises
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


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in BUILDERS), ("marian", torch.float16)],
)
def test_reloaded_equals_saved(name: str, dtype, tmp_path):
    save_dense(name, tmp_path / "dense", dtype)
    dense = open_checkpoint(str(tmp_path / "dense"))
    assert dense.dtype == dtype
    mask = uneven_mask(dense.layers)
    pruned = prune(dense.model, dense.layers, mask)
    round_to(pruned, dense.dtype)
    save_checkpoint(dense, pruned, facts(dense.layers, mask), tmp_path / "pruned")
    loaded = open_checkpoint(str(tmp_path / "pruned"))
    batch = ragged_batch(pruned)
    assert torch.equal(loaded.model(**batch).logits, pruned(**batch).logits)
    assert loaded.mask == mask
    assert loaded.layers == dense.layers == find_sublayers(tiny_model(name))
    assert loaded.pruning.contents["method"] == "test"
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
    ("change", "name"),
    [
        (lambda w: w.pop("model.encoder.layers.0.fc1.weight"), "model.encoder.layers.0.fc1.weight"),
        (lambda w: w.update(extra=torch.ones(1)), "extra"),
        (
            lambda w: w.update({"model.encoder.layers.0.fc1.bias": torch.ones(3)}),
            "model.encoder.layers.0.fc1.bias",
        ),
    ],
)
def test_a_weight_that_is_missing_left_over_or_misshapen_is_an_error(change, name, tmp_path):
    with raises(InputError, "weights-do-not-fit") as caught:
        compressor.load(_damaged(tmp_path, change))
    assert name in str(caught.value)


def test_only_a_dense_checkpoint_can_be_opened_as_one(tmp_path):
    directory = _damaged(tmp_path, lambda weights: None)
    assert open_checkpoint(str(tmp_path / "dense"), dense=True).pruning is None
    with raises(InputError, "checkpoint-already-pruned"):
        open_checkpoint(str(directory), dense=True)


def _configure(directory, **options) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | options), encoding="utf-8")


def test_the_begin_of_sequence_token_starts_where_no_other_is_named(tmp_path):
    model = save_dense("bart", tmp_path)
    for file in ("config.json", "generation_config.json"):
        path = tmp_path / file
        values = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(values | {"decoder_start_token_id": None}), encoding="utf-8")
    opened = open_checkpoint(str(tmp_path)).model
    assert generation_settings(opened)["decoder_start_token_id"] == model.config.bos_token_id == 0
    source = {name: ragged_batch(model)[name] for name in ("input_ids", "attention_mask")}
    assert (opened.generate(**source)[:, 0] == 0).all()


def test_pickles_are_loaded_only_when_asked_for(tmp_path):
    model = save_dense("bert", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with raises(InputError, "weights-pickled"):
        open_checkpoint(str(tmp_path))
    loaded = open_checkpoint(str(tmp_path), allow_pickle=True).model
    batch = ragged_batch(model)
    torch.testing.assert_close(loaded(**batch).logits, model(**batch).logits)


def test_the_precision_of_a_pickle_is_kept(tmp_path):
    dtype = torch.bfloat16
    model = save_dense("bert", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.to(dtype).state_dict(), tmp_path / "pytorch_model.bin")
    assert open_checkpoint(str(tmp_path), allow_pickle=True).dtype == dtype


@pytest.mark.parametrize(
    "change",
    [
        {"problem_type": "multi_label_classification"},
        {"problem_type": "regression"},
        {"id2label": {"0": "score"}, "label2id": {"score": 0}},
    ],
)
def test_a_model_that_does_not_choose_one_of_several_labels_is_an_error(change, tmp_path):
    model = save_dense("bert", tmp_path)
    if "id2label" in change:
        model.classifier = torch.nn.Linear(32, 1)
        model.save_pretrained(tmp_path)
    _configure(tmp_path, **change)
    checkpoint = open_checkpoint(str(tmp_path), task="classification")
    with raises(InputError, "classifier-unsupported"):
        require_task(checkpoint)


NAMES = {str(number): name for number, name in enumerate("abcde")}


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"id2label": NAMES | {"3": "a"}, "label2id": {}}, "label-name-repeated"),
        ({"id2label": NAMES | {"3": " a"}, "label2id": {}}, "label-name-repeated"),
        ({"id2label": NAMES | {"3": " "}, "label2id": {}}, "config-malformed"),
        ({"id2label": NAMES | {"3": "a\tb"}, "label2id": {}}, "config-malformed"),
        ({"id2label": NAMES | {"03": "f"}, "label2id": {}}, "config-malformed"),
        ({"id2label": NAMES, "label2id": {"a": 1, "b": 0}}, "config-malformed"),
        ({"id2label": NAMES, "label2id": {}, "num_labels": 3}, "config-malformed"),
        # transformers would name these classes LABEL_0 and so on.
        ({"id2label": None, "label2id": {"a": 0, "b": 1}}, "config-malformed"),
    ],
)
def test_classes_with_names_that_contradict_each_other_are_refused(change, id, tmp_path):
    save_dense("bert", tmp_path)
    _configure(tmp_path, **change)
    with raises(InputError, id) as caught:
        open_checkpoint(str(tmp_path))
    assert str(tmp_path / "config.json") in str(caught.value)


def test_classes_that_one_entry_alone_names_have_these_names(tmp_path):
    save_dense("bert", tmp_path)
    _configure(tmp_path, id2label=NAMES)  # label2id has LABEL_0 and so on
    model = open_checkpoint(str(tmp_path)).model
    assert list(model.config.id2label.values()) == list("abcde")


def test_notes_beside_a_checkpoint_are_not_part_of_it(tmp_path):
    save_dense("bert", tmp_path)
    before = checkpoint_files(tmp_path)
    assert tmp_path / "model.safetensors" in before
    for name in ("README.md", "loss.png", "notes.log"):
        (tmp_path / name).write_text("seen", encoding="utf-8")
    assert checkpoint_files(tmp_path) == before
    (tmp_path / "vocab.txt").write_text("w5", encoding="utf-8")
    assert checkpoint_files(tmp_path) == sorted([*before, tmp_path / "vocab.txt"])


def test_a_missing_path_is_not_taken_for_a_hub_id(tmp_path):
    with raises(InputError, "checkpoint-missing"):
        open_checkpoint(str(tmp_path / "nothing" / "here"))
    with raises(InputError, "revision-of-directory"):
        open_checkpoint(str(tmp_path), revision="main")


@pytest.mark.parametrize(("name", "dtype"), [("bert", torch.float16), ("marian", torch.float32)])
def test_weights_in_several_files(name: str, dtype, tmp_path, monkeypatch):
    """Read from several, and written to several; transformers reads those too."""
    tiny_model(name).to(dtype).save_pretrained(tmp_path / "dense", max_shard_size="20KB")
    word_tokenizer().save_pretrained(tmp_path / "dense")
    assert len(list((tmp_path / "dense").glob("*.safetensors"))) > 1
    dense = open_checkpoint(str(tmp_path / "dense"))
    assert dense.dtype == dtype
    computed = computed_weights(dense.model)
    for key, value in tiny_model(name).to(dtype).float().state_dict().items():
        assert key in computed or torch.equal(dense.model.state_dict()[key], value)
    mask = uneven_mask(dense.layers)
    pruned = prune(dense.model, dense.layers, mask)
    round_to(pruned, dense.dtype)
    record = facts(dense.layers, mask)
    save_checkpoint(dense, pruned, record, tmp_path / "one")
    monkeypatch.setattr(saving, "SHARD_BYTES", 20_000)
    files = save_checkpoint(dense, pruned, record, tmp_path / "several")
    weights = [path for path in files if path.suffix == ".safetensors"]
    assert len(weights) > 1
    assert not (tmp_path / "several" / "model.safetensors").exists()
    together = {key: value for path in weights for key, value in load_file(path).items()}
    whole = load_file(tmp_path / "one" / "model.safetensors")
    assert together.keys() == whole.keys()
    assert all(torch.equal(together[key], whole[key]) for key in whole)
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text("utf-8"))
    assert index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    batch = ragged_batch(pruned)
    theirs = transformers_class(pruned).from_pretrained(
        tmp_path / "several", trust_remote_code=True, dtype=torch.float32
    )
    with torch.no_grad():
        expected = pruned(**batch).logits
        for model in (compressor.load(tmp_path / "several"), theirs.eval()):
            torch.testing.assert_close(model(**batch).logits, expected, rtol=0, atol=1e-6)


def transformers_class(model):
    is_translator = model.config.is_encoder_decoder
    return (
        transformers.AutoModelForSeq2SeqLM
        if is_translator
        else transformers.AutoModelForSequenceClassification
    )
