"""Pages with their plots, which `helpers.exports` leaves out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compressor.report import page

_DRAW = page.images


@pytest.fixture(scope="package", autouse=True)
def _drawn_plots() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "images", _DRAW)
        yield
