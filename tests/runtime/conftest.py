"""Artifacts that several files of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import runtime_artifacts
from tests.helpers.runtime_artifacts import Exported


@pytest.fixture(scope="session")
def pieces() -> Exported:
    return runtime_artifacts.translator()


@pytest.fixture(scope="session")
def bert() -> Path:
    return runtime_artifacts.classifier("bert").directory
