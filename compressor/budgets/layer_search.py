"""How many whole layers go before units are chosen: as many as cost least at the wanted speed.

A budget that measures speed can have the same speed with fewer layers and more units, or with more
layers and fewer units. Starting with all layers, one more of either stack is tried; where that
leaves less divergence from the dense model it is kept, and the next one is tried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from compressor.budgets.base import Choice, Evaluator
from compressor.errors import UsageError
from compressor.results import LayersTry, SpeedSearch

SEARCH = "search"  # in place of numbers of layers
UNREACHABLE = "speedup-unreachable"


def search_layers(evaluator: Evaluator, choose: Callable[[Evaluator], Choice]) -> Choice:
    """The best choice of units after different numbers of layers were dropped.

    Args:
        choose: units for the wanted speed-up, by scores and timings without some layers.

    Raises:
        UsageError: no number of layers makes the speed-up possible.
    """
    choices: list[Choice | None] = []
    errors: list[UsageError] = []

    def attempt(dropped: Sequence[str], stack: str | None) -> LayersTry:
        layers = [*dropped, evaluator.layer_to_drop(stack, dropped)] if stack else [*dropped]
        try:
            result = evaluator.try_layers(layers, choose)
        except UsageError as error:
            if error.id != UNREACHABLE:
                raise
            errors.append(error)  # the speed may be reached without one more layer
            choices.append(None)
            return LayersTry(layers=layers)
        choice = result.choice
        choices.append(choice)
        assert isinstance(choice.search, SpeedSearch)
        # The one that `reach` returned: it met the speed, or was the fastest.
        delivered = max(choice.search.tries, key=lambda x: (x.met, x.speedup))
        divergence = result.divergence if delivered.met else None
        without = f"without {' and '.join(layers)}" if layers else "with all layers"
        evaluator.message(
            f"  {without}: divergence {divergence:.4f} at {delivered.speedup:.3g} times the speed"
            if divergence is not None
            else f"  {without}: {delivered.speedup:.3g} times as fast, less than wanted"
        )
        return LayersTry(
            layers=layers,
            kept=str(choice.mask),
            speedup=delivered.speedup,
            divergence=divergence,
        )

    stacks = Counter(layer.partition(".")[0] for layer in evaluator.limits.full.layers())
    tries = climb(stacks, attempt)
    # `min` takes the first of equals: no later try keeps more layers.
    best = min(range(len(tries)), key=lambda number: _rank(tries[number]))
    choice, layers = choices[best], tries[best].layers
    if choice is None:
        raise errors[-1]
    assert isinstance(choice.search, SpeedSearch)
    dropped = f"{' and '.join(layers)} dropped" if layers else "no layer dropped"
    return replace(
        choice,
        text=f"{choice.text}; {dropped}, the best of {len(tries)} numbers of layers",
        search=choice.search.model_copy(update={"layers": tries}),
    )


def climb(
    layers: Mapping[str, int], attempt: Callable[[Sequence[str], str | None], LayersTry]
) -> list[LayersTry]:
    """All tries in the order in which they were made, until none was better than the best.

    Args:
        layers: stack -> how many it has; one of them stays.
        attempt: drops some layers and one more of a stack (or no more), reaches the speed with
            what is left, and measures the divergence.
    """
    best = attempt([], None)
    tries = [best]
    while True:
        dropped = Counter(layer.partition(".")[0] for layer in best.layers)
        more = [
            attempt(best.layers, stack)
            for stack, count in layers.items()
            if dropped[stack] + 1 < count
        ]
        if not more:
            return tries
        tries += more
        better = min(more, key=_rank)
        # While the speed is out of reach, every further layer is a step towards it.
        none_reached = best.divergence is None and better.divergence is None
        if _rank(better) >= _rank(best) and not none_reached:
            return tries
        best = better


def _rank(result: LayersTry) -> tuple[float, float]:
    """Least first: the divergence, then how fast what misses the speed is."""
    if result.divergence is not None:
        return result.divergence, 0.0
    return math.inf, -(result.speedup or 0.0)
