"""Damaged, foreign or hostile weights and files of checkpoints: status 4 and the file's name."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

import compressor
from compressor.commands import invoke
from compressor.errors import CompressWarning, InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.location import checkpoint_files
from compressor.storage.manifest import read_manifest
from compressor.storage.outputs import whole_output
from tests.helpers.damaged_checkpoints import (
    CONFIG,
    POINTER,
    WEIGHTS,
    contents,
    refused,
    sharded,
    weights,
    without,
)
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import write_hashes


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


def test_weights_in_several_files_are_loaded_and_part_of_the_fingerprint(copy):
    directory = copy("bert")
    before = loaded(directory)
    sharded("model-00001-of-00001.safetensors")(directory)
    assert loaded(directory) == before
    assert directory / "model-00001-of-00001.safetensors" in checkpoint_files(directory)


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


@pytest.mark.parametrize("names", [(WEIGHTS,), ()])
def test_what_is_loaded_must_be_listed(names, copy, capsys):
    """A manifest that lacks some names, or all, as somebody who knows it would write."""
    directory = copy("pruned")
    write_hashes(directory)
    (directory / "notes.txt").write_text("mine", "utf-8")  # nothing reads it
    compressor.load(directory)
    path = directory / "manifest.json"
    data = json.loads(path.read_text("utf-8"))
    data["files"] = {n: x for n, x in data["files"].items() if names and n not in names}
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


def test_the_shell_names_the_file_and_what_to_do(copy, capsys):
    directory = copy("bert")
    contents(WEIGHTS, POINTER)(directory)
    assert invoke(["inspect", str(directory)]) == 4
    shown = capsys.readouterr().err
    assert str(directory / WEIGHTS) in shown
    assert "git lfs pull" in shown
    assert "Traceback" not in shown
