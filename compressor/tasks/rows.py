"""The rows of a data file, and what can be said about them without a model."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compressor.errors import InputError
from compressor.storage.text_files import REPORTED_LINES

ColumnNames = Mapping[str, str]  # option of a task, where it was given -> name of the column
Texts = Sequence[str]
LabelNames = Sequence[str] | None  # a checkpoint's, by class id; None: it has none, or not known
# A source, the second text of a pair or None, and a target; see `Rows`.
RowText = tuple[str, str | None, str]


@dataclass(frozen=True)
class RowTexts:
    """What a task reads from its data files.

    Args:
        files: paths as given: one file, or two parallel ones.
        rows: in file order, each checked when it is asked for, once.
        paired: whether rows are pairs of texts.
        ranked: as in `Rows`.
    """

    files: list[str]
    rows: Iterator[RowText]
    paired: bool = False
    ranked: bool = False


@dataclass(frozen=True)
class Rows:
    """Checked rows in file order, as `read_rows` gives them.

    Args:
        task: name of the task they are for.
        sources: sentences to translate, or texts to classify.
        pairs: second texts of a classification task with pairs, else None.
        targets: reference translations, or label names as the checkpoint spells them.
        files: paths as given: one file, or two parallel ones.
        sha256: fingerprint of the rows, see `fingerprint`.
        labels: the checkpoint's label names in the order of its class ids; None where the task
            has no classes.
        ranked: whether the rows are queries (`sources`) with texts (`pairs`) that answers rank, and
            how relevant these are (`targets`): 0 for not at all.
        tokenizers: metric -> how it splits texts, settled once for all rows of a run by
            `compressor.evaluation.with_tokenizers`; empty before.
    """

    task: str
    sources: list[str]
    pairs: list[str] | None
    targets: list[str]
    files: list[str]
    sha256: str
    labels: list[str] | None = None
    ranked: bool = False
    tokenizers: Mapping[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.sources)

    @property
    def references(self) -> list[str]:
        """What metrics compare answers with: the targets; of ranked rows a ranking per query."""
        return self.judged(self.targets)

    def judged(self, answers: Sequence[str]) -> list[str]:
        """What metrics judge: the answers to all rows; of ranked rows a ranking for each query.

        A ranking is a JSON list: how relevant the texts of a query are, in the order of the
        answers, which are numbers, the highest first. Of texts with the same answer the less
        relevant ones come first, so that a model that tells nothing apart gains nothing. Queries
        without a relevant text, which no order is right or wrong for, are left out.

        Raises:
            InputError: an answer to a ranked row is not a number.
        """
        if not self.ranked:
            return list(answers)
        texts: dict[str, list[tuple[float, int]]] = {}
        for query, answer, target in zip(self.sources, answers, self.targets, strict=True):
            score = float(answer)
            if not math.isfinite(score):
                raise InputError(
                    f"the answer {answer} to a row is not a number; measure another model",
                    id="score-not-number",
                )
            texts.setdefault(query, []).append((-score, int(target)))
        return [
            json.dumps([relevance for _, relevance in sorted(found)])
            for found in texts.values()
            if any(relevance for _, relevance in found)
        ]

    @property
    def counted(self) -> tuple[int, str]:
        """How many answers quality is averaged over, and what they are: `rows` or `queries`."""
        return (len(self.references), "queries") if self.ranked else (self.count, "rows")


def first_rows(
    texts: RowTexts, limit: int | None, minimum: int, progress: Callable[[int], None]
) -> tuple[list[str], list[str] | None, list[str]]:
    """Sources, second texts and targets of the first rows, all by default; all rows are checked.

    Args:
        progress: called with the number of rows that are read, of long files.

    Raises:
        InputError: fewer rows than the minimum, or one that is malformed.
    """
    sources: list[str] = []
    seconds: list[str] = []
    targets: list[str] = []
    for number, (source, second, target) in enumerate(texts.rows, 1):
        if limit is None or number <= limit:
            sources.append(source)
            seconds += [] if second is None else [second]
            targets.append(target)
        if number % REPORTED_LINES == 0:
            progress(number)
    if len(sources) < minimum:
        raise InputError(
            f"{', '.join(texts.files)}: too few rows, {len(sources)}; the minimum is {minimum}",
            id="too-few-rows",
        )
    return sources, seconds if texts.paired else None, targets


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
    """Number of test rows whose text is a calibration row's as well.

    Of pairs these are both texts, and of ranked rows it is the query.
    """
    calibration_texts = set(_texts(calibration))
    return sum(text in calibration_texts for text in _texts(test))


def split_rows(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """About half of the rows each, drawn by the text; both parts keep the order of the file.

    Rows with the same text (of pairs: both texts; of ranked rows: the query) go to the same part,
    so that neither part knows what the other asks.

    Args:
        seed: of the draw; the same rows and seed give the same parts.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for number, text in enumerate(_texts(rows)):
        groups.setdefault(text, []).append(number)
    drawn = list(groups.values())
    random.Random(seed).shuffle(drawn)
    first: list[int] = []
    for group in drawn:
        if len(first) + len(group) <= len(rows.sources) // 2:
            first += group
    chosen = set(first)
    second = [number for number in range(len(rows.sources)) if number not in chosen]
    return some_rows(rows, sorted(first)), some_rows(rows, second)


def some_rows(rows: Rows, numbers: Sequence[int]) -> Rows:
    """The rows of these numbers, in their order."""
    sources, targets = ([texts[n] for n in numbers] for texts in (rows.sources, rows.targets))
    pairs = None if rows.pairs is None else [rows.pairs[n] for n in numbers]
    return replace(
        rows,
        sources=sources,
        pairs=pairs,
        targets=targets,
        sha256=fingerprint(sources, pairs, targets),
    )


def _texts(rows: Rows) -> list[tuple[str, str]]:
    seconds = [""] * rows.count if rows.pairs is None or rows.ranked else rows.pairs
    return list(zip(rows.sources, seconds, strict=True))
