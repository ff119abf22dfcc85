"""Values read from JSON into dataclasses, checked against the types of their fields.

@dataclass(frozen=True, kw_only=True)
class Size:
    width: Annotated[int, range(1, 101)]
    unit: Literal["px", "em"] = "px"

parse(Size, {"width": 3}, "size")

The range of a list or of a mapping is that of its length.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from compressor.storage.input_files import inner_path

Value = TypeVar("Value")
MOST = (1 << 31) - 1  # ids, lengths and counts are 32-bit numbers in tokenizers
_ANY_LENGTH, NOT_EMPTY = range(MOST + 1), range(1, MOST + 1)
Count = Annotated[int, range(MOST + 1)]
TokenId = Annotated[int, range(MOST + 1)]
Size = Annotated[int, range(1, MOST + 1)]
FileName = NewType("FileName", str)  # of a file in the same directory


def parse(cls: type[Value], values: Any, where: str) -> Value:
    """An instance of a dataclass.

    Unknown keys are errors, so that no setting is ignored silently.

    Raises:
        ValueError: a value is missing, unknown, or not of its field's type; with its place.
    """
    if not isinstance(values, dict):
        raise _wrong(values, where, "an object with 0 or more keys")
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise ValueError(f"{where}.{name}: it is not a known setting")
    types, checked = get_type_hints(cls, include_extras=True), {}
    for name, item in known.items():
        if name in values:
            checked[name] = _read(types[name], values[name], f"{where}.{name}")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{where}.{name}: it is missing")
    try:
        # What fields must agree about is checked there, without the place in the file.
        return cls(**checked)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _read(kind: Any, value: Any, where: str) -> Any:
    """The value as a field of that type holds it."""
    allowed = _ANY_LENGTH
    if get_origin(kind) is Annotated:
        kind, allowed = get_args(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        *others, last = [x for x in inner if x is not NoneType]
        for other in others:
            with suppress(ValueError):
                return _read(other, value, where)
        return _read(last, value, where)
    if is_dataclass(kind):
        return parse(kind, value, where)  # type: ignore[arg-type]
    if origin is list:
        if not isinstance(value, list) or len(value) not in allowed:
            raise _wrong(value, where, f"a list of {allowed.start} or more")
        return [_read(inner[0], item, f"{where}.{number}") for number, item in enumerate(value)]
    if origin is Mapping:
        if not isinstance(value, dict) or len(value) not in allowed:
            raise _wrong(value, where, f"an object with {allowed.start} or more keys")
        return {name: _read(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if origin is Literal or kind is bool:
        values = inner or (True, False)
        if not any(type(value) is type(known) and value == known for known in values):
            raise _wrong(value, where, " or ".join(map(repr, values)))
        return value
    return _read_scalar(kind, allowed, value, where)


def _read_scalar(kind: Any, allowed: range, value: Any, where: str) -> Any:
    if kind is FileName:
        try:
            return inner_path(value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    # Not `isinstance`: to that, `true` is an integer.
    if kind is int and (type(value) is not int or value not in allowed):
        raise _wrong(value, where, f"a number from {allowed.start} to {allowed.stop - 1}")
    if kind is float:
        # False for NaN, too, and for integers that are larger than any float.
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise _wrong(value, where, "a finite number")
        return float(value)
    if kind is not int and not isinstance(value, str):
        raise _wrong(value, where, "a text")
    return value


def _wrong(value: Any, where: str, wanted: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return ValueError(f"{where}: {shown} is not {wanted}")
