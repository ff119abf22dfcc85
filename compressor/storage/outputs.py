"""Reports, cards, recipes and manifests, which a run writes over its own and over nothing else.

Their hashes are noted in the state directory before they are written. A file of that name with
another hash is the user's, or is damaged: the run stops, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from compressor.errors import InputError
from compressor.storage.files import sha256_of, sha256_of_text, write_at_once, write_json
from compressor.storage.manifest import MANIFEST, Listed, is_manifest, read_manifest

_WRITTEN = "outputs.list"
_KEPT = 50  # hashes of a file


def require_written_by_run(root: Path, state: Path, paths: Iterable[Path]) -> None:
    """Check that files are not there, or are what this run wrote.

    Args:
        root: the output directory.
        state: where the run keeps its records.

    Raises:
        InputError: one is something else.
    """
    noted = _noted(state)
    for path in paths:
        if not (path.exists() or path.is_symlink()):
            continue
        name = path.relative_to(root).as_posix()
        if path.name == MANIFEST and is_manifest(path):
            continue
        if not path.is_file() or sha256_of(path) not in {*noted.get(name, []), _listed(path)}:
            raise InputError(
                f"{path} is not what this run wrote there; move it away, or choose another "
                "--output",
                id="output-not-ours",
            )


def write_outputs(root: Path, state: Path, texts: Mapping[Path, str]) -> dict[Path, str]:
    """Write texts, unless a file is in the way that this run did not write; their hashes.

    Raises:
        InputError: see `require_written_by_run`.
    """
    require_written_by_run(root, state, texts)
    noted = _noted(state)
    hashes = {path: sha256_of_text(text) for path, text in texts.items()}
    for path, digest in hashes.items():
        known = noted.setdefault(path.relative_to(root).as_posix(), [])
        # A former one is still there if this process is killed.
        known[:] = [*(x for x in known if x != digest), digest][-_KEPT:]
    write_json(state / _WRITTEN, noted)
    for path, text in texts.items():
        write_at_once(path, text)
    return hashes


def _noted(state: Path) -> dict[str, list[str]]:
    """Path from the output directory -> hashes of what was written there last."""
    path = state / _WRITTEN
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): [str(x) for x in hashes] for name, hashes in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # the manifest may still know them


def _listed(path: Path) -> str:
    """SHA-256 that the manifest beside a file lists, which `compress report` keeps true too."""
    try:
        found = read_manifest(path.parent) or {}
    except InputError:
        return ""
    return found.get(path.name, Listed(0, "")).sha256
