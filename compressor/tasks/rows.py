"""The rows of a data file, and what can be said about them without a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class RowTexts:
    """What a task reads from its data files, in file order.

    Args:
        files: paths as given: one file, or two parallel ones.
        sources: sentences to translate, or texts to classify.
        pairs: second texts of a classification task with pairs, else None.
        targets: reference translations, or label names as the checkpoint spells them.
    """

    files: list[str]
    sources: list[str]
    pairs: list[str] | None
    targets: list[str]


@dataclass(frozen=True)
class Rows:
    """Checked rows, as `read_rows` gives them; the other fields are those of `RowTexts`.

    Args:
        task: name of the task they are for.
        sha256: fingerprint of the rows, see `fingerprint`.
        labels: the checkpoint's label names in the order of its class ids; None where the task
            has no classes.
    """

    task: str
    sources: list[str]
    pairs: list[str] | None
    targets: list[str]
    files: list[str]
    sha256: str
    labels: list[str] | None = None


def fingerprint(sources: list[str], pairs: list[str] | None, targets: list[str]) -> str:
    """SHA-256 of the rows, whatever file format they came in.

    Hashed is one line per row: the JSON list [source, pair or null, target] in UTF-8, as Python's
    `json.dumps(…, ensure_ascii=False)` writes it, ended by a line feed.
    """
    digest = hashlib.sha256()
    seconds: Iterable[str | None] = [None] * len(sources) if pairs is None else pairs
    for row in zip(sources, seconds, targets, strict=True):
        digest.update(f"{json.dumps(row, ensure_ascii=False)}\n".encode())
    return digest.hexdigest()


def count_shared(test: Rows, calibration: Rows) -> int:
    """Number of test rows whose text (of pairs: both texts) is a calibration row's as well."""

    def texts(rows: Rows) -> list[tuple[str, str]]:
        return list(zip(rows.sources, rows.pairs or [""] * len(rows.sources), strict=True))

    calibration_texts = set(texts(calibration))
    return sum(text in calibration_texts for text in texts(test))
