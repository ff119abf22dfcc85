"""Tables of plain text, the same on a terminal, in a pipe and in a file: never cut or wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compressor.report.numbers import printable
from compressor.report.table import Column


def render_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, two spaces between them; one line per row and one for the titles, if any.

    Without columns, the first cell stands left and all others right. The last cells of a row may be
    left out. Lines have no spaces at their ends, and the last one no newline.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    titles = [[column.title for column in columns]] if columns else []
    lines = [*titles, *rows]
    if not lines:
        return ""
    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    widest = max(map(len, lines))
    for right in [column.numeric for column in columns] or [False] + [True] * (widest - 1):
        grid.add_column(justify="right" if right else "left", no_wrap=True)
    for cells in lines:
        grid.add_row(*(Text(printable(cell)) for cell in cells))
    # As wide as the table wants to be, whatever the terminal and its variables say.
    console = Console(
        width=1_000_000, color_system=None, force_terminal=False, legacy_windows=False
    )
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
