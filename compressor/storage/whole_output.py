"""What single steps write appears whole in its directory, with a manifest, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compressor import __version__
from compressor.errors import InputError
from compressor.storage.disk import translate_disk_errors
from compressor.storage.files import (
    move_files,
    remove_unfinished,
    require_directory,
    sha256_of,
    write_json,
)
from compressor.storage.locks import Lock, lock_output
from compressor.storage.manifest import (
    GRAPHS_FILE,
    MANIFEST,
    is_manifest,
    update_manifest,
    write_manifest,
)

_MAKING = ".making"
_LOCK = "lock"
_MOVING = "moving.json"  # the files that are moved to the output, with their SHA-256


def require_new(output: Path) -> None:
    """Check that a directory can be written and is empty, but for what a killed process left.

    Raises:
        InputError: it cannot, or holds something, or another process writes there.
    """
    require_directory(output)
    remove_leftovers(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(
            f"{output} exists and is not empty; choose another --output", id="output-not-empty"
        )


def remove_leftovers(output: Path) -> None:
    """Remove what a killed process left of its work: also files that it had moved already.

    Raises:
        InputError: the process is still there.
    """
    making = output / _MAKING
    if not making.is_dir():
        return  # so that nobody's own directory is searched
    lock = lock_output(making / _LOCK, output)
    remove_unfinished(output)
    try:
        moving = json.loads((making / _MOVING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        moving = {}  # it had not begun
    for name, digest in moving.items():
        path = output / name
        if path.is_file() and sha256_of(path) == digest:
            path.unlink()
            with suppress(OSError):  # others may be in it
                path.parent.rmdir()
    _finish(lock, making)


@contextmanager
def made_whole(output: Path, needed: int, doing: str) -> Iterator[Path]:
    """A directory whose contents go to `output` when the block ends, and nowhere on an error.

    Args:
        needed: about how many bytes are written.
        doing: what is done, in words, for the error where the disk refuses.

    Raises:
        InputError: the disk is full, read-only or gone.
    """
    with (
        translate_disk_errors(output, lambda: needed, lambda: doing),
        _made_whole(output) as making,
    ):
        yield making


@contextmanager
def _made_whole(output: Path) -> Iterator[Path]:
    is_new = not output.exists()
    making = output / _MAKING
    lock = lock_output(making / _LOCK, output)
    try:
        new = making / "new"
        new.mkdir()
        yield new
        files = [path for path in new.rglob("*") if path.is_file()]
        hashes = {path.relative_to(new).as_posix(): sha256_of(path) for path in files}
        write_json(making / _MOVING, hashes)
        move_files(new, output, last=GRAPHS_FILE)
        if is_manifest(output / MANIFEST):
            update_manifest(output, hashes)
        elif not (output / MANIFEST).exists():  # one of another program stays as it is
            write_manifest(output, {"tool": f"compress {__version__}"}, hashes)
    except BaseException:
        _finish(lock, making)
        if is_new:
            with suppress(OSError):
                output.rmdir()
        raise
    _finish(lock, making)


def _finish(lock: Lock, making: Path) -> None:
    (making / _MOVING).unlink(missing_ok=True)  # first: from here on the files are the user's
    lock.release()
    shutil.rmtree(making, ignore_errors=True)
