"""Where a checkpoint is, and which of its files say what it computes."""

from __future__ import annotations

from pathlib import Path

from compressor.errors import InputError, cannot_read
from compressor.model.card import CARD
from compressor.storage.input_files import require_regular
from compressor.storage.manifest import MODULES

_HUB_FILES = ["*.json", "*.txt", "*.model", "*.spm", "*.safetensors"]
_PICKLES = "pytorch_model*.bin"


def resolve(model: str, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """The directory of a checkpoint, downloaded if `model` is a hub id.

    The revision is resolved once; all files come from that commit.

    Raises:
        InputError: neither a directory nor a hub id that can be downloaded.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if revision is not None:
            raise InputError(
                f"--revision {revision} makes no sense for the directory {model}; leave it out",
                id="revision-of-directory",
            )
        return path
    if path.exists():
        raise InputError(
            f"{model} is a file; give the checkpoint's directory", id="checkpoint-is-file"
        )
    files = [*_HUB_FILES, CARD]
    return _snapshot(model, revision, [*files, _PICKLES] if allow_pickle else files)


def _snapshot(model: str, revision: str | None, files: list[str]) -> Path:
    """The directory of a downloaded commit."""
    if model.count("/") > 1 or model.startswith((".", "/", "~")):
        raise InputError(f"there is no directory {model}; check --model", id="checkpoint-missing")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=files))
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"there is no directory {model}, and the hub cannot be reached to look for a model of "
            "that name; check the path or the connection",
            id="hub-unreachable",
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise InputError(
            f"the hub has no model {model!r} (revision {revision or 'main'}); check --model",
            id="hub-model-missing",
        ) from error


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that say what a checkpoint computes; notes and plots beside them do not."""
    patterns = [*_HUB_FILES, _PICKLES, "*.py", MODULES]
    paths = {path for pattern in patterns for path in directory.glob(pattern)}
    return sorted(path for path in paths if path.is_file())


def require_own_files(directory: Path) -> None:
    """Check that every file of a checkpoint is a file, and lies in its directory.

    Links into the hub's cache, where downloaded checkpoints keep their files, are followed.

    Raises:
        InputError: one is a link to somewhere else, or nothing that can be read as a file.
    """
    root = directory.resolve()
    try:
        found = sorted([*directory.iterdir(), *directory.glob(MODULES)])
        files = [path for path in found if not path.is_dir()]
    except OSError as error:
        raise cannot_read(error.filename or directory, error) from error
    for path in files:
        target = path.resolve()
        cached = target.parent.name == "blobs" and target.parents[1].name.startswith("models--")
        if target.parent not in (root, root / path.parent.name) and not cached:
            raise InputError(
                f"{path} is a link to {target}, outside of the checkpoint's directory; copy the "
                "file into it",
                id="checkpoint-file-outside",
            )
        try:
            require_regular(path)
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}; get the checkpoint again",
                id="checkpoint-file-unreadable",
            ) from error
