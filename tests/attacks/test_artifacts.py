"""Artifacts that were damaged, edited or mixed with others are refused, with the file's name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from compressor.commands import invoke as status_of
from compressor.errors import InputError
from compressor.model.sublayers import Mask, Sublayer
from compressor.pipeline.verification import verify_directory
from compressor.runtime import Classifier, Translator
from compressor.storage.hashes import sha256_of
from compressor.storage.outputs import update_manifest
from tests.helpers import runtime_artifacts, toy
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import write_both, write_hashes

posix = pytest.mark.skipif(os.name != "posix", reason="links of POSIX")


@pytest.fixture
def classifier(tmp_path) -> Path:
    made = runtime_artifacts.classifier("bert").directory
    return Path(shutil.copytree(made, tmp_path / "classifier"))


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def change(path: Path, new: bytes | Callable[[bytes], bytes]) -> None:
    """Other contents for a file, which the manifest does not know."""
    path.write_bytes(new(path.read_bytes()) if callable(new) else new)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


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
def test_every_damaged_file_is_named_on_opening(tmp_path, harm):
    made = runtime_artifacts.translator().directory
    translator = Path(shutil.copytree(made, tmp_path / "translator"))
    for name in FILES:
        path = translator / name
        kept = path.read_bytes()
        HARMS[harm](path)
        with raises(InputError, "file-changed") as caught:
            Translator(translator)
        assert str(path) in str(caught.value)
        path.write_bytes(kept)


def other_file(directory: Path) -> None:
    other = runtime_artifacts.translator().directory / "onnx" / "encoder.onnx_data"
    shutil.copy(other, directory / "onnx" / "model.onnx_data")


def unlisted_file(directory: Path) -> None:
    shutil.copy(directory / "onnx" / "tokenizer.json", directory / "onnx" / "other.json")
    reseal(directory, "graphs.json", lambda x: x.replace(b'"tokenizer.json"', b'"other.json"'))


def weights_outside(directory: Path) -> None:
    (directory / "secret").write_bytes((directory / "onnx" / "model.onnx_data").read_bytes())
    graph = onnx.load(directory / "onnx" / "model.onnx", load_external_data=False)
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    reseal(directory, "model.onnx", graph.SerializeToString())


def linked(name: str) -> Callable[[Path], None]:
    def link(directory: Path) -> None:
        inside, outside = directory / "onnx" / name, directory.with_name(name)
        inside.rename(outside)
        inside.symlink_to(outside)

    return link


def manifest(text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / "manifest.json").write_text(text, encoding="utf-8")


def listing(name: str) -> Callable[[Path], None]:
    """One more file in the manifest."""

    def add(directory: Path) -> None:
        path = directory / "manifest.json"
        files = json.loads(path.read_text("utf-8"))["files"]
        edit(path, files=files | {name: {"bytes": 1, "sha256": "0" * 64}})

    return add


OUTSIDE = ("/etc/passwd", "onnx/../../passwd", "C:passwd", "a\\b", "", "\x00")
MANIFESTS = (
    "", "[" * 100_000, '{"tool": "compress 1"}', '{"tool": "compress 1", "files": {"a": 3}}',
)  # fmt: skip
REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (other_file, "file-changed"),
    (unlisted_file, "file-not-in-manifest"),
    (weights_outside, "graph-invalid"),
    *((manifest(text), "manifest-damaged") for text in MANIFESTS),
    *((listing(name), "manifest-damaged") for name in OUTSIDE),
    *(pytest.param(linked(name), "artifact-file-outside", marks=posix)
      for name in ("tokenizer.json", "model.onnx_data")),
]  # fmt: skip


@pytest.mark.parametrize(("harm", "id"), REFUSED)
def test_an_artifact_is_refused(harm, id, classifier):
    harm(classifier)
    with raises(InputError, id):
        Classifier(classifier)
    assert status_of(["verify", str(classifier)]) == 4


def test_checks_can_be_left_out_and_are_missed_without_a_manifest(classifier):
    path = classifier / "onnx" / "graphs.json"
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert Classifier(classifier, verify=False).classify(["w3"])
    (classifier / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="manifest.json"):
        Classifier(classifier)
    assert status_of(["verify", str(classifier)]) == 4


@posix
def test_verify_follows_no_link_out_of_the_artifact(classifier, tmp_path):
    (tmp_path / "outside.md").write_text("mine", encoding="utf-8")
    (classifier / "README.md").symlink_to(tmp_path / "outside.md")
    update_manifest(classifier, {"README.md": sha256_of(tmp_path / "outside.md")})
    with raises(InputError, "artifact-file-outside"):
        verify_directory(classifier)


@posix
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


def test_verify_names_every_damaged_file_and_those_that_are_not_listed(classifier, capsys):
    change(classifier / "onnx" / "model.onnx_data", flip)
    (classifier / "onnx" / "tokenizer.json").unlink()
    (classifier / "generation_config.json").write_text("{}", encoding="utf-8")
    (classifier / "notes.md").write_text("mine", encoding="utf-8")
    assert status_of(["verify", str(classifier), "--json"]) == 4
    shown = capsys.readouterr()
    assert json.loads(shown.out)["id"] == "artifact-damaged"
    for name in ("model.onnx_data", "tokenizer.json", "generation_config.json"):
        assert name in shown.err
    assert "notes.md" not in shown.err


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("ci/outputs.json", False),
        ("ci/model.safetensors", False),
        ("onnx/notes.json", False),
        ("report.json", True),
        ("model-00001-of-00002.safetensors", True),
        ("encoder_model.onnx", True),  # by optimum
        ("onnx/model.onnx_data", True),
    ],
)
def test_only_files_at_places_where_they_are_read_must_be_listed(classifier, name, is_read, capsys):
    path, manifest = classifier / name, classifier / "manifest.json"
    files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    if files.pop(name, None) is None:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}", encoding="utf-8")
    edit(manifest, files=files)
    assert status_of(["verify", str(classifier)]) == (4 if is_read else 0)
    assert (name in capsys.readouterr().err) == is_read


@pytest.fixture(scope="session")
def whole(once) -> Path:
    """Artifacts of a classifier and of a translator, with graphs and weights."""

    def make(directory: Path) -> None:
        for name in ("bert", "marian"):
            dense = toy.checkpoint(directory / "whole" / name, name)
            short = toy.first_layers(dense, directory / "dense" / name)
            write_both(toy.pruned(short, directory / name, one_unit_less))

    return once("whole-artifacts", make)


def one_unit_less(layers: list[Sublayer]) -> Mask:
    return Mask.full(layers).without((layer.name, 0) for layer in layers)


def next_float(values: np.ndarray) -> np.float32:
    """For one weight of a product: no answer shows it."""
    return np.nextafter(values[0, 0], np.float32(9))


def change_weights(directory: Path, graph: str, operator: str, number: tuple, value: Any) -> None:
    """Change the first matrix that nodes of a kind read, and put all weights into the graph."""
    path = directory / "onnx" / graph
    model = onnx.load(path)
    read = {name for node in model.graph.node if node.op_type == operator for name in node.input}
    chosen = next(x for x in model.graph.initializer if x.name in read and len(x.dims) == 2)
    values = numpy_helper.to_array(chosen).copy()
    values[number] = value(values)
    chosen.CopyFrom(numpy_helper.from_array(values, chosen.name))
    onnx.save(model, path)
    path.with_name(f"{graph}_data").unlink(missing_ok=True)


def test_graphs_with_the_checkpoints_weights_pass(whole, tmp_path):
    """Of hard links too, which onnx takes for an attack."""
    for name in ("bert", "marian"):
        copied = shutil.copytree(whole / name, tmp_path / name, copy_function=os.link)
        assert verify_directory(Path(copied)).checks


@pytest.mark.parametrize(
    ("name", "graph", "operator", "number", "value"),
    [
        ("bert", "model.onnx", "Gather", (-1,), lambda x: x[-2]),  # of a token that no text has
        ("marian", "encoder.onnx", "MatMul", (0, 0), next_float),
        ("marian", "decoder.onnx", "MatMul", (0, 0), next_float),
    ],
)
def test_graphs_with_other_weights_are_refused(
    name, graph, operator, number, value, whole, tmp_path
):
    directory = Path(shutil.copytree(whole / name, tmp_path / name))
    change_weights(directory, graph, operator, number, value)
    write_hashes(directory)
    with raises(InputError, "graphs-of-another-model"):
        verify_directory(directory)


@pytest.mark.parametrize(
    ("file", "id"),
    [
        ("units.json", "units-file-malformed"),
        ("onnx/graphs.json", "artifact-invalid"),
        ("manifest.json", "manifest-damaged"),
    ],
)
def test_unknown_schemas_are_refused(file, id, whole, tmp_path):
    directory = Path(shutil.copytree(whole / "bert", tmp_path / "bert"))
    edit(directory / file, schema=99)
    if file != "manifest.json":
        write_hashes(directory)
    with raises(InputError, id):
        verify_directory(directory)
