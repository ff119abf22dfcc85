"""Reading the JSON files of a checkpoint: whatever is wrong with one, the error names it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from compressor.errors import CompressError, InputError
from compressor.storage.input_files import read_json, shown
from compressor.storage.wrong_values import wanted

Entry = TypeVar("Entry")


def malformed(path: Path, reason: str | BaseException, id: str) -> InputError:
    """The error of a file that cannot be used, for a reason in words or of an exception."""
    text = reason if isinstance(reason, str) else first_line(reason)
    return InputError(
        f"{path} cannot be used: {text}; get the checkpoint again, or mend the file", id=id
    )


@contextmanager
def errors_of(path: Path, id: str) -> Iterator[None]:
    """Have the error of whatever is wrong within the block name the file that it is about.

    Args:
        path: the file whose contents are read in the block.
        id: of the error.
    """
    try:
        yield
    except CompressError:
        raise
    except Exception as error:  # whatever the libraries trip over is in the file
        raise malformed(path, error, id) from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something; its class where none does."""
    text = getattr(error, "strerror", None) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return (" ".join(lines) if text.endswith(":") else text)[:300]  # what follows `:` says more


def read_object(path: Path, id: str) -> dict[str, Any]:
    """Read the JSON object in a file.

    Args:
        path: the file.
        id: of the error.

    Raises:
        InputError: it cannot be read, or is no object.
    """
    try:
        values = read_json(path)
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        raise malformed(path, error, id) from error
    return values


def read_settings(
    path: Path, supported: Mapping[str, Any], id: str, needed: bool = False
) -> dict[str, Any]:
    """Read the settings in a file that are not null.

    Args:
        path: the file.
        supported: name -> type of its values; of an object, the same of what is in it.
        id: of the error of a malformed file.
        needed: whether the file must be there; else a missing one has no settings.

    Raises:
        InputError: the file cannot be read, or a setting is not supported.
    """
    values = read_object(path, id) if needed or path.exists() else {}
    set_values = {name: value for name, value in values.items() if value is not None}
    for name, value in set_values.items():
        kind = supported.get(name)
        inside = kind if isinstance(kind, Mapping) else {}
        require_supported(path, name, value, dict[str, Any] if inside else kind)
        for inner, x in value.items() if inside else ():
            if x is not None:
                require_supported(path, f"{inner} of {name}", x, inside.get(inner))
    return set_values


def read_entries(
    path: Path, known: Collection[str], id: str, make: Callable[[dict[str, Any]], Entry]
) -> list[Entry]:
    """Read the objects that a file lists.

    Args:
        path: the file.
        known: names of their settings; others must have a value that sets nothing.
        id: of the error of a malformed file.
        make: makes an entry of an object; whatever it raises is wrong with the file.

    Raises:
        InputError: the file cannot be read, or an object has another setting.
    """
    with errors_of(path, id):
        objects = [dict(listed) for listed in read_json(path)]
        entries = [make(listed) for listed in objects]
    for listed in objects:
        for name, value in listed.items():
            if value and name not in known:
                raise unsupported(path, name, value, "it is unknown here")
    return entries


def require_supported(path: Path, name: str, value: Any, values: Any, **context: Any) -> None:
    """Raise `InputError` unless a value is of a type.

    Args:
        path: the file that sets it.
        name: of the setting.
        value: to check.
        values: the type; None: the setting is unknown.
        context: for validators of pydantic.
    """
    if values is None:
        raise unsupported(path, name, value, "it is unknown here")
    try:
        TypeAdapter(values).validate_python(value, strict=True, context=context)
    except ValidationError as error:
        raise unsupported(path, name, value, wanted(error.errors()[0])) from error


def unsupported(path: Path, name: str, value: Any, reason: str) -> InputError:
    """The error of a setting that is not followed."""
    return InputError(
        f"{path} sets {name} to {shown(value)}, which is not supported ({reason}); remove it there "
        "if the model's answers do not depend on it",
        id="setting-unsupported",
    )
