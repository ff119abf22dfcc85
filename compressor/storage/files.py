"""Hashes, atomic writes, and checks of where output goes before anything is computed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any

from compressor.errors import InputError
from compressor.storage.locks import Lock

_WRITING = ".writing-"  # prefix of directories in which files are written
_LOCK = ".lock"


def require_directory(directory: Path, option: str = "--output") -> None:
    """Check that `directory` can be written to, or created; leave nothing behind.

    Raises:
        InputError: it or one of its parents is a file, or the file system refuses.
    """
    existing = directory.absolute()
    try:
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir():
            raise InputError(
                f"cannot write {directory}, because {existing} is a file; choose another {option}",
                id="output-not-writable",
            )
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write {directory}: {error.strerror}; choose another {option}",
            id="output-not-writable",
        ) from error


def require_file(
    path: Path, kind: str, is_ours: Callable[[Path], bool], option: str = "--output"
) -> None:
    """Check that `path` can be written, and does not replace a file that is not ours.

    Args:
        kind: what will be written, for the message.
        is_ours: whether a file is of that kind, and may be replaced.

    Raises:
        InputError: it exists and is something else, or cannot be written.
    """
    require_directory(path.parent, option)
    if path.is_dir():
        raise InputError(
            f"{path} is a directory; give {option} the name of a file", id="output-is-a-directory"
        )
    if path.exists() and not (path.is_file() and is_ours(path)):
        raise InputError(
            f"{path} exists and is not {kind} of compress; remove it, or choose another {option}",
            id="output-not-ours",
        )


@contextmanager
def written_at_once(path: Path, replace: bool = True) -> Iterator[Path]:
    """Write a file so that readers see the whole file or none, also after a power cut.

    Gives the path to write to, which takes `path`'s place when the block ends without an error.
    The directory is created if needed. What a killed process left of its writing is removed.

    Args:
        replace: whether it may take the place of a file.

    Raises:
        FileExistsError: it may not, and there is one.
        OSError: the disk refuses; with the name of the file.
    """
    try:
        with _written_at_once(path, replace) as temporary:
            yield temporary
    except OSError as error:
        if error.filename is None:  # writing to an open file does not tell
            error.filename = str(path)
        raise


@contextmanager
def _written_at_once(path: Path, replace: bool) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path.parent)
    writing, lock = _own_directory(path.parent)
    try:
        temporary = writing / path.name
        yield temporary
        sync(temporary)
        if replace or not _link(temporary, path):
            temporary.replace(path)
        sync(path.parent)
    finally:
        lock.release()
        shutil.rmtree(writing, ignore_errors=True)


def _link(written: Path, path: Path) -> bool:
    """Give a file a name that must be free; False where the file system has no hard links."""
    try:
        path.hardlink_to(written)
    except FileExistsError:
        raise
    except OSError:
        if path.exists() or path.is_symlink():
            raise FileExistsError(errno.EEXIST, "File exists", str(path)) from None
        return False
    return True


def _own_directory(parent: Path) -> tuple[Path, Lock]:
    """A new directory, and a lock within that says that its process is still there."""
    while True:
        writing = Path(mkdtemp(prefix=_WRITING, dir=parent))
        lock = Lock(writing / _LOCK)
        try:
            if lock.acquire():
                return writing, lock
        except FileNotFoundError:
            pass  # another process that just looked for leftovers was faster
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise


def remove_unfinished(root: Path) -> None:
    """Remove what killed processes left of files that they wrote, anywhere below a directory."""
    for parent in {left.parent for left in root.rglob(f"{_WRITING}*")}:
        _remove_leftovers(parent)


def _remove_leftovers(parent: Path) -> None:
    """Remove directories of `_own_directory` whose processes were killed."""
    for left in parent.glob(f"{_WRITING}*"):
        if not (left / _LOCK).exists():
            with suppress(OSError):
                left.rmdir()  # only if it is empty: killed before it could lock
            continue
        with suppress(OSError):
            lock = Lock(left / _LOCK)
            if lock.acquire():
                lock.release()
                shutil.rmtree(left, ignore_errors=True)


def move_files(source: Path, target: Path, last: str = "") -> dict[str, str]:
    """Move all files below a directory into another on the same file system, each at once.

    Args:
        last: name of the file that names others, and so is moved after them.

    Returns:
        Path below `target` -> SHA-256.
    """
    files = [path for path in source.rglob("*") if path.is_file()]
    moved = {}
    for path in sorted(files, key=lambda path: (path.name == last, path)):
        name = path.relative_to(source)
        moved[name.as_posix()] = sha256_of(path)
        sync(path)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        path.replace(target / name)
    for directory in sorted({(target / name).parent for name in moved}):
        sync(directory)
    return moved


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # directories cannot be opened there
    file = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(file)
    except OSError as error:
        # Some file systems have no fsync of directories; a full disk is an error.
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(file)


def write_at_once(path: Path, text: str) -> str:
    """Write UTF-8 with `written_at_once`; returns its SHA-256."""
    with written_at_once(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))
    return sha256_of_text(text)


def write_json(path: Path, value: Any) -> str:
    """Write JSON so that readers see the whole file or none; returns its SHA-256."""
    return write_at_once(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_text(text: str) -> str:
    """Hex SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def fingerprint(paths: Iterable[Path]) -> str:
    """One SHA-256 over the names and contents of several files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name}:{sha256_of(path)}\n".encode())
    return digest.hexdigest()
