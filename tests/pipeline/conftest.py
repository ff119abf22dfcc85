"""Dense checkpoints that tests of measured budgets share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import toy
from tests.helpers.measured import first_layers


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    """Three layers of four heads each."""
    return toy.classifier(tmp_path_factory.mktemp("bert") / "dense")


@pytest.fixture(scope="module")
def short_classifier(classifier, tmp_path_factory) -> Path:
    """The first layers of `classifier`."""
    return first_layers(classifier, tmp_path_factory.mktemp("bert") / "short")
