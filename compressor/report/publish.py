"""The report as it is published: its samples, one variant of a run, no paths of the machine."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compressor.report import facts
from compressor.report.schema import Report, Sample
from compressor.results import Ranking, Variant
from compressor.tasks import Rows

_MOST_TEXT = 400  # characters


def sample_rows(rows: Rows, samples: int) -> list[Sample]:
    """The test rows that a report shows, long texts shortened."""
    columns = [rows.sources, *([] if rows.pairs is None else [rows.pairs])]
    return [
        Sample(
            texts=[_shorten(column[number]) for column in columns],
            reference=_shorten(rows.targets[number]),
        )
        for number in _numbers(rows.count, samples)
    ]


def sample_answers(answers: Sequence[str], samples: int) -> list[str]:
    """The answers to these rows, out of the answers to all."""
    return [_shorten(answers[number]) for number in _numbers(len(answers), samples)]


def _numbers(count: int, samples: int) -> list[int]:
    """Rows at even distances, whatever the models answer; all if there are not more."""
    samples = min(count, samples)
    return [(2 * number + 1) * count // (2 * samples) for number in range(samples)]


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def only(report: Report, variant: Variant) -> Report:
    """The report of the dense model and one variant, each in all its precisions."""
    chosen = {report.dense.name, variant.name, variant.base or variant.name}
    variants = [v for v in report.variants if chosen & {v.name, v.base}]
    names = {report.dense.name, *(v.name for v in variants)}
    timed = report.throughput
    if timed is not None:
        rows = [row for row in timed.rows if row.variant in names]
        timed = timed.model_copy(update={"rows": rows})
    return report.model_copy(
        update={
            "variants": [model.model_copy(update={"scoring": None}) for model in variants],
            "scoring": facts.scoring(report, variant),
            "throughput": timed,
            "gate": [outcome for outcome in report.gate if outcome.variant in names],
        }
    )


def share_scoring(variants: Sequence[Variant]) -> tuple[Ranking | None, list[Variant]]:
    """A scoring that all variants share, so that a report holds it once, and them without it.

    None and the variants as they are if their heads were ranked by different scores.
    """
    pruned = [variant for variant in variants if not variant.base]
    if not pruned or any(variant.scoring != pruned[0].scoring for variant in pruned):
        return None, list(variants)
    return pruned[0].scoring, [model.model_copy(update={"scoring": None}) for model in variants]


# An absolute path, or one below the home directory, up to its last part; spaces within quotes.
_ROOT = r"(?:~|[A-Za-z]:)?[\\/]"
_DIRECTORIES = re.compile(
    rf"(?<=['\"]){_ROOT}(?:[^'\"\\/]+[\\/]+)*(?=[^\s'\"])"
    rf"|(?<![^\s=,(]){_ROOT}(?:[^\s'\",\\/]+[\\/]+)*(?=[^\s'\",])"
)


def without_paths(report: Report, directory: Path) -> Report:
    """The report as it may lie in `directory`, which is meant to be shown to others.

    Files keep their names, models of the hub their ids, and artifacts the way to them from there.
    """
    data = _cut(report.model_dump())
    data["model"] = facts.model_name(report)
    data["command"] = _cut_command(report.command)
    models = [data["dense"], *data["variants"]]
    for model, variant in zip(models, facts.models(report), strict=True):
        model["directory"] = Path(os.path.relpath(variant.directory, directory)).as_posix()
    return Report.model_validate(data)


def without_directories(text: str) -> str:
    """Text in which paths of the machine are cut to their last part."""
    return _DIRECTORIES.sub("", text)


def _cut(value: Any) -> Any:
    """A value in which absolute paths, and all paths of data, are cut to their last part."""
    if isinstance(value, str):
        return without_directories(value)
    if isinstance(value, dict):
        # Sample rows are the user's texts, whatever looks like a path in them.
        cut = {key: x if key == "samples" else _cut(x) for key, x in value.items()}
        if value.keys() == {"files", "rows", "sha256"}:
            cut["files"] = [_name(file) for file in value["files"]]
        return cut
    if isinstance(value, list | tuple):
        return type(value)(map(_cut, value))
    return value


def _cut_command(command: str) -> str:
    """The command with names of files; `--option=a/b.tsv,c/d.tsv` has several paths in one word."""
    try:
        words = shlex.split(command)
    except ValueError:  # it was not written by this program
        return without_directories(command)
    return shlex.join(re.sub(r"[^,=]+", lambda part: _cut_part(part[0]), word) for word in words)


def _cut_part(part: str) -> str:
    """The last part of what is a path: absolute, or relative and its directory is there."""
    try:
        is_path = part.startswith(("/", "~")) or ("/" in part and Path(part).parent.is_dir())
    except (OSError, ValueError):  # longer than names can be, say
        is_path = False
    return _name(part) if is_path else without_directories(part)


def _name(path: str) -> str:
    return re.split(r"[\\/]+", path.rstrip("\\/"))[-1] or path
