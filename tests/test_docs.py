"""Links of the documentation lead to files and headings that are there, also on its site."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest
import yaml

from benchmarks import readme
from benchmarks.errors import page as errors_page
from benchmarks.options import page as options_page
from compressor import runtime
from compressor.options.requests import make_recipe
from compressor.storage.version import __version__

ROOT = Path(__file__).parent.parent
WITH_TABLES = (*readme.PAGES, "README.md", "docs/README.md", "docs/engines.md")
PAGES_WITH_TABLES = [ROOT / page for page in WITH_TABLES]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if link.startswith(("https://", "http://")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_page_of_options_is_what_the_program_has():
    written = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert written == options_page(), "run python -m benchmarks.options"


def test_the_page_of_errors_is_what_the_sources_have():
    written = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert written == errors_page(), "run python -m benchmarks.errors"


def test_every_id_of_an_error_is_on_its_page():
    """By what tests ask for, and what stands in the sources as `id="…"`; and the other way."""
    written = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    patterns = set(re.findall(r"^\| `([^`]+)` \|", written, re.MULTILINE))
    sources, tests = (
        "".join(path.read_text(encoding="utf-8") for path in ROOT.glob(f"{folder}/**/*.py"))
        for folder in ("compressor", "tests")
    )
    ids = {
        *re.findall(r'\bid="([\w-]+)"', sources), *re.findall(r'_fail\(.*"([\w-]+)"\)', sources),
        *re.findall(r'raises\(\w+, "([\w-]+)"', tests),
    }  # fmt: skip
    globs = [pattern.replace("…", "*") for pattern in patterns]
    unlisted = {id for id in ids if not any(fnmatchcase(id, glob) for glob in globs)}
    assert unlisted == set()
    parts = {part for pattern in patterns for part in pattern.split("…")}
    assert {part for part in parts if f'{part}"' not in sources} == set()


@pytest.mark.parametrize("page", PAGES_WITH_TABLES, ids=lambda page: page.name)
def test_tables_are_those_that_were_measured(page: Path):
    written = page.read_text(encoding="utf-8")
    assert written == readme.with_tables()[page], "run python -m benchmarks.readme"


def test_the_first_page_is_short_and_says_what_its_table_does():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 600
    first = text.split("\n\n")[1]
    (gain,) = re.findall(r"\*\*([\d.]+) times the speed", first)
    (lost,) = re.findall(r"loss of ([\d.]+) points", first)
    (line,) = (line for line in text.splitlines() if line.startswith("| Classifier"))
    assert f"(**{gain} times**)" in line
    assert re.findall(r"\| -([\d.]+) \[", line)[0][: len(lost)] == lost


def test_pages_name_one_version():
    """A version that is not released is that of the changes without a number."""
    assert f"version {__version__}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## (.*)$", changes, re.MULTILINE)[0]
    assert newest == ("Unreleased" if ".dev" in __version__ else __version__)


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "README.md"
    linked = {
        Path(link).name for link in re.findall(r"\]\(([\w-]+\.md)\)", index.read_text("utf-8"))
    }
    assert linked == {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}


def test_the_recipe_on_its_page_is_read(tmp_path: Path):
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "recipe.yaml"
    file.write_text(shown, encoding="utf-8")
    options = yaml.safe_load(make_recipe(file).to_yaml())
    assert options["macs"] == [0.5]
    assert options["distill_text"] == "texts.txt"


@cache
def flags_of_commands() -> dict[str, set[str]]:
    """Full name of a command -> its flags."""
    sections = re.split(r"^## ", options_page(), flags=re.MULTILINE)[1:]
    everywhere = set(re.findall(r"`(-[-\w]+)`", sections[-1]))
    flags = {}
    for section in sections[:-1]:
        name, _, rest = section.partition("\n")
        cells = " ".join(re.findall(r"^\| `([^`]*)`", rest, re.MULTILINE))
        cells = re.sub(r"--\[no-\]([-a-z]+)", r"--\1 --no-\1", cells)
        flags[name] = everywhere | set(re.findall(r"(?<![\w-])--?[a-z][-\w]*", cells))
    return flags


def commands_in(text: str) -> list[str]:
    """Lines of code blocks that call the program, with their continuations."""
    joined = re.sub(r"\\\n\s*", "", text)
    return re.findall(r"^ {4,}(?:\$ )?(compress [^#|<>\n]*)", joined, re.MULTILINE) + (
        re.findall(r"^(compress [^#|<>\n]*)", joined, re.MULTILINE)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_on_the_pages_exist_with_their_options(page: Path):
    known, wrong = flags_of_commands(), []
    for command in commands_in(page.read_text(encoding="utf-8")):
        names = [name for name in known if command.startswith((f"{name} ", name))]
        flags = {word.partition("=")[0] for word in re.findall(r"(?<=\s)--?[a-z][^\s\]]*", command)}
        name = max(names, key=len, default="")
        if not names or flags - known[name]:
            wrong.append(command)
    assert wrong == []


@pytest.mark.slow
def test_every_page_has_its_links_and_pictures(tmp_path: Path):
    """Without PyTorch; pages fetch nothing from elsewhere, the search finds options by name."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} of the extra docs is not installed")
    build = "import sys; sys.modules.update(torch=None); from mkdocs.__main__ import cli; cli()"
    done = subprocess.run(
        [sys.executable, "-c", build, "build", "--strict", "--quiet", "--site-dir", tmp_path],
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
    plain = re.sub(r"<[^>]+>", "", text)
    assert 'engine: str = "onnxruntime"' in html.unescape(plain)  # a value, not a constant's name
    index = json.loads((tmp_path / "search" / "search_index.json").read_text("utf-8"))["docs"]
    found = {entry["location"]: entry["title"] for entry in index}
    assert found["options.html#compress-run--macs"].startswith("--macs ")
    assert 'id="compress-run--macs"' in (tmp_path / "options.html").read_text(encoding="utf-8")
    assert [place for place in found if place.startswith("benchmarks/")] == []
    assert {"CHANGELOG.html", "examples/notebook/prune_a_classifier.html"} <= found.keys()
