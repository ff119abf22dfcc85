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
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import write_both, write_hashes

posix = pytest.mark.skipif(os.name != "posix", reason="links of POSIX")


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


@pytest.fixture
def artifact(whole, tmp_path) -> Callable[[str], Path]:
    """Copies that a test may change."""
    return lambda name: Path(shutil.copytree(whole / name, tmp_path / name))


@pytest.fixture
def classifier(artifact) -> Path:
    return artifact("bert")


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


OUTSIDE = ("/etc/passwd", "onnx/../../passwd", "C:passwd", "\x00")
MANIFESTS = ("", "[" * 100_000, '{"tool": "compress 1", "files": {"a": 3}}')
REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (unlisted_file, "file-not-in-manifest"),
    (weights_outside, "graph-invalid"),
    *((manifest(text), "manifest-damaged") for text in MANIFESTS),
    *((listing(name), "manifest-damaged") for name in OUTSIDE),
    *(pytest.param(linked(name), "file-outside", marks=posix)
      for name in ("tokenizer.json", "model.onnx_data")),
]  # fmt: skip


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: change(path, flip),
        lambda path: change(path, lambda x: x[: len(x) // 2] + bytes(-(-len(x) // 2))),
        lambda path: change(path, lambda x: x[:-1]),
        Path.unlink,
    ],
    ids=["flip", "zeros", "cut", "remove"],
)
def test_every_damaged_file_is_named_on_opening(artifact, harm):
    translator = artifact("marian")
    names = ("graphs.json", "tokenizer.json", "encoder.onnx", "decoder.onnx")
    for name in (*names, "encoder.onnx_data", "decoder.onnx_data"):
        path = translator / "onnx" / name
        kept = path.read_bytes()
        harm(path)
        with raises(InputError, "file-changed") as caught:
            Translator(translator)
        assert str(path) in str(caught.value)
        path.write_bytes(kept)


@pytest.mark.parametrize(("harm", "id"), REFUSED)
def test_an_artifact_is_refused(harm, id, classifier):
    harm(classifier)
    with raises(InputError, id):
        Classifier(classifier)
    assert status_of(["verify", str(classifier)]) == 4


def test_checks_can_be_left_out_and_are_missed_without_a_manifest(classifier, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("w3 w5\n", encoding="utf-8")
    words = ["classify", str(classifier), str(texts)]
    assert status_of(words) == 0
    change(classifier / "onnx" / "graphs.json", lambda data: data + b"\n")
    assert status_of(words) == 4
    assert status_of([*words, "--no-verify"]) == 0
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
    with raises(InputError, "file-outside"):
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


def test_only_files_at_places_where_they_are_read_must_be_listed(classifier, capsys):
    manifest = classifier / "manifest.json"
    listed = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    for name, is_read in {
        "ci/outputs.json": False, "ci/model.safetensors": False, "onnx/notes.json": False,
        "report.json": True, "model-00001-of-00002.safetensors": True,
        "encoder_model.onnx": True,  # by optimum
        "onnx/model.onnx_data": True,
    }.items():  # fmt: skip
        path, is_new = classifier / name, name not in listed
        if is_new:
            path.parent.mkdir(exist_ok=True)
            path.write_text("{}", encoding="utf-8")
        edit(manifest, files={key: x for key, x in listed.items() if key != name})
        assert status_of(["verify", str(classifier)]) == (4 if is_read else 0), name
        assert (name in capsys.readouterr().err) == is_read
        if is_new:
            path.unlink()


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
def test_graphs_with_other_weights_are_refused(name, graph, operator, number, value, artifact):
    directory = artifact(name)
    change_weights(directory, graph, operator, number, value)
    write_hashes(directory)
    with raises(InputError, "graphs-of-another-model"):
        verify_directory(directory)
