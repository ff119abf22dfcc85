"""Artifacts that were damaged, edited or mixed with others are refused, with the file's name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from compressor.commands import invoke as status_of
from compressor.errors import InputError
from compressor.pipeline.verification import verify_directory
from compressor.runtime import Classifier, Translator
from compressor.storage.hashes import sha256_of
from compressor.storage.outputs import update_manifest
from tests.helpers import runtime_artifacts
from tests.helpers.errors import raises


@pytest.fixture
def classifier(tmp_path) -> Path:
    made = runtime_artifacts.classifier("bert").directory
    return Path(shutil.copytree(made, tmp_path / "classifier"))


@pytest.fixture
def translator(tmp_path) -> Path:
    made = runtime_artifacts.translator().directory
    return Path(shutil.copytree(made, tmp_path / "translator"))


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def change(path: Path, new: bytes | Callable[[bytes], bytes]) -> None:
    """Other contents for a file, which the manifest does not know."""
    path.write_bytes(new(path.read_bytes()) if callable(new) else new)


def reseal(directory: Path, name: str, new: bytes | Callable[[bytes], bytes]) -> None:
    """Other contents for a file below onnx/, which the manifest knows."""
    path = directory / "onnx" / name
    change(path, new)
    update_manifest(directory, {f"onnx/{name}": sha256_of(path)})


FILES = (
    "onnx/graphs.json", "onnx/tokenizer.json", "onnx/encoder.onnx", "onnx/encoder.onnx_data",
    "onnx/decoder.onnx", "onnx/decoder.onnx_data",
)  # fmt: skip
HARMS: dict[str, Callable[[Path], object]] = {
    "flip": lambda path: change(path, flip),
    "zeros": lambda path: change(path, lambda x: x[: len(x) // 2] + bytes(-(-len(x) // 2))),
    "cut": lambda path: change(path, lambda x: x[:-1]),
    "remove": Path.unlink,
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_file_is_told_on_opening(translator, harm):
    for name in FILES:
        path = translator / name
        kept = path.read_bytes()
        HARMS[harm](path)
        with raises(InputError, "file-changed") as caught:
            Translator(translator)
        assert str(path) in str(caught.value)
        path.write_bytes(kept)


def test_a_file_of_another_run_is_told(classifier):
    other = runtime_artifacts.translator().directory
    shutil.copy(other / "onnx" / "encoder.onnx_data", classifier / "onnx" / "model.onnx_data")
    with raises(InputError, "file-changed"):
        Classifier(classifier)


def test_a_file_that_is_not_listed_is_told(classifier):
    onnx_directory = classifier / "onnx"
    shutil.copy(onnx_directory / "tokenizer.json", onnx_directory / "other.json")
    name = json.dumps("other.json").encode()
    reseal(classifier, "graphs.json", lambda data: data.replace(b'"tokenizer.json"', name))
    with raises(InputError, "file-not-in-manifest"):
        Classifier(classifier)


def test_checks_can_be_left_out_and_are_missed_without_a_manifest(classifier):
    (classifier / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="manifest.json"):
        Classifier(classifier)
    path = classifier / "onnx" / "graphs.json"
    (classifier / "manifest.json").write_text("{", encoding="utf-8")
    with raises(InputError, "manifest-damaged"):
        Classifier(classifier)
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert Classifier(classifier, verify=False).classify(["w3"])


@pytest.mark.parametrize(
    "text", ["", "[]", '{"tool": "compress 1"}', "[" * 100_000, "\x00", '{"tool": "compress 1", '
             '"files": {"a": 3}}'],
)  # fmt: skip
def test_a_damaged_manifest_is_told(classifier, text):
    (classifier / "manifest.json").write_text(text, encoding="utf-8")
    with raises(InputError, "manifest-damaged"):
        Classifier(classifier)


OUTSIDE = (
    "/etc/passwd", "../passwd", "onnx/../../passwd", "C:passwd", "a\\b", "", "\x00",
)  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_in_a_manifest_stay_inside(classifier, name):
    path = classifier / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    path.write_text(json.dumps(data), encoding="utf-8")
    with raises(InputError, "manifest-damaged"):
        Classifier(classifier)
    assert status_of(["verify", str(classifier)]) == 4


def test_verify_follows_no_link_out_of_the_artifact(classifier, tmp_path):
    (tmp_path / "outside.md").write_text("mine", encoding="utf-8")
    (classifier / "README.md").symlink_to(tmp_path / "outside.md")
    update_manifest(classifier, {"README.md": sha256_of(tmp_path / "outside.md")})
    with raises(InputError, "artifact-file-outside"):
        verify_directory(classifier)


def test_weights_outside_of_the_artifact_are_not_read(classifier):
    (classifier / "secret").write_bytes((classifier / "onnx" / "model.onnx_data").read_bytes())
    graph = onnx.load(classifier / "onnx" / "model.onnx", load_external_data=False)
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    reseal(classifier, "model.onnx", graph.SerializeToString())
    with raises(InputError, "graph-invalid"):
        Classifier(classifier)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx_data"])
@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
def test_links_out_of_the_artifact_are_refused(classifier, tmp_path, name):
    inside, outside = classifier / "onnx" / name, tmp_path / name
    inside.rename(outside)
    inside.symlink_to(outside)
    with raises(InputError, "artifact-file-outside"):
        Classifier(classifier)


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
def test_links_of_the_hubs_cache_are_followed(classifier, tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    (snapshot / "onnx").mkdir(parents=True)
    blobs.mkdir()
    for name in ("tokenizer.json", "graphs.json"):  # weights beside a graph must be files there
        (blobs / name).write_bytes((classifier / "onnx" / name).read_bytes())
        (snapshot / "onnx" / name).symlink_to(blobs / name)
    for name in ("model.onnx", "model.onnx_data"):
        shutil.copy(classifier / "onnx" / name, snapshot / "onnx")
    shutil.copy(classifier / "manifest.json", snapshot)
    (tmp_path / "link").symlink_to(classifier)  # of the whole directory
    answers = [Classifier(x).classify(["w3"]) for x in (classifier, snapshot, tmp_path / "link")]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("command", ["classify", "verify"])
def test_commands_end_with_status_4(classifier, tmp_path, capsys, command):
    texts = tmp_path / "texts.txt"
    texts.write_text("w3 w5\n", encoding="utf-8")
    arguments = [command, str(classifier), *([str(texts)] if command == "classify" else [])]
    assert status_of(arguments) == 0
    change(classifier / "onnx" / "model.onnx_data", flip)
    assert status_of(arguments) == 4
    assert "model.onnx_data" in capsys.readouterr().err
    if command == "classify":
        assert status_of([*arguments, "--no-verify"]) == 0


def test_verify_tells_every_damaged_file_and_those_that_are_not_listed(classifier, capsys):
    change(classifier / "onnx" / "model.onnx_data", flip)
    (classifier / "onnx" / "tokenizer.json").unlink()
    (classifier / "generation_config.json").write_text("{}", encoding="utf-8")
    (classifier / "notes.md").write_text("mine", encoding="utf-8")
    assert status_of(["verify", str(classifier), "--json"]) == 4
    found = capsys.readouterr()
    assert json.loads(found.out)["id"] == "artifact-damaged"
    for name in ("model.onnx_data", "tokenizer.json", "generation_config.json"):
        assert name in found.err
    assert "notes.md" not in found.err


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("ci/outputs.json", False),
        ("ci/model.safetensors", False),
        ("onnx/notes.json", False),
        ("report.json", True),
        ("config.json", True),
        ("model-00001-of-00002.safetensors", True),
        ("encoder_model.onnx", True),  # by optimum
        ("onnx/model.onnx_data", True),
    ],
)
def test_only_files_at_places_where_they_are_read_must_be_listed(classifier, name, is_read, capsys):
    path, manifest = classifier / name, classifier / "manifest.json"
    data = json.loads(manifest.read_text(encoding="utf-8"))
    if data["files"].pop(name, None) is None:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}", encoding="utf-8")
    manifest.write_text(json.dumps(data), encoding="utf-8")
    assert status_of(["verify", str(classifier)]) == (4 if is_read else 0)
    assert (name in capsys.readouterr().err) == is_read


def test_verify_needs_a_manifest(classifier, capsys):
    (classifier / "manifest.json").unlink()
    assert status_of(["verify", str(classifier)]) == 4
