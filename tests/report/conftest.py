"""Plots of the reports that many tests show."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps

import pytest

from compressor.report import page
from compressor.report.schema import Report, render_json

_DRAW = page.images  # `helpers.exports` leaves the plots out


@pytest.fixture(scope="package", autouse=True)
def _kept_plots() -> Iterator[None]:
    """Draw the plots of equal reports once for all pages: a page takes a second, its plots do."""
    kept = {}

    @wraps(_DRAW)
    def images(report: Report) -> dict[str, str]:
        key = render_json(report)
        if key not in kept:
            kept[key] = _DRAW(report)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "images", images)
        yield
