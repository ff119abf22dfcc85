"""The documentation builds to a site whose links and anchors lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compressor import runtime

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_every_page_has_its_links_and_pictures(tmp_path: Path):
    """Pages fetch nothing from elsewhere, and the Python reference has what is public."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} of the extra docs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr  # mkdocs names links and anchors that lead nowhere
    pages = [*tmp_path.glob("*.html"), *tmp_path.glob("benchmarks/results/*.html")]
    assert len(pages) > 40
    missing = [
        (page.name, link)
        for page in pages
        for link in re.findall(r'(?:src|href)="([^":#?]+)[#?"]', page.read_text(encoding="utf-8"))
        if page.name != "404.html" and not (page.parent / link).exists()
    ]
    assert missing == []
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?:[^"]+)', text) == []
    text = (tmp_path / "python.html").read_text(encoding="utf-8")
    assert "compressor.model.checkpoint.load" in text
    for name in set(runtime.__all__) - {"Runtime"}:
        kind = getattr(runtime, name)
        if isinstance(kind, type) and issubclass(kind, runtime.Runtime):
            assert f"compressor.runtime.{name}" in text
