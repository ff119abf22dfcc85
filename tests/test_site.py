"""The documentation builds to a site whose links and anchors lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} of the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr  # mkdocs names links and anchors that lead nowhere
    return folder


@pytest.mark.slow
def test_every_page_has_its_links_and_pictures(site: Path):
    pages = [*site.glob("*.html"), *site.glob("benchmarks/results/*.html")]
    assert len(pages) > 40
    missing = [
        (page.name, link)
        for page in pages
        for link in re.findall(r'(?:src|href)="([^":#?]+)[#?"]', page.read_text(encoding="utf-8"))
        if page.name != "404.html" and not (page.parent / link).exists()
    ]
    assert missing == []


@pytest.mark.slow
def test_the_python_reference_has_what_is_public(site: Path):
    from compressor import runtime

    text = (site / "python.html").read_text(encoding="utf-8")
    assert "compressor.model.checkpoint.load" in text
    for name in set(runtime.__all__) - {"Runtime"}:
        kind = getattr(runtime, name)
        if isinstance(kind, type) and issubclass(kind, runtime.Runtime):
            assert f"compressor.runtime.{name}" in text


@pytest.mark.slow
def test_pages_fetch_nothing_from_elsewhere(site: Path):
    text = (site / "index.html").read_text(encoding="utf-8")
    fetched = re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?:[^"]+)', text)
    assert fetched == []
