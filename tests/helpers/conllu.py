"""Parsed sentences as text."""

from __future__ import annotations


def conllu(*rows: str) -> str:
    """`1 form head relation [NoSpace]` as lines of a CoNLL-U file."""
    lines = []
    for row in rows:
        number, form, head, relation, *misc = row.split()
        cells = [number, form, "_", "_", "_", "_", head, relation, "_"]
        lines.append("\t".join([*cells, "SpaceAfter=No" if misc else "_"]))
    return "\n".join(lines) + "\n"
