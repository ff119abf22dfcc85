"""`manifest.json`: every file of an output directory with its size and SHA-256.

Hashes are computed when a file is written; a file that has changed since is an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from compressor.errors import CompressWarning, InputError
from compressor.storage.hashes import sha256_of
from compressor.storage.input_files import cannot_read, inner_path, read_json, require_regular

MANIFEST = "manifest.json"
GRAPHS_FILE = "graphs.json"  # which graphs there are; names the others, so it is written last
CARD = "README.md"  # the model card of a checkpoint
REPORT = "report.json"  # the results of a run
RECIPE = "recipe.yaml"  # the resolved options of a run
# What loading a checkpoint reads in its directory. Of code and templates only existing files count:
# this tool needs neither, and downloads leave them out.
_CHECKPOINT = (
    "*config.json", "*tokenizer*.json", "*vocab*", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "units.json", "*.safetensors", "*.index.json", "*.spm", "*.model",
    "modules.json", "config_sentence_transformers.json",
)  # fmt: skip
MODULES = "[0-9]_[A-Z]*/*"  # folders of what follows a sentence encoder
_MAY_BE_MISSING = ("*.py", "*.jinja", "chat_template*", "*.bin")
SCHEMA = 1
_TOOL = "compress "  # what `tool` starts with, in manifests of ours


@dataclass(frozen=True)
class Listed:
    """The size and the SHA-256 that a manifest has for a file."""

    bytes: int
    sha256: str


def manifest_of(
    directory: Path, facts: Mapping[str, Any], hashes: Mapping[str, str]
) -> dict[str, Any]:
    """The contents of a manifest.

    Args:
        directory: of the files.
        facts: `tool`, the program with its version, and what else is known of their making.
        hashes: path from the directory -> SHA-256 of what was written.
    """
    files = {
        name: {"bytes": (directory / name).stat().st_size, "sha256": digest}
        for name, digest in sorted(hashes.items())
    }
    return {"schema": SCHEMA, **facts, "files": files}


def read_contents(path: Path) -> dict[str, Any] | None:
    """Read a manifest.

    Returns:
        None if there is none, or if another program wrote it.

    Raises:
        InputError: it is damaged or cannot be read.
    """
    if not path.is_file():
        return None
    try:
        data = read_json(path)
        if isinstance(data, dict) and not str(data.get("tool", "")).startswith(_TOOL):
            return None
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema {str(data.get('schema'))[:40]}, this version reads {SCHEMA}")
        for name, listed in data["files"].items():
            inner_path(name, nested=True)
            if not (isinstance(listed["bytes"], int) and isinstance(listed["sha256"], str)):
                raise ValueError(f"it does not say what {name} holds")
    except OSError as error:
        raise cannot_read(path, error) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is damaged ({error}); make the directory again, or give --no-verify to use "
            "its files unchecked",
            id="manifest-damaged",
        ) from error
    return data


def read_manifest(directory: Path) -> dict[str, Listed] | None:
    """Read which files a directory's manifest lists.

    Returns:
        Path from the directory -> entry; None if there is no manifest of ours.

    Raises:
        InputError: it is damaged or cannot be read.
    """
    data = read_contents(directory / MANIFEST)
    if data is None:
        return None
    return {name: Listed(x["bytes"], x["sha256"]) for name, x in data["files"].items()}


def is_manifest(path: Path) -> bool:
    """Whether a file is a manifest of ours that can be read."""
    try:
        return read_contents(path) is not None
    except InputError:
        return False


def find_change(directory: Path, name: str, listed: Listed) -> str:
    """Say how a file differs from its entry; empty if it does not."""
    path = directory / name
    try:
        if not path.is_file():
            return "is missing"
        facts = path.stat()
        if facts.st_size != listed.bytes:
            return f"has {facts.st_size} bytes where {MANIFEST} says {listed.bytes}"
        digest = _digest(path.resolve(), facts.st_ino, facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise cannot_read(path, error) from error
    return "" if digest == listed.sha256 else f"is not the file that {MANIFEST} lists"


@lru_cache(maxsize=1024)
def _digest(path: Path, *facts: int) -> str:
    """SHA-256 of a file, remembered while the process lasts and its `facts` do not change."""
    return sha256_of(path)


def require_unchanged(directory: Path, names: Iterable[str], *, warn: bool = True) -> None:
    """Check files against the manifest of their directory before they are used.

    Args:
        directory: of the files.
        names: paths from the directory; weights beside graphs (`NAME_data`) are added.
        warn: whether to warn if there is no manifest.

    Raises:
        InputError: a file is not the one that the manifest lists, or is not listed.
    """
    listed = read_manifest(directory)
    if listed is None:
        if warn:
            warnings.warn(
                f"{directory} has no {MANIFEST} of compress, so its files are not checked for "
                "damage",
                CompressWarning,
                stacklevel=3,
            )
        return
    for name in names:
        weights = f"{name}_data"
        has_weights = weights in listed or (directory / weights).exists()
        for file in (name, weights) if has_weights else (name,):
            change = f"is not listed in {MANIFEST}"
            if file in listed:
                change = find_change(directory, file, listed[file])
            if change:
                raise InputError(
                    f"{directory / file} {change}; make it again, copy it again, or give "
                    "--no-verify (verify=False) to use it unchecked",
                    id="file-changed" if file in listed else "file-not-in-manifest",
                )


def require_no_links_out(directory: Path, names: Iterable[str]) -> None:
    """Check that no file of a directory is a link to a place outside of it.

    Links within the cache of the Hugging Face hub, from `snapshots` to `blobs`, are allowed.

    Raises:
        InputError: one is.
    """
    root = directory.resolve()
    for path in (directory / name for name in names):
        target = path.resolve()
        cached = target.parent.name == "blobs" and target.parents[1].name.startswith("models--")
        if not target.is_relative_to(root) and not cached:
            raise InputError(
                f"{path} is a link to {target}, outside of {directory}; copy the file itself there",
                id="file-outside",
            )


def require_own_files(directory: Path) -> None:
    """Check that every file of a checkpoint is a regular file in its directory.

    Links into the hub's cache, where downloaded checkpoints keep their files, are followed.

    Raises:
        InputError: one is a link to another place, or cannot be read.
    """
    try:
        paths = sorted([*directory.iterdir(), *directory.glob(MODULES)])
        files = [path for path in paths if not path.is_dir()]
        require_no_links_out(directory, [str(x.relative_to(directory)) for x in files])
        for path in files:
            require_regular(path)
    except OSError as error:
        raise cannot_read(error.filename or directory, error) from error


def checkpoint_files(directory: Path) -> list[str]:
    """Names of the files in a directory that loading a checkpoint from it reads."""
    patterns = (*_CHECKPOINT, *_MAY_BE_MISSING)
    names = [path.name for path in directory.glob("*") if path.is_file()]
    nested = [x.relative_to(directory).as_posix() for x in directory.glob(MODULES) if x.is_file()]
    return sorted([*(name for name in names if _matches_any(name, patterns)), *nested])


def require_checkpoint_unchanged(directory: Path, *, warn: bool) -> None:
    """Check the files that loading a checkpoint reads, missing ones included.

    Args:
        directory: of the checkpoint.
        warn: whether to warn if there is no manifest, as for a checkpoint that this tool wrote.

    Raises:
        InputError: a file is not the one that the manifest lists, or is not listed.
    """
    listed = read_manifest(directory) or {}
    checked = {x for x in listed if _matches_any(x, [MODULES] if "/" in x else _CHECKPOINT)}
    checked.update(checkpoint_files(directory))
    require_unchanged(directory, sorted(checked), warn=warn)


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
