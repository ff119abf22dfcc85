"""Tables of plain text, the same on a terminal, in a pipe and in a file: never cut or wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compressor.report.numbers import printable

if TYPE_CHECKING:
    from rich.console import JustifyMethod

_ALIGNMENTS: dict[str, JustifyMethod] = {"l": "left", "r": "right"}


def render_table(
    columns: Sequence[str] | None, rows: Sequence[Sequence[str]], align: str | None = None
) -> str:
    """Aligned columns, two spaces between them; one line per row and one for the titles.

    Args:
        columns: titles; None for a table without.
        rows: cells as text; the last cells of a row may be left out.
        align: `l` (left) or `r` (right) for each column; None: the first left, all others right.

    Returns:
        The lines, without a newline at the end and without spaces at the ends of lines.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [*([columns] if columns is not None else []), *rows]
    if not lines:
        return ""
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    for letter in align or "l" + "r" * (max(map(len, lines)) - 1):
        table.add_column(justify=_ALIGNMENTS[letter], no_wrap=True)
    for cells in lines:
        table.add_row(*(Text(printable(cell)) for cell in cells))
    # As wide as the table wants to be, whatever the terminal and its variables say.
    console = Console(
        width=1_000_000, color_system=None, force_terminal=False, legacy_windows=False
    )
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
