"""The order in which tokens go: what a layer does not get, it cannot hand on.

A tenth of the tokens may go in a layer when the tenths behind it are gone there, and the same tenth
in all later layers. So one that saves little may stand before others that save much, and they are
weighed together: of all sets of tenths that can go at once, the one of least error per cost goes
next, as in scheduling with precedence (Sidney 1975).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from compressor.budgets.unit_costs import Unit, token_sublayers
from compressor.model.sublayers import TOKEN_UNITS, Mask, Scores

Values = Sequence[Sequence[float]]  # of each layer, by the tenths that it hands on


def error_per_cost(error: float, cost: float) -> float:
    """The error over the cost; 0 where nothing is lost, else infinite where nothing is saved."""
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
        self._scores = [scores.values[name] for name in self.names]
        # That each layer hands on at present.
        self._tenths = list(mask.handed_on()) if self.names else []
        self._floor = floor

    def next(self, costs: Values) -> tuple[float, list[Unit]] | None:
        """The tenths of least error per cost that can go at once, in a possible order.

        Args:
            costs: what it costs that each layer hands on 0 to `TOKEN_UNITS` tenths.

        Returns:
            Their summed score over what they save, and the units; None if no more may go.
        """
        left = [min(tenths, self._floor) for tenths in self._tenths]
        if left == self._tenths:
            return None
        # By the tenths that are left: the error that is added, and what is saved.
        errors = [
            [sum(scores[tenth:now]) for tenth in range(now + 1)]
            for scores, now in zip(self._scores, self._tenths, strict=True)
        ]
        saved = [
            [values[now] - value for value in values[: now + 1]]
            for values, now in zip(costs, self._tenths, strict=True)
        ]

        def ratio_of(left: Sequence[int]) -> float:
            return error_per_cost(_sum_at(errors, left), _sum_at(saved, left))

        ratio = ratio_of(left)
        # Dinkelbach 1967: what has a smaller ratio than the best so far has error < ratio x saved.
        while 0 < ratio < math.inf:
            better = self._least(
                [
                    [error - ratio * gain for error, gain in zip(*values, strict=True)]
                    for values in zip(errors, saved, strict=True)
                ]
            )
            if better == self._tenths or ratio_of(better) >= ratio:
                break
            left, ratio = better, ratio_of(better)
        return ratio, list(self._units(left))

    def remove(self, units: Iterable[Unit]) -> None:
        """Let units go that `next` named."""
        for name, unit in units:
            self._tenths[self.names.index(name)] = unit

    def _least(self, values: Values) -> list[int]:
        """Tenths of each layer, none of which hands on more than it gets, with the least sum."""
        # By the tenths that a layer gets: the least sum from it on, and what it hands on then.
        later = dict.fromkeys(range(TOKEN_UNITS + 1), (0.0, 0))
        tables = list[dict[int, tuple[float, int]]]()
        for of_layer, now in zip(reversed(values), reversed(self._tenths), strict=True):
            table: dict[int, tuple[float, int]] = {}
            least = min(now, self._floor)
            for received in range(least, TOKEN_UNITS + 1):
                fewer = table.get(received - 1, (math.inf, 0))
                found = (math.inf, 0)
                if received <= now:
                    found = of_layer[received] + later[received][0], received
                # Of equals, more tokens.
                table[received] = found if found[0] <= fewer[0] else fewer
            tables.append(table)
            later = table
        left = [TOKEN_UNITS]
        for table in reversed(tables):
            left.append(table[left[-1]][1])
        return left[1:]

    def _units(self, left: Sequence[int]) -> Iterator[Unit]:
        """All that go, and none before its turn."""
        for tenth in reversed(range(TOKEN_UNITS)):
            for number in reversed(range(len(self.names))):
                if left[number] <= tenth < self._tenths[number]:
                    yield self.names[number], tenth


def _sum_at(values: Values, places: Sequence[int]) -> float:
    return sum(of_layer[place] for of_layer, place in zip(values, places, strict=True))
