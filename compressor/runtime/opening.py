"""Opening an artifact: `onnx/graphs.json` as the dataclass of its task, and the check of its files.

Both when it is opened, and never again: what a file says that the manifest lists is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from compressor.errors import InputError
from compressor.runtime.artifact import (
    ARTIFACTS,
    CTRANSLATE2_DIRECTORY,
    CTRANSLATE2_FILES,
    GRAPH_DIRECTORY,
    Artifact,
    EncoderArtifact,
    FileName,
)
from compressor.runtime.generation import OutputTokens
from compressor.storage.input_files import (
    cannot_read,
    inner_path,
    parse_json,
    read_json,
    read_text,
)
from compressor.storage.manifest import GRAPHS_FILE, require_no_links_out, require_unchanged


def read_artifact(directory: Path) -> Artifact:
    """Read `onnx/graphs.json` of an artifact.

    Args:
        directory: of the artifact.

    Returns:
        The dataclass of its task in `ARTIFACTS`.

    Raises:
        InputError: the file is missing, not JSON, or not of the layout of an artifact.
    """
    path = directory / GRAPH_DIRECTORY / GRAPHS_FILE
    try:
        values = dict(parse_json(read_text(path)))
        task = values.get("task")
        if task not in ARTIFACTS:
            raise ValueError(f"it does not name a task, one of {', '.join(ARTIFACTS)}")
        return _build(ARTIFACTS[task], values)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give the output directory of `compress run` "
            "or `compress export`",
            id="artifact-unreadable",
        ) from error
    except (ValueError, TypeError, OverflowError) as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: Exception) -> InputError:
    """The error of a file that is damaged, or not of an artifact."""
    reason = " ".join(str(error).split())
    return InputError(
        f"{path} cannot be used ({reason:.300}); export the model again", id="artifact-invalid"
    )


def _build(cls: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass of the values of a JSON object.

    Raises:
        ValueError: a value has another type than its field.
        TypeError: a field is missing, or not known.
    """
    types = get_type_hints(cls)
    # The constructor refuses what is unknown, so that no setting is ignored silently.
    return cls(**{name: _typed(types.get(name), x, name) for name, x in values.items()})


def _typed(kind: Any, value: Any, name: str) -> Any:
    """The value as a field of that type holds it; ValueError for one of another type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for one in inner:
            with suppress(ValueError):
                return _typed(one, value, name)
    elif origin is list and isinstance(value, list):
        return [_typed(inner[0], item, name) for item in value]
    elif origin is Mapping and isinstance(value, dict):
        return {key: _typed(inner[1], item, f"{name}.{key}") for key, item in value.items()}
    elif is_dataclass(kind) and isinstance(value, dict):
        return _build(kind, value)
    elif kind is FileName:
        return inner_path(value)
    elif kind is float and type(value) is int:
        return float(value)
    # Not `isinstance`: to that, `true` is an integer.
    elif kind is None or type(value) is kind or (origin is Literal and value in inner):
        return value
    raise ValueError(f"{name} is {value!r:.60}")


def read_description(directory: Path, verify: bool) -> Artifact:
    """Read `graphs.json`, see `read_artifact`; no file may be a link out of the directory.

    Args:
        directory: of the artifact.
        verify: check the file against the manifest first.

    Raises:
        InputError: not an artifact, `graphs.json` was changed, or a file is a link to another
            place.
    """
    description = f"{GRAPH_DIRECTORY}/{GRAPHS_FILE}"
    if verify:
        require_unchanged(directory, [description], warn=False)
    artifact = read_artifact(directory)
    names = {name for chosen in artifact.precisions for name in artifact.used_files(chosen)}
    # Weights lie beside their graph, in a file that `graphs.json` does not name.
    names |= {f"{name}_data" for name in names} | {description}
    names |= {f"{CTRANSLATE2_DIRECTORY}/{name}" for name in CTRANSLATE2_FILES}
    require_no_links_out(directory, sorted(names))
    return artifact


def require_files(directory: Path, files: Sequence[str], *, verify: bool = True) -> None:
    """Check that files, and the weights that lie beside graphs, can be opened.

    Args:
        directory: of the artifact.
        files: paths from there.
        verify: compare them with the manifest, too.

    Raises:
        InputError: a file is unreadable, or with `verify` changed or not listed.
    """
    for path in (directory / name for file in files for name in (file, f"{file}_data")):
        try:
            path.open("rb").close()  # engines say why they cannot, or end their process
        except FileNotFoundError:
            continue  # reported when it is opened; not every graph has external weights
        except OSError as error:
            raise cannot_read(path, error) from error
    if verify:
        require_unchanged(directory, files)


def count_output_tokens(directory: Path) -> int | None:
    """How many tokens the decoder of the artifact in `directory` scores; None for an encoder."""
    artifact = read_artifact(directory)
    return None if artifact.scored is None else len(open_output_tokens(directory, artifact).ids)


def reads_one_token(directory: Path) -> bool:
    """Whether the last layer of an artifact's encoder computes only what the head reads."""
    artifact = read_artifact(directory)
    return isinstance(artifact, EncoderArtifact) and artifact.reads_one_token


def open_output_tokens(directory: Path, artifact: Artifact) -> OutputTokens:
    """Open the list of tokens that the decoder of an artifact scores.

    Args:
        directory: of the artifact.
        artifact: its description, of an encoder-decoder.

    Raises:
        InputError: the list is missing or damaged.
    """
    assert artifact.scored is not None  # it has a decoder
    vocabulary, file = artifact.scored
    if file is None:
        return OutputTokens(np.arange(vocabulary))
    path = directory / GRAPH_DIRECTORY / file
    try:
        return OutputTokens(read_json(path))
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise unusable(path, error) from error
