"""Artifacts that several files of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import runtime_artifacts, toy
from tests.helpers.runtime_artifacts import Exported, export, vary
from tests.helpers.tiny import nothing_left_mask


@pytest.fixture(scope="session")
def pieces() -> Exported:
    return runtime_artifacts.translator()


@pytest.fixture(scope="session")
def bert() -> Path:
    return runtime_artifacts.classifier("bert").directory


@pytest.fixture(scope="session")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A translator without any unit: no cache, and no source to attend to."""
    directory = tmp_path_factory.mktemp("hollow")
    dense = toy.translator(directory / "dense")
    return export(dense, nothing_left_mask, directory / "out", vary)
