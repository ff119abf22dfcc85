"""Plots of the reports that many tests show."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps

import pytest

from compressor.report import page
from compressor.report.schema import Report, render_json


@pytest.fixture(scope="session", autouse=True)
def _kept_plots() -> Iterator[None]:
    """Draw the plots of equal reports once for all pages: a page takes a second, its plots do."""
    draw, kept = page.images, {}

    @wraps(draw)
    def images(report: Report) -> dict[str, page.PageImage]:
        key = render_json(report)
        if key not in kept:
            kept[key] = draw(report)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "images", images)
        yield
