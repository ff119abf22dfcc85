"""Changed bytes, JSON values, rows and options, drawn at random."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

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


def chance(rng: Random, percent: int) -> bool:
    return rng.random() < percent / 100


def text(rng: Random) -> str:
    """Up to 20 characters of any kind, halves of surrogate pairs among them."""
    highest = rng.choice((0x7F, 0xFF, 0xFFFF, 0x10FFFF))
    return "".join(chr(rng.randint(0, highest)) for _ in range(rng.randint(0, 20)))


def valid_text(rng: Random) -> str:
    """The same, as it can be written to a file."""
    return text(rng).encode(errors="ignore").decode()


def option_value(rng: Random) -> str:
    number = rng.choice((rng.randint(-5, 70), 10 ** rng.randint(0, 11), rng.random()))
    return rng.choice((rng.choice(WORDS), rng.choice(WORDS), str(number), text(rng)))


def changed_bytes(rng: Random, data: bytes, others: Sequence[bytes] = ()) -> tuple[str, bytes]:
    """What was done, and the new contents of a file, which are never the old ones.

    Args:
        others: contents of files that it may be exchanged with.
    """
    changed, done = data, []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        done.append(rng.choice(("flip", "set", "remove", "repeat", "cut", "insert", "exchange")))
        changed = _changed(rng, done[-1], changed, others)
    return ", ".join(done), changed if changed != data else data + b"\n"


def _changed(rng: Random, change: str, data: bytes, others: Sequence[bytes]) -> bytes:
    # The first bytes hold headers, where a change does more than in weights.
    start = rng.randint(0, min(len(data), rng.choice((16, 300, len(data), len(data)))))
    end = min(len(data), start + rng.choice((1, 4, 16, 100, 1000, len(data))))
    before, block, after = data[:start], data[start:end], data[end:]
    match change:
        case "flip":
            first = bytes([(block or b"\0")[0] ^ 1 << rng.randint(0, 7)])
            return before + first + block[1:] + after
        case "set":
            return before + rng.choice((b"\0", b"\xff", b"0")) * len(block) + after
        case "remove":
            return before + after
        case "repeat":
            return before + block + block + after
        case "cut":
            return data[: rng.choice((0, 1, 8, len(data) // 2, len(data) - 1, start))]
        case "insert":
            added = rng.choice((*FOREIGN, *(rng.randbytes(rng.randint(0, 500)) for _ in FOREIGN)))
            return before + added + block + after
    return rng.choice((*FOREIGN, *others))


def changed_json(rng: Random, value: Any) -> tuple[str, Any]:
    """What was done, and a JSON value with one or two other values or keys anywhere in it."""
    changed, done = copy.deepcopy(value), []
    for _ in range(rng.choice((1, 1, 1, 2))):
        place = _place(rng, changed)
        if not place:
            changed = _other(rng, changed)
            done.append("all of it")
            continue
        part = changed
        for key in place[:-1]:
            part = part[key]
        last = place[-1]
        action = rng.choice(("value", "value", "value", "value", "remove", "add"))
        if action == "remove":
            del part[last]
        elif action == "add" and isinstance(part, dict):
            name = rng.choice(("", "x", "name", f"{last}_", "9" * 40))
            part[name] = _other(rng, part[last])
        elif action == "add":
            part.insert(last, _other(rng, part[last]))
        else:
            part[last] = _other(rng, part[last])
        done.append(f"{action} {'.'.join(map(str, place))[:80]}")
    return ", ".join(done), changed


def _place(rng: Random, value: Any) -> tuple[Any, ...]:
    """The path of a random part; upper parts are as likely as all of what is below them."""
    place: tuple[Any, ...] = ()
    while isinstance(value, dict | list) and value and (not place or chance(rng, 80)):
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        place, value = (*place, key), value[key]
    return place


def _other(rng: Random, value: Any) -> Any:
    """A JSON value that is close to this one, or any."""
    near: tuple[Any, ...] = ()
    match value:
        case bool():
            near = (not value, int(value), str(value))
        case int():
            near = (value + 1, value - 1, -value, value * 2, value * 10**9, value + 0.5)
            near = (*near, str(value), [value])
        case float():
            near = (-value, value * 1.5, value * 1e9, value * 1e300, str(value), [value])
        case str():
            near = (value + "x", value[:-1], value[::-1], value * 100, value.upper())
            near = (*near, f"../{value}", [value], {value: value})
        case list():
            near = (value[:-1], value + value[:1], value[::-1], value * 50, [value], {})
        case dict():
            near = (list(value), list(value.values()), dict(list(value.items())[1:]))
            near = (*near, *(_nested(value, depth) for depth in (1, 30, 500)))
    return rng.choice(near) if near and chance(rng, 50) else _any(rng)


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _any(rng: Random, depth: int = 0) -> Any:
    kind = rng.randrange(8)
    if kind < 4:
        return copy.deepcopy(rng.choice(STRANGE))  # a second change may go into the first one's
    if kind < 6 or depth == 3:
        number = rng.randint(-(2 ** rng.randint(0, 70)), 2 ** rng.randint(0, 70))
        return rng.choice((text(rng), number, rng.gauss(0, 1) * 10.0 ** rng.randint(-9, 9)))
    values = [_any(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return values if kind == 6 else {text(rng): value for value in values}


def dump(value: Any) -> bytes:
    """JSON as other programs write it: with NaN, and with halves of surrogate pairs escaped."""
    return json.dumps(value).encode()


def changed_rows(rng: Random, rows: Sequence[Sequence[str]], ending: str) -> tuple[str, bytes]:
    """What was done, and a file of rows with strange cells that ends with .tsv, .csv or .jsonl."""
    table, done = [list(row) for row in rows], []
    for number in rng.choices(range(len(table)), k=rng.randint(0, 5)):
        row = table[number]
        if row and chance(rng, 70):
            row[rng.randrange(len(row))] = rng.choice((*CELLS, *(valid_text(rng) for _ in CELLS)))
        else:
            table[number] = list(rng.choice(([], row[:-1], [*row, "w3"], [""], table[0])))
        done.append(f"row {number}")
    if ending == "jsonl":
        records: Any = [dict(zip(table[0] or ["x"], row, strict=False)) for row in table[1:]]
        if chance(rng, 50):
            what, records = changed_json(rng, records)
            done.append(what)
        lines = records if isinstance(records, list) else [records]
        data = b"\n".join(map(dump, lines))
    else:
        data = "\n".join(map(("\t" if ending == "tsv" else ",").join, table)).encode()
    if chance(rng, 40):
        what, data = changed_bytes(rng, data)
        done.append(what)
    return ", ".join(done), data
