"""Saving and loading: what comes back is what was saved, or there is an error."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

import compressor
from compressor.errors import InputError
from compressor.model import checkpoint
from compressor.model.checkpoint import open_checkpoint, round_to, save_checkpoint
from compressor.model.location import checkpoint_files
from compressor.model.surgery import prune
from compressor.model.weights import computed_weights
from tests.helpers import toy
from tests.helpers.damaged_checkpoints import configure, rename
from tests.helpers.errors import raises
from tests.helpers.tiny import (
    facts,
    ragged_batch,
    tiny_model,
    uneven_mask,
    word_tokenizer,
)


def save_dense(name: str, directory, dtype=torch.float32, **options):
    model = tiny_model(name).to(dtype)
    model.save_pretrained(directory, **options)
    word_tokenizer().save_pretrained(directory)
    return model


@torch.no_grad()
def logits(directory) -> torch.Tensor:
    model = open_checkpoint(str(directory)).model
    return model(**ragged_batch(model)).logits


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    root = tmp_path_factory.mktemp("pruned")
    return toy.pruned(toy.translator(root / "dense"), root / "pruned")


def test_pickles_are_loaded_only_when_asked_for_and_keep_their_precision(tmp_path):
    model = save_dense("bert", tmp_path, torch.bfloat16)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with raises(InputError, "weights-pickled"):
        open_checkpoint(str(tmp_path))
    loaded = open_checkpoint(str(tmp_path), allow_pickle=True)
    assert loaded.dtype == torch.bfloat16
    batch = ragged_batch(model)
    torch.testing.assert_close(loaded.model(**batch).logits, model.float()(**batch).logits)


NAMES = {str(number): name for number, name in enumerate("abcde")}


@pytest.mark.parametrize(
    "change",
    [
        {"id2label": NAMES | {"3": " a"}, "label2id": {}},
        {"id2label": NAMES, "label2id": {"a": 1, "b": 0}},
        {"id2label": NAMES, "label2id": {}, "num_labels": 3},
        # transformers would name these classes LABEL_0 and so on.
        {"id2label": None, "label2id": {"a": 0, "b": 1}},
    ],
)
def test_classes_have_names_that_do_not_contradict_each_other(change, tmp_path):
    save_dense("bert", tmp_path)
    configure(id2label=NAMES)(tmp_path)  # and label2id has LABEL_0 and so on
    config = open_checkpoint(str(tmp_path)).model.config
    assert list(config.id2label.values()) == list("abcde")
    configure(**change)(tmp_path)
    with raises(InputError, "config-malformed"):
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


def test_what_cannot_be_opened_as_asked(pruned):
    for path in (pruned / "nothing" / "here", pruned / "config.json"):
        with raises(InputError, "checkpoint-missing"):
            open_checkpoint(str(path))
    with raises(InputError, "revision-of-directory"):
        open_checkpoint(str(pruned), revision="main")
    with raises(InputError, "checkpoint-already-pruned"):
        open_checkpoint(str(pruned), dense=True)


@pytest.mark.parametrize(("name", "dtype"), [("bert", torch.float32), ("marian", torch.float16)])
def test_weights_in_several_files(name: str, dtype, tmp_path, monkeypatch):
    """Read from several, and written to several; transformers reads those too."""
    model = save_dense(name, tmp_path / "dense", dtype, max_shard_size="20KB").float()
    assert len(list((tmp_path / "dense").glob("*.safetensors"))) > 1
    dense = open_checkpoint(str(tmp_path / "dense"))
    assert dense.dtype == dtype
    computed = computed_weights(dense.model)
    for key, value in model.state_dict().items():
        assert key in computed or torch.equal(dense.model.state_dict()[key], value)
    mask = uneven_mask(dense.layers)
    pruned = prune(dense.model, dense.layers, mask)
    round_to(pruned, dense.dtype)
    record = facts(dense.layers, mask)
    save_checkpoint(dense, pruned, record, tmp_path / "one")
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 20_000)
    files = save_checkpoint(dense, pruned, record, tmp_path / "several")
    stored = [path for path in files if path.suffix == ".safetensors"]
    assert len(stored) > 1
    assert not (tmp_path / "several" / "model.safetensors").exists()
    together = {key: value for path in stored for key, value in load_file(path).items()}
    whole = load_file(tmp_path / "one" / "model.safetensors")
    assert {value.dtype for value in whole.values()} == {dtype}
    assert together.keys() == whole.keys()
    assert all(torch.equal(together[key], whole[key]) for key in whole)
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text("utf-8"))
    assert index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    theirs = getattr(transformers, dense.entry.auto_class).from_pretrained(
        tmp_path / "several", trust_remote_code=True, dtype=torch.float32
    )
    batch = ragged_batch(pruned)
    with torch.no_grad():
        expected = pruned(**batch).logits
        for loaded in (compressor.load(tmp_path / "several"), theirs.eval()):
            torch.testing.assert_close(loaded(**batch).logits, expected, rtol=0, atol=1e-6)


def test_weights_without_the_encoders_name_are_read(tmp_path):
    save_dense("bert", tmp_path)
    before = logits(tmp_path)
    rename(lambda x: x.removeprefix("bert."))(tmp_path)
    assert torch.equal(logits(tmp_path), before)


# Each changes nothing, so that those of a model are tried together.
WITHOUT_EFFECT = [
    ("bert", {
        "is_decoder": False, "add_cross_attention": False, "use_cache": False,
        "pruned_heads": {"0": []}, "torchscript": True, "gradient_checkpointing": True,
        "attn_implementation": "flash_attention_2", "position_embedding_type": None,
        "problem_type": "single_label_classification", "dtype": "bfloat16",
        "auto_map": {"AutoTokenizer": "x.Y"}, "tie_word_embeddings": False,
    }),
    ("bert", {"_attn_implementation": "flex_attention", "chunk_size_feed_forward": 2}),
    ("bert", {"output_attentions": True, "output_hidden_states": True, "return_dict": False}),
    ("marian", {
        "is_decoder": True, "add_cross_attention": True, "use_cache": False,
        "output_attentions": True, "output_hidden_states": True, "return_dict": False,
        "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5, "torch_dtype": "float16",
        "normalize_embedding": False, "static_position_embeddings": True,
    }),
    ("bart", {"normalize_before": False, "add_final_layer_norm": False, "pruned_heads": {}}),
    ("t5", {"attn_implementation": "flash_attention_2", "is_decoder": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), WITHOUT_EFFECT)
def test_settings_that_change_nothing(name, changes, tmp_path):
    save_dense(name, tmp_path)
    before = logits(tmp_path)
    configure(**changes)(tmp_path)
    assert torch.equal(logits(tmp_path), before)
    opened = open_checkpoint(str(tmp_path))
    opened.model.config.save_pretrained(tmp_path / "saved")  # what transformers can save, too


@pytest.mark.parametrize("act", ["relu", "gelu_pytorch_tanh"])
def test_activations_are_those_of_the_configuration(act, tmp_path):
    save_dense("bert", tmp_path)
    configure(hidden_act=act)(tmp_path)
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = theirs(**ragged_batch(theirs)).logits
    torch.testing.assert_close(logits(tmp_path), expected)
