"""Random changes of bytes, of JSON values and of rows, for the fuzzer.

Every change is drawn from the generator that is handed in, so a seed gives the same change again.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
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
WORDS = (
    "0", "1", "2", "8", "-1", "0.5", "1.5", "-0.5", "50%", "150%", "1e9", "1e-9", "1e400", "inf",
    "-inf", "nan", "99999999999999999999", "9" * 5000, "", " ", ",", "1,1", "1,2", "0,1", "a",
    "x=1", "bleu=1", "accuracy=0", "accuracy=nan", "bleu=", "=", "heads=0.5", "heads=1,neurons=8",
    "1.1@8", "1@0", "@", "fp32", "int8", "fp16", "fp32,int8", "fp32,fp32", "cpu", "cuda", "auto",
    "both", "heads", "neurons", "magnitude", "taylor", "second-order", "voita", "random", "distill",
    "reconstruct", "none", "true", "null", "../x", "/", "/dev/null", "/etc/hostname", ".", "~",
    "*", "\u2028", "\ud800", "ä" * 300, "[" * 3000, "--keep", "-", "%s{0}", "encoder_self=1",
)  # fmt: skip


def change_bytes(rng: random.Random, data: bytes, others: list[bytes]) -> tuple[str, bytes]:
    """One to three changes of a file; its new contents are never the old ones.

    Args:
        others: contents of files that it may be exchanged with.

    Returns:
        What was done, and the contents.
    """
    done, changed = [], data
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice(tuple(_BYTES))
        changed = _BYTES[name](rng, changed, others)
        done.append(name)
    if changed == data:
        done.append("append")
        changed = data + b"\n"
    return ", ".join(done), changed


def _block(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 4, 16, 100, 1000, len(data))))


def _flip(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    if not data:
        return b"\x01"
    # The first bytes hold headers, where a change does more than in weights.
    place = rng.randrange(min(len(data), rng.choice((16, 300, len(data)))))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _zero(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    start, end = _block(rng, data)
    return data[:start] + bytes([rng.choice((0, 0, 255, 48))]) * (end - start) + data[end:]


def _remove(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    start, end = _block(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    start, end = _block(rng, data)
    return data[:end] + data[start:]


def _truncate(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    anywhere = rng.randrange(len(data) + 1)
    return data[: rng.choice((0, 1, 8, len(data) // 2, len(data) - 1, anywhere))]


def _insert(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    added = rng.choice((rng.randbytes(rng.choice((1, 8, 500))), *FOREIGN))
    return data[:start] + added + data[start:]


def _exchange(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return rng.choice(others or [b""])


def _replace(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    return rng.choice(FOREIGN)


_BYTES: dict[str, Callable[[random.Random, bytes, list[bytes]], bytes]] = {
    "flip a bit": _flip, "set a block": _zero, "remove a block": _remove,
    "repeat a block": _repeat, "truncate": _truncate, "insert": _insert, "exchange": _exchange,
    "replace": _replace, "flip another bit": _flip, "set another block": _zero,
}  # fmt: skip


def change_json(rng: random.Random, value: Any) -> tuple[str, Any]:
    """One or two changes of values or keys anywhere in a JSON value.

    Returns:
        What was done, and the changed value.
    """
    done, changed = [], copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2))):
        place = _place(rng, changed)
        if not place:
            changed = _strange(rng, changed)
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
            part[rng.choice(("", "x", "name", f"{last}_", "9" * 40))] = _strange(rng, part[last])
        elif action == "add":
            part.insert(last, _strange(rng, part[last]))
        else:
            part[last] = _strange(rng, part[last])
        done.append(f"{action} {'.'.join(map(str, place))[:80]}")
    return ", ".join(done), changed


def _place(rng: random.Random, value: Any) -> tuple[Any, ...]:
    """The path of a random part; upper parts are as likely as all of what is below them."""
    place: tuple[Any, ...] = ()
    while isinstance(value, dict | list) and value and (not place or rng.random() < 0.8):
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        place, value = (*place, key), value[key]
    return place


def _strange(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool) or rng.random() < 0.4:
        return rng.choice(STRANGE)
    if isinstance(value, int):
        near = (value + 1, value - 1, -value, value * 2, value * 10**9, float(value), str(value))
        return rng.choice((*near, [value], value + 0.5))
    if isinstance(value, float):
        return rng.choice((-value, value * 1.5, value * 1e9, value * 1e300, str(value), [value]))
    if isinstance(value, str):
        more = (value + "x", value[:-1], value[::-1], value * 100, value.upper(), f"../{value}")
        return rng.choice((*more, [value], {value: value}))
    if isinstance(value, list):
        return rng.choice((value[:-1], value + value[:1], value[::-1], value * 50, [value], {}))
    if isinstance(value, dict):
        deep: Any = value
        for _ in range(rng.choice((1, 30, 500))):
            deep = [deep]
        return rng.choice((list(value), list(value.values()), deep, dict(list(value.items())[1:])))
    return rng.choice(STRANGE)


def dump(value: Any) -> bytes:
    """JSON as other programs write it: with NaN, and with halves of surrogate pairs escaped."""
    return json.dumps(value).encode()


CELLS = (
    "", " ", "w3", "w3 w5", "LABEL_0", "LABEL_9", "0", "1", "-1", "9" * 5000, "NaN", "\ufeff",
    "\x00", '"', '""', '"w3', 'w3"', "w3 " * 3000, "\u2028", "\x85", "\x1c", "ä", "\U0001f600",
    "a\rb", "</s>", "<pad>", "text", "label", "\\t", "'", ",", ";",
)  # fmt: skip


def change_rows(rng: random.Random, rows: list[list[str]], ending: str) -> tuple[str, bytes]:
    """Rows with strange cells, as a file with this ending: tsv, csv or jsonl."""
    rows = copy.deepcopy(rows)
    done = []
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        row = rng.randrange(len(rows))
        done.append(f"row {row}")
        if rng.random() < 0.7 and rows[row]:
            rows[row][rng.randrange(len(rows[row]))] = rng.choice(CELLS)
        else:
            rows[row] = rng.choice(([], rows[row][:-1], [*rows[row], "w3"], [""], rows[0]))
    if ending == "jsonl":
        records: list[Any] = [dict(zip(rows[0] or ["x"], row, strict=False)) for row in rows[1:]]
        for _ in range(rng.choice((0, 1))):
            what, records = change_json(rng, records)
            done.append(what)
        lines = records if isinstance(records, list) else [records]
        text = "\n".join(json.dumps(line) for line in lines).encode()
    else:
        text = "\n".join(("\t" if ending == "tsv" else ",").join(r) for r in rows).encode()
    if rng.random() < 0.4:
        what, text = change_bytes(rng, text, [])
        done.append(what)
    return ", ".join(done), text


def contents(paths: list[Path]) -> list[bytes]:
    return [path.read_bytes() for path in paths]
