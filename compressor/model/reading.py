"""Reading the JSON files of a checkpoint: whatever is wrong with one, the error names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from compressor.errors import InputError
from compressor.storage.input_files import read_json, shown
from compressor.storage.wrong_values import wanted


def malformed(path: Path, reason: str | BaseException, id: str) -> InputError:
    text = reason if isinstance(reason, str) else first_line(reason)
    return InputError(
        f"{path} cannot be used: {text}; get the checkpoint again, or mend the file", id=id
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something; its class where none does."""
    text = getattr(error, "strerror", None) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return (" ".join(lines) if text.endswith(":") else text)[:300]  # what follows `:` says more


def read_object(path: Path, id: str) -> dict[str, Any]:
    """The object in a file; raises InputError with this id where it cannot be read."""
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
    """The settings in a file that are not null; none where it is missing and not `needed`.

    `supported` has the type of each one's values; the id is as in `read_object`.
    """
    values = read_object(path, id) if needed or path.exists() else {}
    set_values = {name: value for name, value in values.items() if value is not None}
    for name, value in set_values.items():
        require_supported(path, name, value, supported.get(name))
    return set_values


def require_supported(path: Path, name: str, value: Any, values: Any, **context: Any) -> None:
    """Raise InputError unless a value is of this type; pydantic hands the context to validators."""
    if values is None:
        raise unsupported(path, name, value, "it is unknown here")
    try:
        TypeAdapter(values).validate_python(value, strict=True, context=context)
    except ValidationError as error:
        raise unsupported(path, name, value, wanted(error.errors()[0])) from error


def unsupported(path: Path, name: str, value: Any, reason: str) -> InputError:
    return InputError(
        f"{path} sets {name} to {shown(value)}, which is not supported ({reason}); remove it there "
        "if the model's answers do not depend on it",
        id="setting-unsupported",
    )
