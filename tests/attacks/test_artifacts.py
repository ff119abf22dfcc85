"""Artifacts that were damaged, edited or mixed with others are refused, with the file's name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from compressor.commands import invoke as status_of
from compressor.errors import CompressError, InputError
from compressor.pipeline.verification import verify_directory
from compressor.runtime import Classifier, Translator
from compressor.storage.hashes import sha256_of
from compressor.storage.outputs import update_manifest
from tests.helpers import runtime_artifacts
from tests.helpers.damaged_checkpoints import HTML, PANICS, POINTER
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


def edit(directory: Path, name: str = "graphs.json", **changes: Any) -> None:
    """Change values of JSON, and the manifest with it, as somebody who knows both would."""

    def edited(data: bytes) -> bytes:
        values = json.loads(data)
        for key, value in changes.items():
            place, _, last = key.rpartition("__")
            (values[place] if place else values)[last] = value
        return json.dumps(values).encode()

    reseal(directory, name, edited)


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
    other = runtime_artifacts.classifier("distilbert").directory
    shutil.copy(other / "onnx" / "model.onnx_data", classifier / "onnx")
    with raises(InputError, "file-changed"):
        Classifier(classifier)


def test_a_file_that_is_not_listed_is_told(classifier):
    onnx_directory = classifier / "onnx"
    shutil.copy(onnx_directory / "tokenizer.json", onnx_directory / "other.json")
    edit(classifier, tokenizer="other.json")
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


def test_a_graph_whose_names_are_no_text_is_told(translator):
    """onnxruntime quotes the name in its message, which Python then cannot read."""
    reseal(translator, "select_past.onnx", lambda x: x.replace(b"Gather", b"\xc7ather", 1))
    with raises(InputError, "graph-invalid"):
        Translator(translator)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"tool": "compress 1"}', "[" * 100_000, "\x00", '{"tool": "compress 1", '
             '"files": {"a": 3}}'],
)  # fmt: skip
def test_a_damaged_manifest_is_told(classifier, text):
    (classifier / "manifest.json").write_text(text, encoding="utf-8")
    with raises(InputError, "manifest-damaged"):
        Classifier(classifier)


OUTSIDE = (
    "/etc/passwd", "../passwd", "onnx/../../passwd", "a//b", "C:passwd", "a\\b", "", ".", "n" * 300,
    "\x00", "a/" * 40 + "b",
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


def graphs(**files: str) -> dict[str, Any]:
    return {"precisions": {"fp32": {"encoder": "encoder.onnx", "decoder": "decoder.onnx"} | files}}


TRANSLATOR_EDITS: dict[str, dict[str, Any]] = {
    "a vocabulary beyond memory": {"vocab_size": 10**15},
    "beams beyond memory": {"generation__num_beams": 10**9},
    "no limit": {"generation__max_length": None, "generation__max_new_tokens": None},
    "a negative length": {"max_source_tokens": -1},
    "an absurd length": {"max_source_tokens": 10**30},
    "no graph that takes rows": graphs(),
    "another schema": {"schema": 99},
    "no room for a text": {"max_source_tokens": 1},
    "an absolute graph": graphs(encoder="/etc/passwd"),
    "no decoder": {"precisions": {"fp32": {"encoder": "encoder.onnx"}}},
    "a directory as a graph": graphs(encoder="..", decoder=""),
    "a tokenizer outside": {"tokenizer": "../../tokenizer.json"},
    "a tokenizer on another drive": {"tokenizer": "C:tokenizer.json"},
    "tokens outside": {"output_tokens": "/etc/hostname"},
}


@pytest.mark.filterwarnings("ignore::compressor.errors.CompressWarning")
@pytest.mark.parametrize("name", TRANSLATOR_EDITS)
def test_an_edited_description_of_a_translator_is_refused(translator, name):
    edit(translator, **TRANSLATOR_EDITS[name])
    (translator / "manifest.json").unlink()
    with pytest.raises(InputError):
        Translator(translator)


CLASSIFIER_EDITS: dict[str, dict[str, Any]] = {
    "labels that are numbers": {"labels": [1, 2, 3, 4, 5]},
    "an absurd padding": {"pad_token_id": 10**20},
    "deep": {"labels": json.loads("[" * 900 + "]" * 900)},
}


@pytest.mark.parametrize("name", CLASSIFIER_EDITS)
def test_an_edited_description_of_a_classifier_is_refused(classifier, name):
    edit(classifier, **CLASSIFIER_EDITS[name])
    with pytest.raises(InputError) as caught:
        Classifier(classifier)
    assert str(classifier) in str(caught.value)


CONTENTS = {
    "empty": b"",
    "HTML": HTML,
    "an LFS pointer": POINTER,
    "bytes": bytes(range(256)) * 8,
    "JSON": b"{}",
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", ["model.onnx", "model.onnx_data", "tokenizer.json", "graphs.json"])
def test_foreign_files_under_the_right_names_are_refused(classifier, name, content):
    path = classifier / "onnx" / name
    reseal(classifier, name, CONTENTS[content])
    if name == "model.onnx_data" and len(CONTENTS[content]) > 0:
        with pytest.raises(CompressError):
            Classifier(classifier, verify=True).classify(["w3 w5"])
        return
    with pytest.raises(InputError) as caught:
        Classifier(classifier)
    assert str(classifier / "onnx" / "model.onnx" if name == "model.onnx_data" else path) in str(
        caught.value
    )


def test_a_tokenizer_that_the_library_panics_over_is_told(classifier):
    """A rule names a special token that is not there; that only shows when a text is encoded."""
    edit(classifier, "tokenizer.json", post_processor=PANICS)
    with raises(InputError, "tokenizer-invalid"):
        Classifier(classifier).classify(["w3"])
    text = classifier / "onnx" / "tokenizer.json"
    assert status_of(["classify", str(classifier), str(text)]) == 4


def test_ids_beyond_the_embeddings_of_a_classifier_are_told(classifier):
    path = classifier / "onnx" / "tokenizer.json"
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    edit(classifier, "tokenizer.json", model=model | {"vocab": model["vocab"] | {"w3": 1000}})
    with raises(InputError, "graph-fails"):
        Classifier(classifier).classify(["w3"])


@pytest.mark.parametrize("place", ["../secret", "/etc/hostname", "../../secret"])
def test_weights_outside_of_the_artifact_are_not_read(classifier, place):
    (classifier / "secret").write_bytes((classifier / "onnx" / "model.onnx_data").read_bytes())
    graph = onnx.load(classifier / "onnx" / "model.onnx", load_external_data=False)
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = place
    reseal(classifier, "model.onnx", graph.SerializeToString())
    with raises(InputError, "graph-invalid"):
        Classifier(classifier)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx", "model.onnx_data", "graphs.json"])
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
        ("ci/report.json", False),
        ("ci/model.safetensors", False),
        ("notes.json", False),
        ("onnx/notes.json", False),
        ("report.json", True),
        ("config.json", True),
        ("model-00001-of-00002.safetensors", True),
        ("encoder_model.onnx", True),  # by optimum
        ("onnx/graphs.json", True),
        ("onnx/tokenizer.json", True),
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
