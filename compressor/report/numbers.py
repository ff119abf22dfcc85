"""How numbers and lists are written in every rendering, in ASCII.

The report itself keeps full precision; what is rounded is rounded here, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def ratio(value: float | None, bounds: tuple[float, float] | None) -> str:
    """A ratio with its interval, if it has one: `0.99 [0.97, 1.01]`."""
    shown = fixed(value, 2)
    return shown if bounds is None else f"{shown} {interval(bounds, 2)}"


def span(values: Sequence[float]) -> str:
    """The smallest and the largest of some ratios: `2.0 to 2.9`, or `2.0` where they look equal.

    They have one decimal, but two where one would write a gain or a loss as none.
    """
    low, high = min(values), max(values)
    digits = 2 if any(0.95 <= value < 1.05 for value in (low, high)) else 1
    return " to ".join(dict.fromkeys(fixed(end, digits) for end in (low, high)))


def kept_of(kept: int, total: int) -> str:
    """Units kept of units before removal: `72/144`."""
    return f"{kept:,}/{total:,}"


def megabytes(size: int) -> str:
    """Bytes as megabytes of 1,000,000 bytes, without the unit."""
    return adaptive(size / 1e6)


def percent(part: float, whole: float, digits: int = 0) -> str:
    """`part` as a share of `whole` with the percent sign, or `n/a` of nothing."""
    return f"{fixed(100 * part / whole, digits)}%" if whole else ABSENT


def shares(tenths: Sequence[int]) -> str:
    """Tenths in percent, `100, 50 and 30%`; of more than a dozen the ends, `100 to 30%`."""
    listed = [str(10 * share) for share in tenths]
    if len(listed) > 12:
        return f"{10 * max(tenths)} to {10 * min(tenths)}%"
    return f"{join(listed)}%"


def change(value: float, reference: float) -> str:
    """Relative change against `reference`, for example `-12.3%`."""
    return f"{fixed(100 * (value / reference - 1), 1, sign=True)}%" if reference else ABSENT


def p_value(value: float | None) -> str:
    """Three decimals, with `< 0.001` for what would round to zero; `n/a` for None."""
    return "< 0.001" if value is not None and value < 0.0005 else fixed(value, 3)


def ceil_to_two_digits(count: int) -> int:
    """A count that is an estimate, rounded up to two digits: 2,400 of 2,391."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def join(items: Sequence[str]) -> str:
    """Items as a list in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def printable(text: str) -> str:
    """`text` on one line, without control characters that terminals or XML would interpret."""
    return "".join(char if char.isprintable() else " " for char in text)
