"""A hook of mkdocs: pages link to files of the repository as on GitHub, and the site has copies.

`make docs` builds the site, whose pages are those of docs/.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")


def slug(heading: str, separator: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that they have on GitHub."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


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
        return f"]({up}{path}{'/index.md' if target.is_dir() else ''}{anchor})"

    return _LINK.sub(lead, markdown)


def _of_docs(path: Path) -> bool:
    return path.is_relative_to(ROOT / "docs")


def _copy(target: Path, config: MkDocsConfig) -> File:
    """A file of the repository; of a directory, a page with its files."""
    path = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        names = sorted(entry.name for entry in target.iterdir() if entry.is_file())
        text = "\n".join([f"# {path}", "", *(f"- `{name}`" for name in names), ""])
        return File.generated(
            config, f"{path}/index.md", content=text, inclusion=InclusionLevel.NOT_IN_NAV
        )
    return File.generated(
        config, path, abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV
    )
