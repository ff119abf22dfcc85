"""Ranked rows: a query, a text, and how relevant that is; see `Rows.ranked`."""

from __future__ import annotations

import re
import warnings

from compressor.errors import CompressWarning, InputError
from compressor.tasks.cells import cell_text
from compressor.tasks.rows import Rows
from compressor.tasks.tables import Record, RowTable, shortened

METRICS = ("ndcg@10", "mrr@10", "map")
# Option -> the column that is read where none is named.
COLUMNS = {"text_column": "query", "text_pair_column": "text", "label_column": "label"}
_WHOLE = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


def relevance_text(table: RowTable, record: Record, column: str) -> str:
    """A cell that says how relevant a text is: a whole number, 0 for not at all.

    Raises:
        InputError: it is none; with file and line.
    """
    cell = cell_text(table, record, column, integers=True)
    if not _WHOLE.fullmatch(cell):
        raise InputError(
            f"{table.path}:{record.line}: the relevance {shortened(cell, 40)!r} is not a whole "
            "number; write 0 for a text that is not relevant and 1 for one that is, or grades",
            id="relevance-not-whole",
        )
    return cell


def require_queries(rows: Rows) -> None:
    """Check that ranked rows tell something, and warn of queries that are left out.

    Raises:
        InputError: fewer than two queries have a relevant text.
    """
    judged, _ = rows.counted
    queries = len(set(rows.sources))
    files = ", ".join(rows.files)
    if judged < 2:
        raise InputError(
            f"{files}: {judged} of {queries} queries have a relevant text, and quality is a mean "
            "over these; give rows of 2 or more",
            id="too-few-queries",
        )
    if judged < queries:
        warnings.warn(
            f"{files}: {queries - judged} of {queries} queries have no relevant text and are left "
            "out of the metrics",
            CompressWarning,
            stacklevel=2,
        )
