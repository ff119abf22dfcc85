"""A hook of mkdocs: pages link to files of the repository as on GitHub, and the site has copies.

`make docs` builds the site, whose pages are those of docs/. A notebook becomes a page. The search
finds pages before tables of benchmarks, and options before all.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# Page -> how much more it counts in the search than others.
_BOOSTS = {"options.md": 4, "usage.md": 2, "questions.md": 2, "CHANGELOG.md": 0.2}
_NOTEBOOK, _OPTIONS = ".ipynb", "options.md"
_OPTION = re.compile(r"^\| `([^`]*--[^`]*)` \| (.*) \|$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")


def slug(heading: str, separator: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that they have on GitHub, and pages a link to the repository."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    config.repo_url = config.repo_url or _repository()
    return config


def _repository() -> str | None:
    """Where the checkout was cloned from, as a page on the web."""
    command = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    try:
        url = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return None
    url = re.sub(r"^git@([^:/]+):", r"https://\1/", url).removesuffix(".git")
    return url if re.fullmatch(r"https://[^@\s]+", url) else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside of docs/, under its path in the repository."""
    waiting = [file.abs_src_path for file in files.documentation_pages()]
    added: set[Path] = set()
    while waiting:
        page = Path(waiting.pop() or "")
        for link, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if "://" in link or _of_docs(target) or not target.exists() or target in added:
                continue
            added.add(target)
            files.append(_copy(target, config))
            if target.suffix == ".md":
                waiting.append(str(target))
            elif target.is_dir():
                waiting += map(str, target.glob("*.md"))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to files of the repository to their copies."""
    here = page.file.src_uri
    boost = _BOOSTS.get(here, 1)
    page.meta["search"] = {"exclude": True} if here.startswith("benchmarks/") else {"boost": boost}
    source = ROOT / "docs" / here
    source = source if source.exists() else ROOT / here
    up = "../" * here.count("/")

    def lead(match: re.Match[str]) -> str:
        link, anchor = match.groups()
        target = (source.parent / link).resolve()
        if "://" in link or not target.exists() or (_of_docs(target) and _of_docs(source)):
            return match[0]
        base = ROOT / "docs" if _of_docs(target) else ROOT
        path = target.relative_to(base).as_posix()
        ending = "/index.md" if target.is_dir() else ""
        if target.suffix == _NOTEBOOK:
            path = target.relative_to(base).with_suffix(".md").as_posix()
        return f"]({up}{path}{ending}{anchor})"

    return _LINK.sub(lead, _with_anchors(markdown) if here == _OPTIONS else markdown)


@event_priority(-100)  # after the search has written its index
def on_post_build(config: MkDocsConfig) -> None:
    """Let the search find every option by its name."""
    file = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(file.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / _OPTIONS).read_text(encoding="utf-8")
    index["docs"] += [
        {
            "location": f"{_OPTIONS.replace('.md', '.html')}#{anchor}",
            "title": html.escape(f"{names} ({command})"),
            "text": html.escape(text),
        }
        for command, anchor, names, text in _options(page)
    ]
    file.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")


def _options(page: str) -> Iterator[tuple[str, str, str, str]]:
    """Each option in the tables of the page: its command, anchor, names as written, and help."""
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        command = section.partition("\n")[0]
        for names, text in _OPTION.findall(section):
            name = re.sub(r"\[no-\]", "", names).partition("--")[2].split()[0].rstrip(",")
            yield command, f"{slug(command, '-')}--{name}", names, text


def _with_anchors(page: str) -> str:
    """The page of options with an anchor at every option."""
    anchors = iter([anchor for _, anchor, *_ in _options(page)])
    return _OPTION.sub(lambda match: f"| `{match[1]}`{{ #{next(anchors)} }} | {match[2]} |", page)


def _of_docs(path: Path) -> bool:
    return path.is_relative_to(ROOT / "docs")


def _copy(target: Path, config: MkDocsConfig) -> File:
    """A file of the repository; of a directory, a page with its files."""
    path = target.relative_to(ROOT).as_posix()
    if target.suffix == _NOTEBOOK:
        return File.generated(config, path.removesuffix(_NOTEBOOK) + ".md", content=_cells(target))
    if target.is_dir():
        names = sorted(entry.name for entry in target.iterdir() if entry.is_file())
        text = "\n".join([f"# {path}", "", *(f"- `{name}`" for name in names), ""])
        return File.generated(
            config, f"{path}/index.md", content=text, inclusion=InclusionLevel.NOT_IN_NAV
        )
    return File.generated(
        config, path, abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV
    )


def _cells(notebook: Path) -> str:
    """The cells of a notebook as Markdown, without outputs."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"
