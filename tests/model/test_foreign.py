"""What is no checkpoint of a supported model is told by what it is, with what to do about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from tests.helpers import tiny, toy
from tests.helpers.damaged_checkpoints import (
    CONFIG,
    WEIGHTS,
    configure,
    refused,
    weights,
    without,
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


def rename(change):
    def damage(directory: Path) -> None:
        found = {change(name): value for name, value in load_file(directory / WEIGHTS).items()}
        save_file(found, directory / WEIGHTS, metadata={"format": "pt"})

    return damage


@pytest.mark.parametrize(
    ("prefix", "named", "advice"),
    [
        ("module.", "DataParallel", "`model.module`"),
        ("_orig_mod.", "torch.compile", "`model._orig_mod`"),
        ("_fsdp_wrapped_module.", "FullyShardedDataParallel", "Trainer.save_model"),
        ("net.", "another model", "inner model"),
        ("module.net.", "another model", "inner model"),
    ],
)
def test_names_of_weights_of_what_was_around_a_model(prefix, named, advice, copy):
    directory = copy("bert")
    rename(lambda x: prefix + x)(directory)
    told = refused(directory, "weights-do-not-fit", named)
    assert repr(prefix.removeprefix("module.") or prefix) in told
    assert advice in told


def test_names_of_wrapped_layers(copy):
    directory = copy("bert")
    rename(lambda x: x.replace(".layer.", ".layer._orig_mod."))(directory)
    refused(directory, "weights-do-not-fit", "torch.compile")


def test_weights_without_the_encoders_name_are_read(copy):
    """As transformers reads them, with as many or fewer."""
    directory = copy("bert")
    before = logits(directory)
    rename(lambda x: x.removeprefix("bert."))(directory)
    assert torch.equal(logits(directory), before)


QUERY = "bert.encoder.layer.0.attention.self.query"


@pytest.mark.parametrize(
    ("name", "named"),
    [
        (f"{QUERY}.lora_A.default.weight", "merge_and_unload"),
        (f"{QUERY}.qweight", "before quantization"),
        (f"{QUERY}.weight.absmax", "before quantization"),
        (f"{QUERY}.weight.quant_state.bitsandbytes__nf4", "before quantization"),
    ],
)
def test_weights_of_adapters_and_of_quantization(name, named, copy):
    directory = copy("bert")
    weights(lambda found: found.update({name: torch.ones(2)}))(directory)
    assert name in refused(directory, "weights-do-not-fit", named)


@pytest.mark.parametrize(
    ("file", "id", "named"),
    [
        ("model.gguf", "checkpoint-form-unsupported", "llama.cpp"),
        ("tf_model.h5", "checkpoint-form-unsupported", "from_tf=True"),
        ("flax_model.msgpack", "checkpoint-form-unsupported", "from_flax=True"),
        ("model.onnx", "checkpoint-form-unsupported", "ONNX"),
        ("model.fp16.safetensors", "weights-missing", "give the file that name"),
        ("pytorch_model.bin", "weights-pickled", "--allow-pickle"),
    ],
)
def test_weights_in_another_form(file, id, named, copy):
    directory = copy("bert")
    (directory / WEIGHTS).rename(directory / file)
    assert file in refused(directory, id, named)


@pytest.mark.parametrize(
    ("files", "id", "named"),
    [
        ([], "config-missing", "is empty"),
        (["README.md"], "config-missing", "give a checkpoint's directory"),
        (["a.gguf"], "checkpoint-form-unsupported", "llama.cpp"),
        (["onnx/graphs.json", "onnx/model.onnx"], "checkpoint-form-unsupported", "predict"),
        (["onnx/model.onnx"], "checkpoint-form-unsupported", "ONNX"),
        (["checkpoint-7/config.json", "x.txt"], "config-missing", "checkpoint-7, which has one"),
        (["snapshots/0a/config.json", "refs/main"], "config-missing", "snapshots/0a, which"),
    ],
)
def test_directories_without_a_configuration(files, id, named, tmp_path):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).write_text("{}", "utf-8")
    refused(tmp_path, id, named)


def test_an_adapter_is_told_with_its_base(tmp_path):
    values = {"peft_type": "LORA", "base_model_name_or_path": "some/base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(values), "utf-8")
    assert "some/base" in refused(tmp_path, "checkpoint-is-adapter", "merge_and_unload")


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("gpt2", "a decoder alone"),
        ("llama", "a decoder alone"),
        ("vit", "a model of images"),
        ("whisper", "a model of speech"),
        ("wav2vec2", "a model of speech"),
        ("clip", "images and texts"),
        ("encoder-decoder", "joins two models"),
        ("big_bird", "is not supported; supported are"),
        (None, "has no model_type"),
    ],
)
def test_other_architectures(model_type, named, copy):
    directory = copy("bert")
    configure(model_type=model_type)(directory)
    if model_type is None:
        path = directory / CONFIG
        values = json.loads(path.read_text("utf-8"))
        del values["model_type"]
        path.write_text(json.dumps(values), "utf-8")
    refused(directory, "architecture-unsupported", named)


BART = {**tiny._TRANSLATOR, "decoder_start_token_id": 2}
CLASSES = {
    "BartForSequenceClassification": (t.BartConfig, BART),
    "BartForQuestionAnswering": (t.BartConfig, BART),
    "MBartForSequenceClassification": (t.MBartConfig, BART),
    "T5ForSequenceClassification": (t.T5Config, tiny._T5),
    "T5EncoderModel": (t.T5Config, tiny._T5),
    "BertForMultipleChoice": (t.BertConfig, tiny._ENCODER),
    "BertLMHeadModel": (t.BertConfig, {**tiny._ENCODER, "is_decoder": True}),
}


@pytest.mark.parametrize("name", CLASSES)
def test_models_for_what_nothing_here_is_for(name, tmp_path):
    config, values = CLASSES[name]
    getattr(t, name)(config(**values)).save_pretrained(tmp_path)
    tiny.word_tokenizer().save_pretrained(tmp_path)
    refused(tmp_path, "architecture-variant-unsupported", f"names the class {name}, which ")


@pytest.mark.parametrize(
    "name", ["BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction"]
)
def test_encoders_that_were_only_pretrained(name, tmp_path):
    getattr(t, name)(t.BertConfig(**tiny._ENCODER)).save_pretrained(tmp_path)
    tiny.word_tokenizer().save_pretrained(tmp_path)
    assert "--task embedding" in refused(tmp_path, "weights-do-not-fit", "without the head")
    assert open_checkpoint(str(tmp_path), task="embedding")


VARIANT = "architecture-variant-unsupported"


@pytest.mark.parametrize(
    ("name", "change", "id"),
    [
        ("bert", {"is_decoder": True}, VARIANT),
        ("bert", {"is_decoder": True, "add_cross_attention": True}, VARIANT),
        ("bert", {"add_cross_attention": True}, VARIANT),
        ("bert", {"is_encoder_decoder": True}, VARIANT),
        ("marian", {"is_encoder_decoder": False}, VARIANT),
        ("t5", {"is_encoder_decoder": False}, VARIANT),
        ("bart", {"normalize_before": True}, VARIANT),
        ("bert", {"pruned_heads": {"0": [1, 2]}}, VARIANT),
        ("bart", {"pruned_heads": {"3": [0]}}, VARIANT),
        ("bert", {"auto_map": {"AutoModel": "modeling_own.OwnModel"}}, VARIANT),
        ("bert", {"position_embedding_type": "relative_key"}, "positions-unsupported"),
        ("bert", {"hidden_act": "banana"}, "config-malformed"),
        ("marian", {"activation_function": "banana"}, "config-malformed"),
        ("bert", {"initializer_range": 9}, "config-malformed"),
        ("marian", {"tie_word_embeddings": False}, "weights-do-not-fit"),
        ("bert", {"quantization_config": {"quant_method": "awq"}}, "checkpoint-form-unsupported"),
    ],
)
def test_configurations_of_another_model_are_told_by_the_setting(name, change, id, copy):
    directory = copy(name)
    configure(**change)(directory)
    refused(directory, id, next(iter(change)))


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


def test_a_shard_that_is_missing_is_named(copy):
    directory = copy("bert")
    without(WEIGHTS)(directory)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index), "utf-8")
    refused(directory, "weights-missing", "model-00001-of-00002.safetensors, which is not there")


def test_a_file_for_a_directory(copy):
    with raises(InputError, "checkpoint-is-file"):
        open_checkpoint(str(copy("bert") / WEIGHTS))
