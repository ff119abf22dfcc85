"""Damaged, foreign and unsupported checkpoints: status 4, the file's name, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

from compressor.errors import CompressError, InputError
from compressor.model.checkpoint import open_checkpoint
from tests.helpers import tiny
from tests.helpers.damaged_checkpoints import (
    CONFIG,
    DEEP,
    GENERATION,
    HTML,
    PANICS,
    POINTER,
    WEIGHTS,
    Damage,
    configure,
    contents,
    fifo,
    moved,
    rename,
    sharded,
    weights,
    without,
)

UNREADABLE, UNFIT, FORM = "weights-unreadable", "weights-do-not-fit", "checkpoint-form-unsupported"
TOKENIZER, VARIANT, MALFORMED = (
    "tokenizer-unreadable", "architecture-variant-unsupported", "config-malformed",
)  # fmt: skip
UNKNOWN, GENERATES = "architecture-unsupported", "generation-config-malformed"
INDEX, SETTINGS = f"{WEIGHTS}.index.json", "tokenizer_config.json"
NAN, HUGE = float("nan"), 10**30
LAYER, QUERY = "bert.encoder.layer.2.output.dense.weight", "bert.encoder.layer.0.attention.self"


def files(*names: str, text: str = "{}") -> Damage:
    """A directory that has these files alone."""

    def make(directory: Path) -> None:
        for path in directory.iterdir():
            path.unlink()
        for name in names:
            (directory / name).parent.mkdir(exist_ok=True, parents=True)
            (directory / name).write_text(text, "utf-8")

    return make


def indexed(data: bytes) -> Damage:
    """An index, and no weights."""

    def change(directory: Path) -> None:
        (directory / WEIGHTS).unlink()
        (directory / INDEX).write_bytes(data)

    return change


def of_class(name: str, config: Any, values: dict[str, Any]) -> Damage:
    """Another class of transformers."""
    return lambda directory: getattr(t, name)(config(**values)).save_pretrained(directory)


def resized(tokens: int) -> Damage:
    def change(directory: Path) -> None:
        model: Any = tiny.tiny_model("bert")
        model.resize_token_embeddings(tokens)
        model.save_pretrained(directory)

    return change


def add(name: str) -> Damage:
    return weights(lambda w: w.update({name: torch.ones(2)}))


def replace(change: Any) -> Damage:
    return weights(lambda w: w.update({LAYER: change(w[LAYER])}))


def tied(w: dict[str, torch.Tensor]) -> None:
    w["lm_head.weight"] = w["model.shared.weight"] + 1


BART = {**tiny._TRANSLATOR, "decoder_start_token_id": 2}
# Checkpoint, what is done to it, the id of the error, and what the message holds beside the
# directory's name.
Case = tuple[str, Damage, str, tuple[str, ...]]
FILES: list[Case] = [
    ("bert", contents(WEIGHTS, b""), UNREADABLE, (WEIGHTS, "is empty")),
    ("bert", contents(WEIGHTS, HTML), UNREADABLE, (WEIGHTS, "HTML")),
    ("bert", contents(WEIGHTS, POINTER), UNREADABLE, (WEIGHTS, "git lfs pull")),
    ("bert", contents(WEIGHTS, lambda data: data[:-1]), UNREADABLE, (WEIGHTS, "cut off")),
    ("bert", contents(WEIGHTS, lambda data: b"\xff" * 8 + data[8:]), UNREADABLE, (WEIGHTS,)),
    ("bert", contents(WEIGHTS, lambda x: x.replace(b'"F32"', b'"F99"', 1)), UNREADABLE, (WEIGHTS,)),
    ("bert", moved(WEIGHTS, "model.gguf"), FORM, ("model.gguf", "llama.cpp")),
    ("bert", moved(WEIGHTS, "tf_model.h5"), FORM, ("tf_model.h5", "from_tf=True")),
    ("bert", moved(WEIGHTS, "flax_model.msgpack"), FORM, ("from_flax=True",)),
    ("bert", moved(WEIGHTS, "model.onnx"), FORM, ("ONNX",)),
    ("bert", moved(WEIGHTS, "model.fp16.safetensors"), "weights-missing", ("give the file that",)),
    ("bert", moved(WEIGHTS, "pytorch_model.bin"), "weights-pickled", ("--allow-pickle",)),
    ("bert", sharded("../x.safetensors"), "weights-outside", ("../x.safetensors",)),
    ("bert", indexed(b'{"weight_map": {"a": 5}}'), UNREADABLE, (INDEX,)),
    ("bert", indexed(DEEP), UNREADABLE, (INDEX,)),
    ("bert", indexed(b'{"weight_map": {"a": "x.safetensors"}}'), "weights-missing",
     ("x.safetensors, which is not there",)),
    ("bert", fifo(CONFIG), "checkpoint-file-unreadable", (CONFIG,)),
    ("bert", fifo("x.jinja"), "checkpoint-file-unreadable", ("x.jinja",)),
    ("bert", files(), "config-missing", ("is empty",)),
    ("bert", files("README.md"), "config-missing", ("give a checkpoint's directory",)),
    ("bert", files("onnx/graphs.json", "onnx/model.onnx"), FORM, ("predict",)),
    ("bert", files("checkpoint-7/config.json"), "config-missing", ("checkpoint-7, which",)),
    ("bert", files("adapter_config.json", text='{"base_model_name_or_path": "some/base"}'),
     "checkpoint-is-adapter", ("some/base", "merge_and_unload")),
    ("pruned", contents("units.json", DEEP), "units-file-malformed", ("units.json",)),
    ("pruned", contents("units.json", b'{"kept": ["cross.0"]}'), "units-file-malformed", ()),
]  # fmt: skip
CONTENTS: list[Case] = [
    ("bert", weights(lambda w: w[LAYER].view(-1)[3:4].fill_(NAN)), "weights-not-finite", (LAYER,)),
    ("bert", weights(lambda w: w.pop(LAYER)), UNFIT, (LAYER,)),
    ("bert", replace(lambda w: w.T.contiguous()), UNFIT, (LAYER,)),
    ("bert", replace(lambda w: w.to(torch.int8)), "weights-not-float", (LAYER,)),
    ("bert", add("x.adapter.weight"), UNFIT, ("adapter",)),
    ("bert", add(LAYER.replace("2", "3")), UNFIT, ("layer.3",)),
    ("bert", add(f"{QUERY}.query.lora_A.default.weight"), UNFIT, ("merge_and_unload",)),
    ("bert", add(f"{QUERY}.query.qweight"), UNFIT, ("before quantization",)),
    ("bert", rename(lambda x: f"module.{x}"), UNFIT, ("DataParallel", "`model.module`")),
    ("bert", rename(lambda x: f"_orig_mod.{x}"), UNFIT, ("torch.compile", "`model._orig_mod`")),
    ("bert", rename(lambda x: f"_fsdp_wrapped_module.{x}"), UNFIT, ("FullyShardedDataParallel",)),
    ("bert", rename(lambda x: f"module.net.{x}"), UNFIT, ("another model", "inner model")),
    ("marian", configure(decoder_layers=2), UNFIT, ("decoder.layers.2",)),
    ("marian", configure(tie_word_embeddings=False), UNFIT, ("tie_word_embeddings",)),
    ("pruned", configure(decoder_layers=2), "units-file-of-another-model", ()),
    ("marian", weights(tied), "weights-tied-differ", ("lm_head.weight",)),
    ("bert", resized(59), "tokenizer-of-another-model", ("60 tokens",)),
    ("bert", resized(200), "tokenizer-of-another-model", ("200",)),
]
ARCHITECTURES: list[Case] = [
    *(
        ("bert", configure(model_type=name), UNKNOWN, (f"'{name}'", named))
        for name, named in {
            "gpt2": "not supported; supported are", "albert": "share one set of weights",
            "nllb-moe": "experts",
        }.items()
    ),
    ("bert", contents(CONFIG, lambda x: x.replace(b"model_type", b"type")), UNKNOWN,
     ("has no model_type",)),
    *(
        ("bert", of_class(name, config, values), VARIANT, (f"names the class {name}, which ",))
        for name, config, values in (
            ("BartForSequenceClassification", t.BartConfig, BART),
            ("T5EncoderModel", t.T5Config, tiny._T5),
            ("BertForMultipleChoice", t.BertConfig, tiny._ENCODER),
            ("BertLMHeadModel", t.BertConfig, {**tiny._ENCODER, "is_decoder": True}),
        )
    ),
    ("bert", of_class("BertForPreTraining", t.BertConfig, tiny._ENCODER), UNFIT,
     ("without the head", "--task embedding")),
    *(
        (name, configure(**{key: value}), id, (key,))
        for name, key, value, id in (
            ("bert", "is_decoder", True, VARIANT), ("bert", "add_cross_attention", True, VARIANT),
            ("marian", "is_encoder_decoder", False, VARIANT),
            ("bart", "normalize_before", True, VARIANT),
            ("bert", "pruned_heads", {"0": [1, 2]}, VARIANT),
            ("bert", "auto_map", {"AutoModel": "modeling_own.OwnModel"}, VARIANT),
            ("bert", "position_embedding_type", "relative_key", "positions-unsupported"),
            ("bert", "hidden_act", "banana", MALFORMED),
            ("bert", "initializer_range", 9, MALFORMED),
            ("bert", "quantization_config", {"quant_method": "awq"}, FORM),
            ("bert", "transformers_weights", "other.safetensors", FORM),
        )
    ),
]  # fmt: skip
# Where the id may be one of several.
CONFIGURATIONS: list[Case] = [
    *(
        ("bert", configure(**{key: value}), "", ())
        for key, values in {
            "num_attention_heads": (0, 3, HUGE, "4", None, 4.5), "vocab_size": (-1, 10**9),
            "max_position_embeddings": (0, 2**62), "num_hidden_layers": (0, 900, 10_000_000),
            "hidden_size": (10**9,), "intermediate_size": (10**12,), "pad_token_id": (60, "0"),
            "dtype": ("banana", 5), "id2label": (5, {"0": "a", "7": "b"}), "num_labels": (10**9,),
            "layer_norm_eps": (NAN,), "hidden_dropout_prob": (7,),
        }.items()
        for value in values
    ),
    *(
        ("marian", configure(**values), "", ())
        for values in (
            {"encoder_layers": 10_000_000}, {"d_model": 31}, {"decoder_start_token_id": 60},
            {"eos_token_id": "</s>"}, {"activation_function": None}, {"decoder_ffn_dim": 10**6},
        )
    ),
    *(
        ("bert", contents(CONFIG, data), id, ())
        for data, id in (
            (b"", MALFORMED), (b"\xff\xfe", MALFORMED), (b"[1]", MALFORMED), (DEEP, MALFORMED),
            (b'{"model_type": ["bert"]}', UNKNOWN),
            (b'{"model_type": "' + b"x" * 100_000 + b'"}', UNKNOWN),
            (b'{"model_type": "bert", "vocab_size": ' + b"9" * 5000 + b"}", MALFORMED),
            (b'{"a": "' + b" " * (1 << 26) + b'"}', "config-unreadable"),
        )
    ),
    *(
        (name, contents(GENERATION, data), GENERATES, (GENERATION,))
        for name in ("marian", "pruned")
        for data in (b"", DEEP, b"{}")
    ),
]  # fmt: skip
TOKENIZERS: list[Case] = [
    *(
        ("marian", contents(name, data), TOKENIZER, ())
        for name in ("source.spm", "target.spm", "vocab.json", SETTINGS)
        for data in (b"", lambda data: data[: len(data) // 2])
    ),
    ("bert", without("tokenizer.json", SETTINGS), "tokenizer-missing", ()),
    ("bert", without("tokenizer.json"), TOKENIZER, ()),
    ("bert", contents("tokenizer.json", b"{}"), TOKENIZER, ()),
    ("bert", configure("tokenizer.json", post_processor=PANICS), TOKENIZER, ()),
    ("marian", without("source.spm"), TOKENIZER, ()),
    ("marian", configure("vocab.json", more=7), "tokenizer-of-another-model", ()),
    ("bert", configure(SETTINGS, pad_token=None), "tokenizer-without-token", ()),
    ("bert", configure(SETTINGS, unk_token=""), TOKENIZER, ()),
    ("bert", configure(SETTINGS, tokenizer_class=5), TOKENIZER, ()),
    ("bert", configure(SETTINGS, model_max_length=0), "tokenizer-length-invalid", ()),
    ("bert", configure(SETTINGS, extra_special_tokens=[f"new{i}" for i in range(9)]),
     "tokenizer-of-another-model", ()),
]  # fmt: skip
CASES = FILES + CONTENTS + ARCHITECTURES + CONFIGURATIONS + TOKENIZERS


@pytest.mark.parametrize(("name", "damage", "id", "named"), CASES)
def test_a_checkpoint_is_refused_by_name(name, damage, id, named, copy):
    directory = copy(name)
    damage(directory)
    with pytest.raises(CompressError) as caught:
        open_checkpoint(str(directory))
    message = str(caught.value)
    assert caught.type is InputError
    assert caught.value.id == id or not id, f"{caught.value.id}: {message}"
    assert "\n" not in message
    for word in (str(directory), *named):
        assert word in message
