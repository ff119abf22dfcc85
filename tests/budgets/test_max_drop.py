"""`--max-drop` as a budget: the search along a path of cuts, against looking at every cut.

Models are made up: at each position a drop on the rows of the search, another on the held-out rows,
and half the width of their intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from compressor.budgets.max_drop import ERROR, Found, Proof, accepted, error_of_look, find, search
from tests.helpers.scores import judged


@pytest.mark.parametrize(
    ("drop", "bound", "limit", "measured", "proven"),
    [
        (0.2, -0.29, 0.3, True, True),
        (0.2, -0.3, 0.3, True, True),  # just touching
        (0.2, -0.31, 0.3, True, False),  # the rows cannot show it
        (0.3, -0.9, 0.3, True, False),
        (0.31, -0.9, 0.3, False, False),
        (-0.2, 0.1, 0.0, True, True),  # better than dense
        (0.0, -0.1, 0.0, True, False),
        (math.nan, math.nan, 100.0, False, False),
    ],
)
def test_what_is_accepted(drop, bound, limit, measured, proven):
    probe = judged(3, -drop, bound)
    assert accepted(probe, limit, "measured") is measured
    assert accepted(probe, limit, "bound") is proven


def counting(accepts: Callable[[int], bool]) -> tuple[Callable[[int], bool], list[int]]:
    tried: list[int] = []

    def asked(position: int) -> bool:
        tried.append(position)
        return accepts(position)

    return asked, tried


@pytest.mark.parametrize("last", [1, 2, 7, 12, 144])
def test_the_search_finds_the_threshold(last):
    """For every place where acceptance may end, in at most log2 of the number of cuts."""
    for threshold in range(last + 1):
        accepts, tried = counting(lambda position: position <= threshold)  # noqa: B023
        assert search(last, accepts) == threshold
        assert len(set(tried)) == len(tried) <= 1 + math.ceil(math.log2(last))
        assert all(1 <= position <= last for position in tried)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_accepted_the_find_is_at_an_edge(seed):
    rng = np.random.default_rng(seed)
    good = {position for position in range(1, 33) if rng.random() < 0.5}
    accepts, tried = counting(good.__contains__)
    found = search(32, accepts)
    assert found == 0 or (found in good and found in tried)
    assert found == 32 or (found + 1 in tried and found + 1 not in good)


def run(
    drops: Sequence[float],
    held_out: Sequence[float] | None = None,
    limit: float = 1.0,
    half: float = 0.1,
    half_held_out: float | None = None,
    proof: Proof = "bound",
) -> tuple[Found, list[int]]:
    """A search among made-up models; also the positions that were built.

    Args:
        drops: of positions 1, 2, … on the rows of the search.
        held_out: the same on the held-out rows.
        half: how far the bound lies below the difference.
    """
    built: list[int] = []
    looks: list[int] = []

    def probe(position: int):
        built.append(position)
        return judged(100 - position, -drops[position - 1], -drops[position - 1] - half, position)

    def look(position: int, number: int):
        assert position in built
        looks.append(number)
        assert looks == list(range(1, number + 1))  # each look is told how many there were
        drop = (held_out or drops)[position - 1]
        width = half if half_held_out is None else half_held_out
        return judged(100 - position, -drop, -drop - width, position)

    return find(len(drops), limit, proof, probe, look), built


def places(probes) -> list[int]:
    return [probe.position for probe in probes]


LINEAR = [0.1 * position for position in range(1, 17)]  # a drop of 1 at position 10


def test_the_largest_cut_that_is_proven_is_delivered():
    found, built = run(LINEAR)
    assert (found.position, found.proven) == (9, True)  # 0.9 and 0.1 for the bound
    assert places(found.probes) == built == [16, 8, 12, 10, 9]
    assert places(found.looks) == [9]


def test_few_rows_prove_nothing_and_the_measured_drop_decides():
    """What used to deliver a drop of 3.67 for a limit of 1: intervals as wide as they were there.

    A probe was accepted there if its interval reached up to the limit, here at a drop of up to 5.
    """
    found, built = run([*LINEAR, 4.0, 5.0, 6.0], half=4.0)
    assert (found.position, found.proven) == (10, False)
    assert len(set(built)) == len(built)  # nothing is built twice for the second search


def test_rows_held_out_can_prove_what_the_others_could_not():
    found, _ = run(LINEAR, half=4.0, half_held_out=0.0)
    assert (found.position, found.proven) == (10, True)


def test_held_out_rows_that_refuse_lead_to_the_next_smaller_cut():
    """The search accepted 8 and 9; on the held-out rows 9 loses too much, then it is 8's turn."""
    held_out = [*LINEAR[:8], 1.5, *LINEAR[9:]]
    found, built = run(LINEAR, held_out)
    assert (found.position, found.proven) == (8, True)
    assert places(found.looks) == [9, 8]
    assert built == [16, 8, 12, 10, 9]


def test_where_held_out_rows_prove_none_the_largest_within_the_limit_is_taken():
    """All bounds on the held-out rows lie beyond the limit; 9 loses too much, 8 does not."""
    held_out = [*LINEAR[:8], 1.5, *LINEAR[9:]]
    found, _ = run(LINEAR, held_out, half_held_out=4.0)
    assert (found.position, found.proven) == (8, False)
    assert places(found.looks) == [9, 8, 4, 2, 1]


@pytest.mark.parametrize("proof", ["bound", "measured"])
def test_where_every_cut_loses_too_much_nothing_is_found(proof):
    found, built = run([2.0] * 16, proof=proof)
    assert found.position == 0
    assert found.looks == []
    assert built == [16, 8, 4, 2, 1]  # the smallest cut of all was tried


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("proof", ["bound", "measured"])
def test_what_is_delivered_is_within_the_limit_on_both_parts(seed, proof):
    """Whatever the noise; where proof is asked for and said to be there, it is."""
    rng = np.random.default_rng(seed)
    trend = np.linspace(0, 3, 40)
    drops, held_out = (list(trend + rng.normal(0, 0.6, 40)) for _ in range(2))
    found, _ = run(drops, held_out, half=float(rng.uniform(0, 2)), proof=proof)
    if found.position:
        look = next(seen for seen in found.looks if seen.position == found.position)
        assert drops[found.position - 1] <= 1
        assert -look.comparison.difference <= 1
        assert found.proven == (look.bound >= -1)
    else:
        assert all(held_out[seen.position - 1] > 1 for seen in found.looks)


def test_all_looks_together_err_no_more_often_than_promised():
    """By Bonferroni's inequality, however many there are."""
    assert error_of_look(1) == 0.025  # the lower end of a 95 % interval
    assert sum(error_of_look(number) for number in range(1, 40)) <= ERROR
