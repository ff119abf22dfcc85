"""Damaged, foreign or hostile weights and files of checkpoints: status 4 and the file's name."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import compressor
from compressor.commands import invoke
from compressor.errors import CompressWarning, InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.location import checkpoint_files
from compressor.storage.manifest import read_manifest
from compressor.storage.outputs import whole_output
from tests.helpers.damaged_checkpoints import (
    CONFIG,
    DEEP,
    HTML,
    POINTER,
    WEIGHTS,
    configure,
    contents,
    fifo,
    refused,
    weights,
)
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import write_hashes


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


NAN, INFINITE = float("nan"), float("inf")
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
    before = loaded(directory)
    sharded(directory, "model-00001-of-00001.safetensors")
    assert loaded(directory) == before
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


@pytest.mark.parametrize(
    "record",
    [
        DEEP,
        b"5",
        b'{"kept": ["cross.0"], "units": ["cross.0"]}',
        b'{"kept": {"cross.0": [0]}, "units": {"cross.0": 1000000000000}}',
        b'{"kept": {"cross.0": [0.5]}, "units": {"cross.0": 4}}',
        b'{"kept": {"cross.0": 3}, "units": {"cross.0": 4}}',
        b'{"kept": {"cross.0": [0]}, "units": {"cross.0": "4"}}',
    ],
)
def test_a_damaged_record_of_the_units_is_told(record, copy):
    directory = copy("pruned")
    contents("units.json", record)(directory)
    refused(directory, "units-file-malformed", str(directory / "units.json"))


def unlist(directory: Path, *names: str) -> None:
    """Take files out of the manifest, all if none is named, as somebody who knows it would."""
    path = directory / "manifest.json"
    data = json.loads(path.read_text("utf-8"))
    data["files"] = {n: x for n, x in data["files"].items() if names and n not in names}
    path.write_text(json.dumps(data), "utf-8")


@pytest.mark.parametrize(
    "names", [(WEIGHTS,), ("units.json",), (CONFIG, WEIGHTS, "units.json"), ()]
)
def test_what_is_loaded_must_be_listed(names, copy, capsys):
    directory = copy("pruned")
    write_hashes(directory)
    (directory / "notes.txt").write_text("mine", "utf-8")  # nothing reads it
    compressor.load(directory)
    unlist(directory, *names)
    with raises(InputError, "file-not-in-manifest"):
        compressor.load(directory)
    for command in (["inspect"], ["export", "-o", str(directory / "out"), "-m"]):
        assert invoke([*command, str(directory)]) == 4
        assert "is not listed in manifest.json" in capsys.readouterr().err
    assert invoke(["inspect", str(directory), "--no-verify"]) == 0
    compressor.load(directory, verify=False)


@pytest.mark.parametrize("name", ["tokenizer_config.json", WEIGHTS])
def test_a_listed_file_that_is_gone_is_told(name, copy):
    directory = copy("pruned")
    write_hashes(directory)
    (directory / name).unlink()
    with raises(InputError, "file-changed"):
        compressor.load(directory)


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
    contents(CONFIG, lambda data: data + b"\n")(directory)
    with raises(InputError, "file-changed"):
        compressor.load(directory)


def test_the_shell_tells_the_file_and_what_to_do(copy, capsys):
    directory = copy("bert")
    contents(WEIGHTS, POINTER)(directory)
    assert invoke(["inspect", str(directory)]) == 4
    told = capsys.readouterr().err
    assert str(directory / WEIGHTS) in told
    assert "git lfs pull" in told
    assert "Traceback" not in told
