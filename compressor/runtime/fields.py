"""Values read from JSON into dataclasses whose fields say what they may be.

@dataclass(frozen=True, kw_only=True)
class Size:
    width: int = checked(whole(1, 100))
    unit: str = checked(one_of("px", "em"), "px")

parse(Size, {"width": 3}, "size")
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar

from compressor.storage.input_files import inner_path

Value = TypeVar("Value")
MOST = (1 << 31) - 1  # ids, lengths and counts are 32-bit numbers in tokenizers
# Takes a value and where it stands, and gives it back; raises ValueError for any other value.
Check = Callable[[Any, str], Any]


def checked(check: Check, default: Any = MISSING) -> Any:
    """A field of a dataclass; without a default it must be there."""
    metadata = {"check": check}
    # Dataclasses refuse these as a default, since all instances would share it.
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def parse(cls: type[Value], values: Any, where: str) -> Value:
    """An instance of a dataclass of `checked` fields.

    Unknown keys are errors, so that no setting is ignored silently.

    Raises:
        ValueError: a value is missing, unknown, or not what its field allows; with its place.
    """
    given = mapping(lambda value, _: value)(values, where)
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise ValueError(f"{where}.{name}: it is not a known setting")
    checked_values = {}
    for name, item in known.items():
        if name in given:
            checked_values[name] = item.metadata["check"](given[name], f"{where}.{name}")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{where}.{name}: it is missing")
    try:
        # What fields must agree about is checked there, without the place in the file.
        return cls(**checked_values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def whole(least: int, most: int) -> Check:
    """An integer from `least` to `most`."""

    def check(value: Any, where: str) -> int:
        # Not `isinstance`: to that, `true` is an integer.
        if type(value) is not int or not least <= value <= most:
            raise _wrong(value, where, f"a number from {least} to {most}")
        return value

    return check


token_id = whole(0, MOST)


def finite(value: Any, where: str) -> float:
    """A finite number."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _wrong(value, where, "a finite number")
    return float(value)


def text(value: Any, where: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise _wrong(value, where, "a text")
    return value


def file_name(value: Any, where: str) -> str:
    """The name of a file in the same directory."""
    try:
        return inner_path(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def one_of(*values: Any) -> Check:
    """One of some values; `true` is not 1."""

    def check(value: Any, where: str) -> Any:
        if not any(type(value) is type(known) and value == known for known in values):
            raise _wrong(value, where, " or ".join(map(repr, values)))
        return value

    return check


def optional(inner: Check) -> Check:
    """What `inner` allows, or null."""
    return lambda value, where: None if value is None else inner(value, where)


def list_of(inner: Check, least: int = 0) -> Check:
    """A list of `least` or more of what `inner` allows."""

    def check(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list) or len(value) < least:
            raise _wrong(value, where, f"a list of {least} or more")
        return [inner(item, f"{where}.{position}") for position, item in enumerate(value)]

    return check


def mapping(inner: Check, least: int = 0) -> Check:
    """An object with `least` or more keys, each with what `inner` allows."""

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) < least:
            raise _wrong(value, where, f"an object with {least} or more keys")
        return {name: inner(item, f"{where}.{name}") for name, item in value.items()}

    return check


def either(first: Check, second: Check) -> Check:
    """What `first` allows, or else `second`."""

    def check(value: Any, where: str) -> Any:
        try:
            return first(value, where)
        except ValueError:
            return second(value, where)

    return check


def record(cls: type[Any]) -> Check:
    """An object that `parse` reads."""
    return lambda value, where: parse(cls, value, where)


def _wrong(value: Any, where: str, wanted: str) -> ValueError:
    try:
        # Python refuses to write out integers of more than 4,300 digits.
        shown = repr(value)
    except ValueError:
        shown = "a number of thousands of digits"
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return ValueError(f"{where}: {shown} is not {wanted}")
