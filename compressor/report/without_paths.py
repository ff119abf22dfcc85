"""A report without the names of the directories of the machine that it was made on.

What lies in an artifact is meant to be published. Files keep their names, models of the hub their
ids, and artifacts the way to them from the report.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from compressor.report import facts
from compressor.report.schema import Report

# An absolute path, or one below the home directory, up to its last part; spaces within quotes.
_ROOT = r"(?:~|[A-Za-z]:)?[\\/]"
_DIRECTORIES = re.compile(
    rf"(?<=['\"]){_ROOT}(?:[^'\"\\/]+[\\/]+)*(?=[^\s'\"])"
    rf"|(?<![^\s=,(]){_ROOT}(?:[^\s'\",\\/]+[\\/]+)*(?=[^\s'\",])"
)


def without_paths(report: Report, directory: Path) -> Report:
    """The report as it may lie in `directory`."""
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
