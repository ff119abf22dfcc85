"""The order in which tokens go: what a layer does not get, it cannot hand on.

A tenth of the tokens may go in a layer when the tenths behind it are gone there, and the same tenth
in all later layers. So one that saves little may stand before others that save much, and they are
weighed together: of all tenths with what must go before them, those of the least error per cost go
next. It is the greedy rule of precedence-constrained scheduling (Sidney 1975), for the sets that
one tenth of one layer closes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from compressor.budgets.unit_costs import Unit, token_sublayers
from compressor.model.sublayers import TOKEN_UNITS, Mask, Scores


def error_per_cost(error: float, cost: float) -> float:
    """Infinite where nothing is saved, but 0 where nothing is lost either."""
    if error <= 0:
        return 0.0
    return error / cost if cost > 0 else math.inf


class TokenOrder:
    """What is next to go of the tokens of a model.

    Args:
        scores: of its units; without any of tokens, nothing goes.
        mask: the units that it has.
        floor: tenths that each layer hands on at least.
    """

    def __init__(self, scores: Scores, mask: Mask, floor: int) -> None:
        self.names = [name for name in token_sublayers(mask) if name in scores.values]
        self._errors = [scores.values[name] for name in self.names]
        self._tenths = list(mask.handed_on())  # that each layer hands on at present
        self._floor = floor

    def next(self, costs: Sequence[Sequence[float]]) -> tuple[float, list[Unit]] | None:
        """The tenths of least error per cost, with all that must go before, in a possible order.

        Args:
            costs: what it costs that each layer hands on 0 to `TOKEN_UNITS` tenths.

        Returns:
            Their summed score over what they save, and the units; None if no more may go. Of
            equals the fewest.
        """
        best: tuple[float, int, int, int] | None = None
        for left in range(self._floor, TOKEN_UNITS):
            count, error, saved = 0, 0.0, 0.0
            # From the last layer on: all tenths behind `left`, in a layer and in those after it.
            for number in reversed(range(len(self.names))):
                tenths = self._tenths[number]
                if tenths <= left:
                    continue
                count += tenths - left
                error += sum(self._errors[number][left:tenths])
                saved += costs[number][tenths] - costs[number][left]
                found = (error_per_cost(error, saved), count, number, left)
                best = found if best is None else min(best, found)
        if best is None:
            return None
        ratio, _, first, left = best
        return ratio, list(self._units(first, left))

    def remove(self, units: Iterable[Unit]) -> None:
        """Let units go that `next` named."""
        for name, unit in units:
            self._tenths[self.names.index(name)] = unit

    def _units(self, first: int, left: int) -> Iterator[Unit]:
        """All behind `left` tenths, in a layer and in those after it; nothing before its turn."""
        for tenth in reversed(range(left, TOKEN_UNITS)):
            for number in reversed(range(first, len(self.names))):
                if self._tenths[number] > tenth:
                    yield self.names[number], tenth
