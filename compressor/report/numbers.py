"""How numbers are written in every rendering, in ASCII; the report itself keeps full precision."""

from __future__ import annotations

import math

ABSENT = "n/a"


def fixed(value: float | None, digits: int, *, sign: bool = False) -> str:
    """A number with a fixed count of decimals; `n/a` for None, `NaN` for not-a-number."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value}"
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    is_zero = not any(char in "123456789" for char in text)
    return text.lstrip("+-") if is_zero else text


def adaptive(value: float | None) -> str:
    """A positive quantity of any size, with about three to four significant digits."""
    size = 0.0 if value is None else abs(value)
    return fixed(value, 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 else 3)


def interval(bounds: tuple[float, float] | None, digits: int, *, sign: bool = False) -> str:
    """`[low, high]`, or `n/a`."""
    if bounds is None:
        return ABSENT
    low, high = bounds
    return f"[{fixed(low, digits, sign=sign)}, {fixed(high, digits, sign=sign)}]"


def megabytes(size: int) -> str:
    """Bytes as megabytes of 1,000,000 bytes, without the unit."""
    return adaptive(size / 1e6)


def percent(part: float, whole: float, digits: int = 0) -> str:
    """`part` as a share of `whole` with the percent sign, or `n/a` of nothing."""
    return f"{fixed(100 * part / whole, digits)}%" if whole else ABSENT


def change(value: float, reference: float) -> str:
    """Relative change against `reference`, for example `-12.3%`."""
    return f"{fixed(100 * (value / reference - 1), 1, sign=True)}%" if reference else ABSENT


def p_value(value: float | None) -> str:
    """Three decimals, with `< 0.001` for what would round to zero; `n/a` for None."""
    return "< 0.001" if value is not None and value < 0.0005 else fixed(value, 3)


def two_digits_up(count: int | None) -> int | None:
    """A count that is an estimate, rounded up to two digits: 2,400 of 2,391."""
    if count is None:
        return None
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def printable(text: str) -> str:
    """`text` on one line, without control characters that terminals or XML would interpret."""
    return "".join(char if char.isprintable() else " " for char in text)
