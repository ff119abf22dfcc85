"""What checkpoints of others have, and what changes nothing; attacks/ has what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import transformers as t

from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from tests.helpers import tiny, toy
from tests.helpers.damaged_checkpoints import (
    WEIGHTS,
    configure,
    rename,
)
from tests.helpers.errors import raises


@pytest.fixture(scope="module")
def intact(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("foreign")
    return {name: toy.checkpoint(root / name, name) for name in ("bert", "marian", "bart", "t5")}


@pytest.fixture
def copy(intact, tmp_path):
    return lambda name: Path(shutil.copytree(intact[name], tmp_path / "model"))


def logits(directory: Path) -> torch.Tensor:
    model = open_checkpoint(str(directory)).model
    with torch.no_grad():
        return model(**tiny.ragged_batch(model)).logits


def test_weights_without_the_encoders_name_are_read(copy):
    """As transformers reads them, with as many or fewer."""
    directory = copy("bert")
    before = logits(directory)
    rename(lambda x: x.removeprefix("bert."))(directory)
    assert torch.equal(logits(directory), before)


def test_an_encoder_that_was_only_pretrained_makes_embeddings(tmp_path):
    t.BertForPreTraining(t.BertConfig(**tiny._ENCODER)).save_pretrained(tmp_path)
    tiny.word_tokenizer().save_pretrained(tmp_path)
    assert open_checkpoint(str(tmp_path), task="embedding")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bert", {"is_decoder": False, "add_cross_attention": False, "use_cache": False}),
        ("bert", {"pruned_heads": {"0": []}, "torchscript": True, "gradient_checkpointing": True}),
        ("bert", {"output_attentions": True, "output_hidden_states": True, "return_dict": False}),
        ("bert", {"attn_implementation": "flash_attention_2", "position_embedding_type": None}),
        ("bert", {"_attn_implementation": "flex_attention", "chunk_size_feed_forward": 2}),
        ("bert", {"problem_type": "single_label_classification", "dtype": "bfloat16"}),
        ("bert", {"auto_map": {"AutoTokenizer": "x.Y"}, "tie_word_embeddings": False}),
        ("marian", {"is_decoder": True, "add_cross_attention": True, "use_cache": False}),
        ("marian", {"output_attentions": True, "output_hidden_states": True, "return_dict": False}),
        ("marian", {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5, "torch_dtype": "float16"}),
        ("marian", {"normalize_embedding": False, "static_position_embeddings": True}),
        ("bart", {"normalize_before": False, "add_final_layer_norm": False, "pruned_heads": {}}),
        ("t5", {"attn_implementation": "flash_attention_2", "is_decoder": True}),
    ],
)
def test_settings_that_change_nothing(name, change, copy):
    directory = copy(name)
    before = logits(directory)
    configure(**change)(directory)
    assert torch.equal(logits(directory), before)
    opened = open_checkpoint(str(directory))
    opened.model.config.save_pretrained(directory / "saved")  # what transformers can save, too


@pytest.mark.parametrize("act", ["gelu_new", "relu", "silu", "quick_gelu", "gelu_pytorch_tanh"])
def test_activations_are_those_of_the_configuration(act, copy):
    directory = copy("bert")
    configure(hidden_act=act)(directory)
    theirs = t.BertForSequenceClassification.from_pretrained(directory).eval()
    with torch.no_grad():
        expected = theirs(**tiny.ragged_batch(theirs)).logits
    torch.testing.assert_close(logits(directory), expected)


def test_a_file_for_a_directory(copy):
    with raises(InputError, "checkpoint-is-file"):
        open_checkpoint(str(copy("bert") / WEIGHTS))
