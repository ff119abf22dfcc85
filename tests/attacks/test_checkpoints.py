"""Checkpoints that are damaged, foreign or hostile: status 4 and the file's name, at once."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import compressor
from compressor.commands import invoke
from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.location import checkpoint_files
from compressor.model.saving import save_checkpoint
from compressor.model.surgery import prune
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.tiny import facts, tiny_model, uneven_mask

Damage = Callable[[Path], object]
WEIGHTS, CONFIG, GENERATION = "model.safetensors", "config.json", "generation_config.json"


@pytest.fixture(scope="session")
def intact(once) -> Callable[[str], Path]:
    """Checkpoints to take copies of: `bert`, `marian` with pieces, and a `pruned` one."""

    def make(directory: Path) -> None:
        toy.classifier(directory / "bert")
        toy.marian_with_pieces(directory / "marian")
        dense = open_checkpoint(str(directory / "marian"))
        mask = uneven_mask(dense.layers)
        pruned = prune(dense.model, dense.layers, mask)
        save_checkpoint(dense, pruned, facts(dense.layers, mask), directory / "pruned")

    directory = once("attacked-checkpoints", make)
    return lambda name: directory / name


@pytest.fixture
def copy(intact, tmp_path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(intact(name), tmp_path / name))


def configure(file: str = CONFIG, **values: object) -> Damage:
    def change(directory: Path) -> None:
        path = directory / file
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")

    return change


def contents(file: str, data: bytes | Callable[[bytes], bytes]) -> Damage:
    def change(directory: Path) -> None:
        path = directory / file
        path.write_bytes(data(path.read_bytes()) if callable(data) else data)

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(directory: Path) -> None:
        found = load_file(directory / WEIGHTS)
        change(found)
        save_file(found, directory / WEIGHTS, metadata={"format": "pt"})

    return damage


def fifo(file: str) -> Damage:
    def change(directory: Path) -> None:
        (directory / file).unlink(missing_ok=True)
        os.mkfifo(directory / file)

    return change


def without(*files: str) -> Damage:
    return lambda directory: [(directory / file).unlink() for file in files]


def refused(directory: Path, id: str, named: str) -> str:
    with raises(InputError, id) as caught:
        open_checkpoint(str(directory))
    assert named in str(caught.value)
    return str(caught.value)


HTML = b"<!DOCTYPE html><html><body>Not found</body></html>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 268435456\n"


@pytest.mark.parametrize("name", ["bert", "pruned"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (HTML, "HTML"),
        (POINTER, "git lfs pull"),
        (b"junk", ""),
        (os.urandom(5000), ""),
        (lambda data: data[: len(data) // 2], "cut off"),
        (lambda data: data[:-1], "cut off"),
        (lambda data: data[:40], "cut off"),
        (lambda data: b"\xff" * 8 + data[8:], ""),
        (lambda data: data.replace(b'"F32"', b'"F99"', 1), ""),
    ],
)
def test_damaged_weights_are_told_by_the_file(name, data, reason, copy):
    directory = copy(name)
    contents(WEIGHTS, data)(directory)
    assert reason in refused(directory, "weights-unreadable", str(directory / WEIGHTS))
    with raises(InputError, "weights-unreadable"):
        compressor.load(directory)


HUGE = 10**30
DEEP = b'{"model_type": ' + b"[" * 200_000


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"num_attention_heads": heads}
            for heads in (0, -4, 3, 1000, HUGE, "4", None, 4.5, True, [4])
        ),
        *({"vocab_size": size} for size in (0, -1, 10**9, HUGE, "60", None, 60.5)),
        *({"max_position_embeddings": n} for n in (0, -1, 10**9, 2**62, "x", None)),
        *({"num_hidden_layers": n} for n in (0, -1, 900, 10_000_000, 1e9)),
        *({"hidden_size": n} for n in (0, 10**9, "wide")),
        *({"intermediate_size": n} for n in (0, 10**12)),
        *({"pad_token_id": token} for token in (-1, 60, 10**12, "0", 1.5)),
        *({"dtype": dtype} for dtype in ("banana", 5, ["float32"])),
        *({"id2label": labels} for labels in (5, ["a", 3], {"a": "b", "c": "d"}, {"0": 1, "1": 2})),
        {"id2label": {"0": "a", "7": "b"}},
        {"num_labels": 10**9},
        {"num_labels": "five"},
        {"hidden_act": "banana"},
        {"layer_norm_eps": float("nan")},
        {"layer_norm_eps": "tiny"},
        {"hidden_dropout_prob": 7},
        {"architectures": 3, "num_attention_heads": 0},
    ],
)
def test_absurd_configurations_are_told_by_the_file(change, copy):
    directory = copy("bert")
    configure(**change)(directory)
    with pytest.raises(InputError) as caught:
        open_checkpoint(str(directory))
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"encoder_layers": 10_000_000},
        {"encoder_layers": 1000},
        {"d_model": 31},
        {"max_position_embeddings": 60_000, "d_model": 60_000},
        {"decoder_start_token_id": 60},
        {"decoder_start_token_id": -1},
        {"eos_token_id": "</s>"},
        {"activation_function": None},
        {"decoder_ffn_dim": 10**6},
    ],
)
@pytest.mark.parametrize("name", ["marian", "pruned"])
def test_absurd_translators_are_told_by_the_file(name, change, copy):
    directory = copy(name)
    configure(**change)(directory)
    with pytest.raises(InputError) as caught:
        open_checkpoint(str(directory))
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "id"),
    [
        (b"", "config-malformed"),
        (b"\xff\xfe", "config-malformed"),
        (HTML, "config-malformed"),
        (b"[1]", "config-malformed"),
        (b"null", "config-malformed"),
        (DEEP, "config-malformed"),
        (b'{"model_type": 5}', "architecture-unsupported"),
        (b'{"model_type": ["bert"]}', "architecture-unsupported"),
        (b'{"model_type": "' + b"x" * 100_000 + b'"}', "architecture-unsupported"),
        (b'{"model_type": "bert", "vocab_size": ' + b"9" * 5000 + b"}", "config-malformed"),
        (b'{"a": "' + b" " * (1 << 26) + b'"}', "config-unreadable"),
    ],
)
def test_a_configuration_that_is_none_is_told(data, id, copy):
    directory = copy("bert")
    contents(CONFIG, data)(directory)
    refused(directory, id, str(directory))


@pytest.mark.parametrize(
    "file", ["source.spm", "target.spm", "vocab.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize(
    "damage",
    [
        lambda file: contents(file, b""),
        lambda file: contents(file, HTML),
        lambda file: contents(file, POINTER),
        lambda file: contents(file, lambda data: data[: len(data) // 2]),
        lambda file: contents(file, b"[" * 100_000),
    ],
)
def test_damaged_files_of_a_tokenizer_are_told(file, damage, copy):
    directory = copy("marian")
    damage(file)(directory)
    refused(directory, "tokenizer-unreadable", str(directory))


@pytest.mark.parametrize(
    ("name", "damage", "id"),
    [
        ("bert", without("tokenizer.json", "tokenizer_config.json"), "tokenizer-missing"),
        ("bert", without("tokenizer.json"), "tokenizer-unreadable"),
        ("bert", contents("tokenizer.json", b"{}"), "tokenizer-unreadable"),
        ("marian", without("source.spm"), "tokenizer-unreadable"),
        ("marian", without("vocab.json"), "tokenizer-unreadable"),
        ("marian", configure("vocab.json", **{"unused50": None}), "tokenizer-unreadable"),
        ("marian", configure("vocab.json", more=7), "tokenizer-of-another-model"),
        ("bert", configure("tokenizer_config.json", pad_token=None), "tokenizer-without-token"),
        ("bert", configure("tokenizer_config.json", eos_token=None), "tokenizer-without-token"),
        ("bert", configure("tokenizer_config.json", unk_token=""), "tokenizer-unreadable"),
        ("bert", configure("tokenizer_config.json", pad_token=5), "tokenizer-unreadable"),
        ("bert", configure("tokenizer_config.json", tokenizer_class=5), "tokenizer-unreadable"),
        (
            "bert",
            configure("tokenizer_config.json", model_max_length=0),
            "tokenizer-length-invalid",
        ),
        (
            "bert",
            configure("tokenizer_config.json", model_max_length="x"),
            "tokenizer-length-invalid",
        ),
        (
            "bert",
            configure("tokenizer_config.json", extra_special_tokens=[f"new{i}" for i in range(9)]),
            "tokenizer-of-another-model",
        ),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(name, damage, id, copy):
    directory = copy(name)
    damage(directory)
    refused(directory, id, str(directory))


@pytest.mark.parametrize("name", ["bert", "distilbert", "electra", "roberta"])
def test_a_checkpoint_that_the_model_alone_saved_is_refused(name, tmp_path):
    """transformers makes up an empty tokenizer, for which all texts are the same."""
    tiny_model(name).save_pretrained(tmp_path)
    with pytest.raises(InputError) as caught:
        open_checkpoint(str(tmp_path))
    assert caught.value.id in ("tokenizer-missing", "tokenizer-unreadable")
    assert invoke(["inspect", str(tmp_path)]) == 4


def test_a_tokenizer_of_a_much_larger_or_smaller_model_is_refused(tmp_path, copy):
    directory = toy.classifier(tmp_path / "larger")
    model = tiny_model("bert")
    model.resize_token_embeddings(59)
    model.save_pretrained(directory)
    refused(directory, "tokenizer-of-another-model", "60 tokens")
    model.resize_token_embeddings(200)
    model.save_pretrained(directory)
    refused(directory, "tokenizer-of-another-model", "200")
    model.resize_token_embeddings(64)  # padded to a round number
    model.save_pretrained(directory)
    assert open_checkpoint(str(directory))


NAN, INFINITE = float("nan"), float("inf")
EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
LAYER = "bert.encoder.layer.2.output.dense.weight"


@pytest.mark.parametrize(
    ("change", "id", "named"),
    [
        (lambda w: w[LAYER].view(-1)[3:4].fill_(NAN), "weights-not-finite", LAYER),
        (lambda w: w[LAYER].view(-1)[3:4].fill_(INFINITE), "weights-not-finite", LAYER),
        (lambda w: w.pop(LAYER), "weights-do-not-fit", LAYER),
        (lambda w: w.update({LAYER: w[LAYER].T.contiguous()}), "weights-do-not-fit", LAYER),
        (lambda w: w.update({LAYER: w[LAYER][:5].clone()}), "weights-do-not-fit", LAYER),
        (lambda w: w.update({LAYER: torch.zeros(0)}), "weights-do-not-fit", LAYER),
        (lambda w: w.update({LAYER: w[LAYER].to(torch.int8)}), "weights-not-float", LAYER),
        (lambda w: w.update({"x.adapter.weight": torch.ones(2)}), "weights-do-not-fit", "adapter"),
        (
            lambda w: w.update({"bert.encoder.layer.3.output.dense.weight": torch.ones(2)}),
            "weights-do-not-fit",
            "layer.3",
        ),
    ],
)
def test_weights_that_cannot_be_used_are_told_by_name(change, id, named, copy):
    directory = copy("bert")
    weights(change)(directory)
    assert str(directory) in refused(directory, id, named)


def test_a_configuration_with_fewer_layers_than_are_stored_is_refused(copy):
    directory = copy("bert")
    configure(num_hidden_layers=2)(directory)
    refused(directory, "weights-do-not-fit", "layer.2")
    directory = copy("marian")
    configure(decoder_layers=2)(directory)
    refused(directory, "weights-do-not-fit", "decoder.layers.2")
    directory = copy("pruned")
    configure(decoder_layers=2)(directory)
    refused(directory, "units-file-of-another-model", str(directory))


def test_heads_of_other_tasks_and_numberings_are_left_out(copy):
    """What pretraining, and earlier versions of transformers, leave in files of classifiers."""
    directory = copy("bert")
    batch = {"input_ids": torch.tensor([[5, 6, 7, 2]])}
    before = open_checkpoint(str(directory)).model(**batch).logits
    rest = {
        "bert.embeddings.position_ids": torch.arange(40)[None],
        "cls.predictions.bias": torch.ones(60),
        "cls.seq_relationship.weight": torch.ones(2, 32),
    }
    weights(lambda found: found.update(rest))(directory)
    assert torch.equal(open_checkpoint(str(directory)).model(**batch).logits, before)


@pytest.mark.parametrize("name", ["marian", "pruned"])
def test_different_values_for_what_is_one_weight_are_refused(name, copy):
    directory = copy(name)
    shared = "model.shared.weight"
    weights(lambda w: w.update({"lm_head.weight": w[shared] + 1}))(directory)
    refused(directory, "weights-tied-differ", "lm_head.weight")
    weights(lambda w: w.update({"lm_head.weight": w[shared].clone()}))(directory)
    assert open_checkpoint(str(directory))


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "checkpoint-form-unsupported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "checkpoint-form-unsupported"),
        ({"quantization_config": 5}, "checkpoint-form-unsupported"),
        ({"transformers_weights": "other.safetensors"}, "checkpoint-form-unsupported"),
    ],
)
def test_checkpoints_of_other_forms_are_refused(change, id, copy):
    directory = copy("bert")
    configure(**change)(directory)
    refused(directory, id, str(directory / CONFIG))


def test_an_adapter_is_refused(copy):
    directory = copy("bert")
    (directory / "adapter_config.json").write_text("{}", "utf-8")
    refused(directory, "checkpoint-is-adapter", str(directory))


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS, "tokenizer.json", "vocab.txt", "x.jinja"])
def test_a_named_pipe_in_a_checkpoint_is_refused(file, copy):
    directory = copy("bert")
    fifo(file)(directory)
    refused(directory, "checkpoint-file-unreadable", str(directory / file))


def sharded(directory: Path, name: str) -> None:
    """The weights in a file of another name, which an index says."""
    target = directory / name
    target.parent.mkdir(exist_ok=True)
    (directory / WEIGHTS).rename(target)
    found = load_file(target)
    index = {"metadata": {}, "weight_map": dict.fromkeys(found, name)}
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index), "utf-8")


@pytest.mark.parametrize("name", ["w.bin", "../x.safetensors", "below/x.safetensors", "../w.bin"])
def test_an_index_names_files_of_the_directory_alone(name, copy):
    directory = copy("bert")
    sharded(directory, name)
    refused(directory, "weights-outside", name)


def test_a_pickle_behind_an_index_is_not_opened(copy, tmp_path):
    class Hostile:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    directory = copy("bert")
    sharded(directory, "w.safetensors")
    (directory / "w.safetensors").write_bytes(pickle.dumps(Hostile()))
    refused(directory, "weights-unreadable", "w.safetensors")
    (directory / f"{WEIGHTS}.index.json").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile()))
    with raises(InputError, "weights-unreadable"):
        open_checkpoint(str(directory), allow_pickle=True)
    assert not (tmp_path / "ran").exists()


def test_weights_in_several_files_are_loaded_and_part_of_the_fingerprint(copy):
    directory = copy("bert")
    batch = {"input_ids": torch.tensor([[5, 6, 7, 2]])}
    before = open_checkpoint(str(directory)).model(**batch).logits
    sharded(directory, "model-00001-of-00001.safetensors")
    assert torch.equal(open_checkpoint(str(directory)).model(**batch).logits, before)
    assert directory / "model-00001-of-00001.safetensors" in checkpoint_files(directory)


@pytest.mark.parametrize(
    "index", [b"", b"5", b"{}", b'{"weight_map": 5}', b'{"weight_map": {"a": 5}}', DEEP]
)
def test_a_damaged_index_is_told(index, copy):
    directory = copy("bert")
    (directory / WEIGHTS).unlink()
    (directory / f"{WEIGHTS}.index.json").write_bytes(index)
    refused(directory, "weights-unreadable", f"{WEIGHTS}.index.json")


def test_an_index_that_names_a_missing_file_is_told(copy):
    directory = copy("bert")
    sharded(directory, "w.safetensors")
    (directory / "w.safetensors").unlink()
    refused(directory, "weights-missing", "w.safetensors")


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS, "tokenizer.json"])
def test_links_out_of_the_directory_are_refused_but_those_of_the_hubs_cache(file, copy, tmp_path):
    directory = copy("bert")
    elsewhere = tmp_path / "elsewhere"
    (directory / file).rename(elsewhere)
    (directory / file).symlink_to(elsewhere)
    refused(directory, "checkpoint-file-outside", str(directory / file))
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    (directory / file).unlink()
    elsewhere.rename(blobs / "0123")
    (directory / file).symlink_to(blobs / "0123")
    assert open_checkpoint(str(directory))


@pytest.mark.parametrize("name", ["marian", "pruned"])
@pytest.mark.parametrize(
    "damage",
    [
        contents(GENERATION, b""),
        contents(GENERATION, b"[]"),
        contents(GENERATION, HTML),
        contents(GENERATION, lambda data: data[: len(data) // 2]),
        contents(GENERATION, DEEP),
        configure(GENERATION, num_beams="four"),
        configure(GENERATION, num_beams=0),
        configure(GENERATION, num_beams=10**9),
        configure(GENERATION, num_beams=True),
        configure(GENERATION, max_length=10**12),
        configure(GENERATION, max_length=-3),
        configure(GENERATION, eos_token_id=60),
        configure(GENERATION, eos_token_id="</s>"),
        configure(GENERATION, decoder_start_token_id=-1),
        configure(GENERATION, bad_words_ids=[[60]]),
        configure(GENERATION, bad_words_ids=7),
        configure(GENERATION, suppress_tokens=["a"]),
        configure(GENERATION, length_penalty=float("nan")),
        configure(GENERATION, length_penalty="long"),
        configure(GENERATION, early_stopping="often"),
    ],
)
def test_a_generation_configuration_is_read_or_refused(name, damage, copy):
    """transformers would leave out an unreadable one, and translate in another way."""
    directory = copy(name)
    damage(directory)
    refused(directory, "generation-config-malformed", str(directory / GENERATION))


@pytest.mark.parametrize(
    "record",
    [
        DEEP,
        b"5",
        b'{"kept": {"cross.0": [0]}, "units": {"cross.0": 1000000000000}}',
        b'{"kept": {"cross.0": [0.5]}, "units": {"cross.0": 4}}',
        b'{"kept": {"cross.0": [4]}, "units": {"cross.0": 4}}',
        b'{"kept": {"cross.0": [0, 0]}, "units": {"cross.0": 4}}',
        b'{"kept": {"cross.0": 3}, "units": {"cross.0": 4}}',
        b'{"kept": {"cross.0": [0]}, "units": {"cross.0": "4"}}',
    ],
)
def test_a_damaged_record_of_the_units_is_told(record, copy):
    directory = copy("pruned")
    contents("units.json", record)(directory)
    refused(directory, "units-file-malformed", str(directory / "units.json"))


def test_the_shell_tells_the_file_and_what_to_do(copy, capsys):
    directory = copy("bert")
    contents(WEIGHTS, POINTER)(directory)
    assert invoke(["inspect", str(directory)]) == 4
    told = capsys.readouterr().err
    assert str(directory / WEIGHTS) in told
    assert "git lfs pull" in told
    assert "Traceback" not in told
