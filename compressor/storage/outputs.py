"""Files of an output directory: those of a single step, and those beside the steps' files of a run.

A run replaces its own reports, cards, recipes and manifests and nothing else: their hashes are
noted in the state directory before they are written. A file with another hash is the user's, or is
damaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.storage.disk import translate_disk_errors
from compressor.storage.files import require_directory, write_at_once, write_json
from compressor.storage.hashes import sha256_below, sha256_of, sha256_of_text
from compressor.storage.manifest import (
    GRAPHS_FILE,
    MANIFEST,
    checkpoint_files,
    is_manifest,
    manifest_of,
    read_contents,
    read_manifest,
)
from compressor.storage.staging import move_output, require_free, staging
from compressor.storage.version import __version__

_WRITTEN = "outputs.list"
_KEPT = 50  # hashes of a file


def write_manifest(directory: Path, facts: Mapping[str, Any], hashes: Mapping[str, str]) -> None:
    """Write the manifest of a directory; arguments are those of `manifest_of`."""
    write_json(directory / MANIFEST, manifest_of(directory, facts, hashes))


def update_manifest(directory: Path, hashes: Mapping[str, str]) -> None:
    """Enter files that were written into the manifest of their directory, if it has one of ours."""
    data = read_contents(directory / MANIFEST)
    if data is not None:
        files = data["files"] | manifest_of(directory, {}, hashes)["files"]
        write_json(directory / MANIFEST, data | {"files": dict(sorted(files.items()))})


def require_new(output: Path) -> None:
    """Check that a directory can be written and is empty, but for leftovers of a killed process.

    Raises:
        InputError: it cannot be written, has files, or another process writes there.
    """
    require_directory(output)
    require_free(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(
            f"{output} exists and is not empty; choose another --output", id="output-not-empty"
        )


@contextmanager
def whole_output(output: Path, needed: int, doing: str) -> Iterator[Path]:
    """A directory whose contents go to `output` when the block ends, and nowhere on an error.

    They are listed in its manifest; a new one lists the checkpoint that is there, too.

    Args:
        output: the directory of the result.
        needed: about how many bytes are written.
        doing: what is done, in words, for the error if the disk refuses.

    Raises:
        InputError: the disk is full, read-only or gone, or another process writes there.
    """
    with (
        translate_disk_errors(output, lambda: needed, lambda: doing),
        staging(output, exclusive=True) as staged,
    ):
        yield staged
        hashes = sha256_below(staged)
        is_listed = (output / MANIFEST).exists()
        if not is_listed:
            manifest = manifest_of(staged, {"tool": f"compress {__version__}"}, hashes)
            beside = {name: sha256_of(output / name) for name in checkpoint_files(output)}
            manifest["files"] |= manifest_of(output, {}, beside)["files"]
            hashes[MANIFEST] = write_json(staged / MANIFEST, manifest)
        move_output(staged, output, hashes, last=GRAPHS_FILE)
        if is_listed and is_manifest(output / MANIFEST):  # another program's stays as it is
            update_manifest(output, hashes)


def write_outputs(root: Path, state: Path, texts: Mapping[Path, str]) -> dict[Path, str]:
    """Write texts over files of this run, and over nothing else.

    Args:
        root: the output directory.
        state: where the run keeps its records.
        texts: path -> text.

    Returns:
        Path -> SHA-256.

    Raises:
        InputError: a file of that name exists, and this run did not write it.
    """
    require_written_by_run(root, state, texts)
    noted = _recorded_hashes(state)
    hashes = {path: sha256_of_text(text) for path, text in texts.items()}
    for path, digest in hashes.items():
        known = noted.setdefault(path.relative_to(root).as_posix(), [])
        # A former one is still there if this process is killed.
        known[:] = [*(x for x in known if x != digest), digest][-_KEPT:]
    write_json(state / _WRITTEN, noted)
    for path, text in texts.items():
        write_at_once(path, text)
    return hashes


def require_written_by_run(root: Path, state: Path, paths: Iterable[Path]) -> None:
    """Check that files do not exist, or are what this run wrote.

    Args:
        root: the output directory.
        state: where the run keeps its records.
        paths: of the files.

    Raises:
        InputError: one is something else.
    """
    noted = _recorded_hashes(state)
    for path in paths:
        if not (path.exists() or path.is_symlink()):
            continue
        if path.name == MANIFEST and is_manifest(path):
            continue
        known = set(noted.get(path.relative_to(root).as_posix(), ()))
        with suppress(InputError):  # `compress report` keeps the manifest true
            listed = (read_manifest(path.parent) or {}).get(path.name)
            known |= {listed.sha256} if listed else set()
        if not path.is_file() or sha256_of(path) not in known:
            raise InputError(
                f"{path} is not what this run wrote there; move it away, or choose another "
                "--output",
                id="output-not-ours",
            )


def _recorded_hashes(state: Path) -> dict[str, list[str]]:
    """Path from the output directory -> hashes of what was written there last."""
    path = state / _WRITTEN
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): [str(x) for x in hashes] for name, hashes in noted.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # the manifest may still know them
