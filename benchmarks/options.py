"""Write docs/options.md: every command with its options, as the program declares them.

python -m benchmarks.options
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from benchmarks.pages import ROOT, markdown_table
from compressor.commands import application
from compressor.commands.help import panels

PAGE = ROOT / "docs" / "options.md"
_TITLE = """# Commands and options

Written by `python -m benchmarks.options` from the program itself; a test holds it to that. What the
options mean together is told in [usage](usage.md)."""
_EVERYWHERE = ("--help", "--quiet", "--verbose")  # shown once


def page() -> str:
    """The page's text."""
    group: Any = typer.main.get_command(application())
    context = typer.Context(group, info_name="compress")
    parts = [_TITLE]
    for name, command in _commands(group, "compress"):
        parts += [f"## {name}", _one_line(command.help or "")]
        parts += [f"```sh\n{command.epilog}\n```"] if command.epilog else []
        for panel, rows in panels(command, context):
            shown = [
                [f"`{names}`", _cell(text)]
                for names, text in rows
                if not any(name in names for name in _EVERYWHERE)
            ]
            if shown:
                parts.append(markdown_table([panel, "meaning"], "l", shown))
    parts += [
        "## Everywhere",
        "`-q`, `--quiet`: only the result, no messages. `-v`, `--verbose`: also how long stages "
        "took. `-h`, `--help`.",
    ]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command that can be called, by its full name."""
    for member, command in group.commands.items():
        full = f"{name} {member}"
        if hasattr(command, "commands"):
            yield from _commands(command, full)
        else:
            yield full, command


def _one_line(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
