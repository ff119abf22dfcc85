"""Changed bytes, JSON values, rows and options, as strategies of Hypothesis."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

Draw = st.DrawFn
Value = TypeVar("Value")

FOREIGN = (
    b"", b"\x00", b"\xff\xfe", b"{}", b"[]", b"null", b"5", b"[" * 100_000, b"9" * 5000,
    b'{"a": ' * 3000, b"<!DOCTYPE html><html></html>", b"PK\x03\x04", b"\x80\x04.",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 268435456\n",
)  # fmt: skip
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, 2**64,
    10**12, 10**30, 0.0, 0.5, -0.5, 1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"),
    "", " ", "x", "0", "1", "true", "null", "../x", "/etc/hostname", "\x00", "\ud800", "a" * 5000,
    "9" * 5000, [], {}, [None], [0], ["x"], [[]], {"a": 1}, {"": None}, [1e999], list(range(300)),
)  # fmt: skip
CELLS = (
    "", " ", "w3", "w3 w5", "LABEL_0", "LABEL_9", "0", "1", "-1", "9" * 5000, "NaN", "\ufeff",
    "\x00", '"', '""', '"w3', 'w3"', "w3 " * 3000, "\u2028", "\x85", "\x1c", "ä", "\U0001f600",
    "a\rb", "</s>", "<pad>", "text", "label", "\\t", "'", ",", ";",
)  # fmt: skip
WORDS = (
    "0", "1", "2", "8", "-1", "0.5", "1.5", "-0.5", "50%", "150%", "1e9", "1e-9", "1e400", "inf",
    "-inf", "nan", "99999999999999999999", "9" * 5000, "", " ", ",", "1,1", "1,2", "0,1", "a",
    "x=1", "bleu=1", "accuracy=0", "accuracy=nan", "bleu=", "=", "heads=0.5", "heads=1,neurons=8",
    "1.1@8", "1@0", "@", "fp32", "int8", "fp16", "fp32,int8", "fp32,fp32", "cpu", "cuda", "auto",
    "both", "heads", "neurons", "magnitude", "taylor", "second-order", "voita", "random", "distill",
    "reconstruct", "none", "true", "null", "../x", "/", "/dev/null", "/etc/hostname", ".", "~",
    "*", "\u2028", "\ud800", "ä" * 300, "[" * 3000, "--keep", "-", "%s{0}", "encoder_self=1",
)  # fmt: skip

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
# Copies, since a second change may go into the first one's value.
json_values = st.sampled_from(STRANGE).map(copy.deepcopy) | st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
_numbers = st.integers(-5, 70) | st.integers(0, 11).map(lambda n: 10**n) | st.floats(0, 1)
option_values = st.sampled_from(WORDS) | _numbers.map(str) | st.text(max_size=20)


def one(draw: Draw, values: Sequence[Value]) -> Value:
    """One of several; the earlier ones are the simpler ones."""
    return draw(st.sampled_from(values))


def chance(draw: Draw, percent: int) -> bool:
    return draw(st.integers(1, 100)) > 100 - percent


@st.composite
def changed_bytes(draw: Draw, data: bytes, others: Sequence[bytes] = ()) -> tuple[str, bytes]:
    """What was done, and the new contents of a file, which are never the old ones.

    Args:
        others: contents of files that it may be exchanged with.
    """
    changed, done = data, []
    for _ in range(one(draw, (1, 1, 1, 2, 3))):
        change = one(draw, (_flip, _set, _remove, _repeat, _truncate, _insert, _exchange))
        changed = change(draw, changed, others)
        done.append(change.__name__[1:])
    return ", ".join(done), changed if changed != data else data + b"\n"


def _block(draw: Draw, data: bytes) -> tuple[int, int]:
    start = draw(st.integers(0, len(data)))
    return start, min(len(data), start + one(draw, (1, 4, 16, 100, 1000, len(data))))


def _flip(draw: Draw, data: bytes, _: object) -> bytes:
    if not data:
        return b"\x01"
    # The first bytes hold headers, where a change does more than in weights.
    last = min(len(data), one(draw, (16, 300, len(data)))) - 1
    place, bit = draw(st.integers(0, last)), draw(st.integers(0, 7))
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def _set(draw: Draw, data: bytes, _: object) -> bytes:
    start, end = _block(draw, data)
    return data[:start] + one(draw, (b"\0", b"\xff", b"0")) * (end - start) + data[end:]


def _remove(draw: Draw, data: bytes, _: object) -> bytes:
    start, end = _block(draw, data)
    return data[:start] + data[end:]


def _repeat(draw: Draw, data: bytes, _: object) -> bytes:
    start, end = _block(draw, data)
    return data[:end] + data[start:]


def _truncate(draw: Draw, data: bytes, _: object) -> bytes:
    anywhere = draw(st.integers(0, len(data)))
    return data[: one(draw, (0, 1, 8, len(data) // 2, len(data) - 1, anywhere))]


def _insert(draw: Draw, data: bytes, _: object) -> bytes:
    start = draw(st.integers(0, len(data)))
    added = draw(st.sampled_from(FOREIGN) | st.binary(max_size=500))
    return data[:start] + added + data[start:]


def _exchange(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    return one(draw, (*FOREIGN, *others))


@st.composite
def changed_json(draw: Draw, value: Any) -> tuple[str, Any]:
    """What was done, and a JSON value with one or two other values or keys anywhere in it."""
    changed, done = copy.deepcopy(value), []
    for _ in range(one(draw, (1, 1, 1, 2))):
        place = _place(draw, changed)
        if not place:
            changed = draw(_near(changed))
            done.append("all of it")
            continue
        part = changed
        for key in place[:-1]:
            part = part[key]
        last = place[-1]
        action = one(draw, ("value", "value", "value", "value", "remove", "add"))
        if action == "remove":
            del part[last]
        elif action == "add" and isinstance(part, dict):
            part[one(draw, ("", "x", "name", f"{last}_", "9" * 40))] = draw(_near(part[last]))
        elif action == "add":
            part.insert(last, draw(_near(part[last])))
        else:
            part[last] = draw(_near(part[last]))
        done.append(f"{action} {'.'.join(map(str, place))[:80]}")
    return ", ".join(done), changed


def _place(draw: Draw, value: Any) -> tuple[Any, ...]:
    """The path of a random part; upper parts are as likely as all of what is below them."""
    place: tuple[Any, ...] = ()
    while isinstance(value, dict | list) and value and (not place or chance(draw, 80)):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        place = (*place, key := one(draw, keys))
        value = value[key]
    return place


def _near(value: Any) -> st.SearchStrategy[Any]:
    """Any JSON value, or one that is close to this one."""
    near: tuple[Any, ...] = ()
    if isinstance(value, bool):
        near = (not value, int(value), str(value))
    elif isinstance(value, int):
        near = (value + 1, value - 1, -value, value * 2, value * 10**9, value + 0.5, float(value))
        near = (*near, str(value), [value])
    elif isinstance(value, float):
        near = (-value, value * 1.5, value * 1e9, value * 1e300, str(value), [value])
    elif isinstance(value, str):
        near = (value + "x", value[:-1], value[::-1], value * 100, value.upper(), f"../{value}")
        near = (*near, [value], {value: value})
    elif isinstance(value, list):
        near = (value[:-1], value + value[:1], value[::-1], value * 50, [value], {})
    elif isinstance(value, dict):
        near = (list(value), list(value.values()), dict(list(value.items())[1:]))
        near = (*near, *(_nested(value, depth) for depth in (1, 30, 500)))
    return st.sampled_from(near) | json_values if near else json_values


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def dump(value: Any) -> bytes:
    """JSON as other programs write it: with NaN, and with halves of surrogate pairs escaped."""
    return json.dumps(value).encode()


@st.composite
def changed_rows(draw: Draw, rows: Sequence[Sequence[str]], ending: str) -> tuple[str, bytes]:
    """What was done, and a file of rows with strange cells that ends with .tsv, .csv or .jsonl."""
    table, done = [list(row) for row in rows], []
    for number in draw(st.lists(st.integers(0, len(table) - 1), max_size=5)):
        row = table[number]
        if row and chance(draw, 70):
            place = draw(st.integers(0, len(row) - 1))
            row[place] = draw(st.sampled_from(CELLS) | st.text(max_size=20))
        else:
            table[number] = list(one(draw, ([], row[:-1], [*row, "w3"], [""], table[0])))
        done.append(f"row {number}")
    if ending == "jsonl":
        records: Any = [dict(zip(table[0] or ["x"], row, strict=False)) for row in table[1:]]
        if chance(draw, 50):
            what, records = draw(changed_json(records))
            done.append(what)
        lines = records if isinstance(records, list) else [records]
        data = b"\n".join(map(dump, lines))
    else:
        separator = "\t" if ending == "tsv" else ","
        data = "\n".join(map(separator.join, table)).encode()
    if chance(draw, 40):
        what, data = draw(changed_bytes(data))
        done.append(what)
    return ", ".join(done), data
