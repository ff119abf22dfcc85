"""Ways to damage a checkpoint, and a check that it is refused with the file's name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from tests.helpers.errors import raises

Damage = Callable[[Path], object]
WEIGHTS, CONFIG, GENERATION = "model.safetensors", "config.json", "generation_config.json"
HTML = b"<!DOCTYPE html><html><body>Not found</body></html>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 268435456\n"
DEEP = b'{"model_type": ' + b"[" * 200_000

# Names a special token that is not there: the tokenizers library panics when it encodes.
PANICS = {
    "type": "TemplateProcessing", "pair": [], "special_tokens": {},
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}],
}  # fmt: skip


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


def rename(change: Callable[[str], str]) -> Damage:
    """Other names for the weights."""

    def damage(directory: Path) -> None:
        found = {change(name): value for name, value in load_file(directory / WEIGHTS).items()}
        save_file(found, directory / WEIGHTS, metadata={"format": "pt"})

    return damage


def moved(file: str, name: str) -> Damage:
    return lambda directory: (directory / file).rename(directory / name)


def sharded(name: str) -> Damage:
    """The weights in a file of another name, which an index says."""

    def change(directory: Path) -> None:
        (directory / WEIGHTS).rename(directory / name)
        index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(directory / name), name)}
        (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index), "utf-8")

    return change


def fifo(file: str) -> Damage:
    def change(directory: Path) -> None:
        (directory / file).unlink(missing_ok=True)
        os.mkfifo(directory / file)

    return change


def without(*files: str) -> Damage:
    return lambda directory: [(directory / file).unlink() for file in files]


def refused(directory: Path, id: str, named: str) -> str:
    """The message with which opening a checkpoint fails, which holds `named`."""
    with raises(InputError, id) as caught:
        open_checkpoint(str(directory))
    assert named in str(caught.value)
    return str(caught.value)
