"""Damaged, foreign, unsupported or hostile checkpoints: status 4, the file's name, what to do."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from tokenizers import processors

import compressor
from compressor.commands import invoke
from compressor.errors import CompressError, CompressWarning, InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.storage.manifest import read_manifest
from compressor.storage.outputs import whole_output
from tests.helpers import tiny, toy
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
    refused,
    rename,
    sharded,
    weights,
    without,
)
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import write_hashes


@pytest.fixture(scope="session")
def intact(once) -> Callable[[str], Path]:
    """Checkpoints to take copies of: `bert`, `bart`, `marian` with pieces, and a `pruned` one."""

    def make(directory: Path) -> None:
        toy.classifier(directory / "bert")
        toy.translator(directory / "bart", "bart")
        toy.marian_with_pieces(directory / "marian")
        toy.pruned(directory / "marian", directory / "pruned")

    directory = once("attacked-checkpoints", make)
    return lambda name: directory / name


@pytest.fixture
def copy(intact, tmp_path) -> Callable[[str], Path]:
    """Copies of them that a test may change."""
    return lambda name: Path(shutil.copytree(intact(name), tmp_path / name))


def loaded(directory: Path) -> dict[str, list[float]]:
    """The weights; what they compute differs in the last bit with their places in the file."""
    model = open_checkpoint(str(directory)).model
    return {name: value.flatten().tolist() for name, value in model.state_dict().items()}


def test_heads_of_other_tasks_and_numberings_are_left_out(copy):
    """What pretraining, and earlier versions of transformers, leave in files of classifiers."""
    directory = copy("bert")
    before = loaded(directory)
    rest = {
        "bert.embeddings.position_ids": torch.arange(40)[None],
        "cls.predictions.bias": torch.ones(60),
        "cls.seq_relationship.weight": torch.ones(2, 32),
    }
    weights(lambda found: found.update(rest))(directory)
    assert loaded(directory) == before


def test_a_pickle_behind_an_index_is_not_opened(copy, tmp_path):
    class Hostile:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    directory = copy("bert")
    sharded("w.safetensors")(directory)
    (directory / "w.safetensors").write_bytes(pickle.dumps(Hostile()))
    refused(directory, "weights-unreadable", "w.safetensors")
    (directory / f"{WEIGHTS}.index.json").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile()))
    with raises(InputError, "weights-unreadable"):
        open_checkpoint(str(directory), allow_pickle=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", [WEIGHTS, "tokenizer.json"])
def test_links_out_of_the_directory_are_refused_but_those_of_the_hubs_cache(file, copy, tmp_path):
    directory = copy("bert")
    elsewhere = tmp_path / "elsewhere"
    (directory / file).rename(elsewhere)
    (directory / file).symlink_to(elsewhere)
    refused(directory, "file-outside", str(directory / file))
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    (directory / file).unlink()
    elsewhere.rename(blobs / "0123")
    (directory / file).symlink_to(blobs / "0123")
    assert open_checkpoint(str(directory))


def test_what_is_loaded_must_be_listed(copy, capsys):
    """A manifest that lacks a name, as somebody who knows it would write."""
    directory = copy("pruned")
    write_hashes(directory)
    (directory / "notes.txt").write_text("mine", "utf-8")  # nothing reads it
    compressor.load(directory)
    path = directory / "manifest.json"
    data = json.loads(path.read_text("utf-8"))
    del data["files"][WEIGHTS]
    path.write_text(json.dumps(data), "utf-8")
    with raises(InputError, "file-not-in-manifest"):
        compressor.load(directory)
    for command in (["inspect"], ["export", "-o", str(directory / "out"), "-m"]):
        assert invoke([*command, str(directory)]) == 4
        assert "is not listed in manifest.json" in capsys.readouterr().err
    assert invoke(["inspect", str(directory), "--no-verify"]) == 0
    compressor.load(directory, verify=False)


def test_a_pruned_checkpoint_without_a_manifest_is_warned_of_and_no_other(copy, recwarn):
    compressor.load(copy("bert"))
    assert not [warning for warning in recwarn if warning.category is CompressWarning]
    with pytest.warns(CompressWarning, match="has no manifest.json"):
        compressor.load(copy("pruned"))


def test_the_manifest_of_an_export_lists_the_checkpoint_that_it_was_put_into(tmp_path, copy):
    directory = copy("pruned")
    with whole_output(directory, 0, "exporting") as making:
        (making / "onnx").mkdir()
        (making / "onnx" / "model.onnx").touch()
    assert {WEIGHTS, "units.json", "onnx/model.onnx"} <= set(read_manifest(directory) or {})
    compressor.load(directory)
    for harm in (contents(CONFIG, lambda data: data + b"\n"), without("tokenizer_config.json")):
        harm(directory)
        with raises(InputError, "file-changed"):
            compressor.load(directory)


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


def in_two_files(directory: Path) -> None:
    shutil.copy(directory / WEIGHTS, directory / "2.safetensors")
    sharded("1.safetensors")(directory)
    configure(INDEX, weight_map={"a": "1.safetensors", "b": "2.safetensors"})(directory)


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


def template(text: str, end: int = 2) -> Damage:
    """What a tokenizer makes of a text; `end` is the number of the end token."""
    made = processors.TemplateProcessing(text, special_tokens=[("</s>", end)])
    return configure("tokenizer.json", post_processor=json.loads(made.__getstate__()))


def roberta(pad_token_id: int | None, **sizes: Any) -> Damage:
    def change(directory: Path) -> None:
        values = {**tiny._ROBERTA, "pad_token_id": pad_token_id or 0, **sizes}
        of_class("RobertaForSequenceClassification", t.RobertaConfig, values)(directory)
        configure(pad_token_id=pad_token_id)(directory)

    return change


BART = {**tiny._TRANSLATOR, "decoder_start_token_id": 2}
# Checkpoint, what is done to it, the id of the error, and what the message holds beside the
# directory's name.
Case = tuple[str, Damage, str, tuple[str, ...]]
FILES: list[Case] = [
    ("bert", contents(WEIGHTS, b""), UNREADABLE, (WEIGHTS, "is empty")),
    ("bert", contents(WEIGHTS, HTML), UNREADABLE, (WEIGHTS, "HTML")),
    ("bert", contents(WEIGHTS, POINTER), UNREADABLE, (WEIGHTS, "git lfs pull")),
    ("bert", contents(WEIGHTS, lambda data: data[:-1]), UNREADABLE, (WEIGHTS, "cut off")),
    ("bert", moved(WEIGHTS, "model.gguf"), FORM, ("model.gguf", "llama.cpp")),
    ("bert", moved(WEIGHTS, "tf_model.h5"), FORM, ("tf_model.h5", "from_tf=True")),
    ("bert", moved(WEIGHTS, "model.fp16.safetensors"), "weights-missing", ("give the file that",)),
    ("bert", moved(WEIGHTS, "pytorch_model.bin"), "weights-pickled", ("--allow-pickle",)),
    ("bert", sharded("../x.safetensors"), "weights-outside", ("../x.safetensors",)),
    ("bert", in_two_files, UNREADABLE, ("is in another file, too",)),
    ("bert", indexed(DEEP), UNREADABLE, (INDEX,)),
    ("bert", indexed(b'{"weight_map": {"a": "x.safetensors"}}'), "weights-missing",
     ("x.safetensors, which is not there",)),
    ("bert", fifo(CONFIG), "file-unreadable", (CONFIG,)),
    ("bert", files(), "config-missing", ("is empty",)),
    ("bert", files("onnx/graphs.json", "onnx/model.onnx"), FORM, ("predict",)),
    ("bert", files("checkpoint-7/config.json"), "config-missing", ("checkpoint-7, which",)),
    ("bert", files("adapter_config.json", text='{"base_model_name_or_path": "some/base"}'),
     "checkpoint-is-adapter", ("some/base", "merge_and_unload")),
    ("pruned", contents("units.json", b'{"kept": ["cross.0"]}'), "units-file-malformed", ()),
]  # fmt: skip
CONTENTS: list[Case] = [
    ("bert", weights(lambda w: w[LAYER].view(-1)[3:4].fill_(NAN)), "weights-not-finite", (LAYER,)),
    ("bert", weights(lambda w: w.pop(LAYER)), UNFIT, (LAYER,)),
    ("bert", replace(lambda w: w.T.contiguous()), UNFIT, (LAYER,)),
    ("bert", replace(lambda w: w.to(torch.int8)), "weights-not-float", (LAYER,)),
    ("bert", add(f"{QUERY}.query.lora_A.default.weight"), UNFIT, ("merge_and_unload",)),
    ("bert", add(f"{QUERY}.query.qweight"), UNFIT, ("before quantization",)),
    ("bert", rename(lambda x: f"module.{x}"), UNFIT, ("DataParallel", "`model.module`")),
    ("bert", rename(lambda x: f"_orig_mod.{x}"), UNFIT, ("torch.compile", "`model._orig_mod`")),
    ("bert", rename(lambda x: f"module.net.{x}"), UNFIT, ("another model", "inner model")),
    ("marian", configure(decoder_layers=2), UNFIT, ("decoder.layers.2",)),
    ("marian", configure(tie_word_embeddings=False), UNFIT, ("tie_word_embeddings",)),
    ("pruned", configure(decoder_layers=2), "units-file-of-another-model", ()),
    ("marian", weights(tied), "weights-tied-differ", ("lm_head.weight",)),
    ("bert", resized(59), "tokenizer-of-another-model", ("60 tokens",)),
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
            ("BertLMHeadModel", t.BertConfig, {**tiny._ENCODER, "is_decoder": True}),
        )
    ),
    ("bert", of_class("BertForPreTraining", t.BertConfig, tiny._ENCODER), UNFIT,
     ("without the head", "--task embedding")),
    *(
        (name, configure(**{key: value}), id, (key,))
        for name, key, value, id in (
            ("bert", "is_decoder", True, VARIANT), ("marian", "is_encoder_decoder", False, VARIANT),
            ("bart", "normalize_before", True, VARIANT),
            ("bert", "pruned_heads", {"0": [1, 2]}, VARIANT),
            ("bert", "auto_map", {"AutoModel": "modeling_own.OwnModel"}, VARIANT),
            ("bert", "position_embedding_type", "relative_key", "positions-unsupported"),
            ("bert", "hidden_act", "banana", MALFORMED),
            ("bert", "quantization_config", {"quant_method": "awq"}, FORM),
            ("bert", "transformers_weights", "other.safetensors", FORM),
        )
    ),
]  # fmt: skip
# Where the id may be one of several. The fuzzer has many more.
CONFIGURATIONS: list[Case] = [
    *(
        (name, configure(**{key: value}), "", ())
        for name, key, value in (
            ("bert", "num_attention_heads", 3), ("bert", "vocab_size", 10**9),
            ("bert", "hidden_size", 10**9), ("bert", "num_hidden_layers", 10_000_000),
            ("bert", "layer_norm_eps", NAN), ("marian", "decoder_start_token_id", 60),
        )
    ),
    ("bert", contents(CONFIG, DEEP), MALFORMED, ()),
    ("bert", roberta(None), MALFORMED, ("pad_token_id is missing",)),
    ("bert", roberta(39), MALFORMED,
     ("max_position_embeddings is 40", "0 positions behind pad_token_id 39")),
    ("bert", of_class("BertForSequenceClassification", t.BertConfig,
                      {**tiny._ENCODER, "max_position_embeddings": 3}), MALFORMED,
     ("max_position_embeddings is 3", "needs 4")),
    ("bert", configure(max_position_embeddings=64), UNFIT, ("40 x 32", "64 x 32")),
    ("bert", configure(type_vocab_size=0), MALFORMED, ("type_vocab_size is 0", "from 1 to")),
    ("bert", configure(id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1}), UNFIT,
     ("classifier", "5", "2")),
    ("marian", contents(GENERATION, DEEP), GENERATES, (GENERATION,)),
    ("pruned", contents(GENERATION, b"{}"), GENERATES, (GENERATION,)),
]  # fmt: skip
TOKENIZERS: list[Case] = [
    *(
        ("marian", contents(name, data), TOKENIZER, ())
        for name, data in (
            ("source.spm", lambda data: data[: len(data) // 2]), ("target.spm", b""),
            ("vocab.json", b""), (SETTINGS, lambda data: data[: len(data) // 2]),
        )
    ),
    ("bert", without("tokenizer.json", SETTINGS), "tokenizer-missing", ()),
    ("bert", configure("tokenizer.json", post_processor=PANICS), TOKENIZER, ()),
    ("marian", configure("vocab.json", more=7), "tokenizer-of-another-model", ()),
    ("bert", configure(SETTINGS, pad_token=None), "tokenizer-without-token", ()),
    ("bert", configure(SETTINGS, model_max_length=0), "tokenizer-length-invalid", ()),
    ("bert", template("$A </s>", end=99), "tokenizer-of-another-model",
     ("the token number 99", "embeddings for 60")),
    ("bert", template("$A:2 </s>"), "token-type-unknown", ("token type 2", "type_vocab_size 2")),
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
