"""Checkpoints that several files of tests damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import toy


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
