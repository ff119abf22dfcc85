"""The report as it is published: its samples, one variant of a run, no paths of the machine."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compressor.report import facts
from compressor.report.schema import Report
from compressor.steps.results import Ranking, Source, Variant


def only(report: Report, variant: Variant) -> Report:
    """The report of the dense model and one variant, each in all its precisions."""
    variants = [v for v in report.variants if v.family in (report.dense.name, variant.family)]
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
    """A scoring that all variants share, and them without it; None if their scores differ."""
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
    """The report as it may be shown to others, in which files keep their names alone."""
    data = _cut(report.model_dump())
    data["model"] = facts.model_name(report)
    data["command"] = _cut_command(report.command)
    # Sample rows are the user's texts, whatever looks like a path in them.
    data["samples"] = report.samples
    models = [data["dense"], *data["variants"]]
    for model, variant in zip(models, facts.models(report), strict=True):
        model["directory"] = Path(os.path.relpath(variant.directory, directory)).as_posix()
        model["samples"] = variant.samples
    return Report.model_validate(data)


def _cut(value: Any) -> Any:
    """A value in which absolute paths, and all paths of data, are cut to their last part."""
    if isinstance(value, str):
        return _DIRECTORIES.sub("", value)
    if isinstance(value, dict):
        if value.keys() == Source.model_fields.keys():
            return value | {"files": list(map(_name, value["files"]))}
        return {key: _cut(x) for key, x in value.items()}
    return [_cut(x) for x in value] if isinstance(value, list | tuple) else value


def _cut_command(command: str) -> str:
    """The command with names of files; `--option=a/b.tsv,c/d.tsv` has several paths in one word."""

    def cut(match: re.Match[str]) -> str:
        """The last part of what is a path: absolute, or relative and its directory is there."""
        part = match[0]
        try:
            is_path = part.startswith(("/", "~")) or ("/" in part and Path(part).parent.is_dir())
        except (OSError, ValueError):  # longer than names can be, say
            is_path = False
        return _name(part) if is_path else _DIRECTORIES.sub("", part)

    try:
        words = shlex.split(command)
    except ValueError:  # it was not written by this program
        return _DIRECTORIES.sub("", command)
    return shlex.join(re.sub(r"[^,=]+", cut, word) for word in words)


def _name(path: str) -> str:
    return re.split(r"[\\/]+", path.rstrip("\\/"))[-1] or path
