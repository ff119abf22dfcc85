"""`--speedup`: which choices are timed one after the other, and which is taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compressor.budgets.base import Limits
from compressor.budgets.cost_table import saved_share
from compressor.budgets.reach import CLOSE, RETRIES, next_share, reach, share_between
from compressor.budgets.units import MULTIPLES, parse_floors
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.steps.results import Timing
from tests.budgets.test_speedup import FULL, LIMITS, SAVED, scores
from tests.helpers.errors import raises
from tests.helpers.scores import timing


def try_to_reach(wanted: float, share: float, floor: str = "0", fixed: float = 0.0):
    """On a machine on which only a share of what the table promises comes true.

    The smaller the model, the less: the fixed time is left in any case.
    """
    saved, seen = SAVED, []

    def measure(mask: Mask, number: int) -> Timing:
        seen.append(mask)
        assert number == len(seen)
        gain = sum(saved[name][count] for name, count in mask.counts().items())
        return timing(1 / ((1 - share * gain) * (1 - fixed) + fixed))

    limits = replace(LIMITS, floors=parse_floors(floor, FULL))
    mask, tries = reach(wanted, scores(), limits, SAVED, measure)
    assert [one.kept for one in tries] == list(map(str, seen))
    return mask, tries


def test_a_miss_is_followed_by_a_tighter_choice_and_no_other():
    mask, tries = try_to_reach(1.3, 1.0)
    assert [(one.met, one.aim, one.kept) for one in tries] == [(True, 1.3, str(mask))]
    mask, tries = try_to_reach(1.3, 0.85)
    assert [one.met for one in tries] == [False] * (len(tries) - 1) + [True]
    assert 2 <= len(tries) <= RETRIES + 1
    assert tries[-1].kept == str(mask)
    aims = [one.aim for one in tries]
    assert aims == sorted(aims)
    # A share of 0.85 of what the table promises comes true.
    saved = 1 - 1 / tries[0].predicted
    assert 1 - 1 / tries[0].speedup == pytest.approx(0.85 * saved)
    assert 1 - 1 / tries[1].aim == pytest.approx((1 - 1 / 1.3) / 0.85)


def test_the_next_choice_is_on_the_line_through_the_last_two():
    assert next_share(3, [0.5], [2], 1) == pytest.approx(2 / 3)  # all comes true
    assert next_share(3, [0.6], [2], 1) == pytest.approx(0.8)  # five sixths of it
    # All that the table promises comes true, but of what is above 0.4 a half alone.
    assert next_share(2.5, [0.4, 0.6], [1 / 0.6, 2], 1) == pytest.approx(0.8)
    assert next_share(2.5, [0.9, 0.4, 0.6], [1, 1 / 0.6, 2], 1) == pytest.approx(0.8)
    assert next_share(100, [0.6], [1.25], 1) == pytest.approx(0.9)  # half as much again at most
    assert next_share(2, [0.6], [0.9], 1) == pytest.approx(0.9)  # slower than dense
    assert next_share(3, [0.6, 0.7], [2.1, 2], 1) == pytest.approx(0.7 * (2 / 3) / 0.5)  # noise
    # The line asks for 0.92, and gets half of what the table has beside 0.6.
    assert next_share(2, [0.5, 0.6], [1.6, 1 / 0.6], 0.9) == pytest.approx(0.75)
    # What is in proportion is no less than that.
    assert next_share(4, [0.5, 0.6], [1.6, 1 / 0.6], 0.9) == pytest.approx(0.9)
    assert next_share(2, [0.5, 0.6, 0.61, 0.62], [1.5] * 4, 0.9) == 0.9  # all, after four misses


MANY = Mask(dict.fromkeys(("encoder_self.0", "decoder_self.0", "cross.0"), (True,) * 60))


def reach_with_many(wanted: float, total: float, true):
    """With 180 heads that save a total by the table; `true` tells how much comes true of a part."""
    saved = {name: np.linspace(total / 3, 0.0, 61) for name in MANY.keep}
    values = np.random.default_rng(0).exponential(size=(3, 60)).tolist()
    known = Scores(dict(zip(MANY.keep, map(tuple, values), strict=True)), "random", "random", {})
    limits = Limits(MANY, frozenset({"heads"}), parse_floors("0", MANY), MULTIPLES)
    return reach(
        wanted, known, limits, saved,
        lambda mask, number: timing(1 / (1 - true(saved_share(mask, saved)))),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("total", "true", "wanted"),
    [(1.2, 0.6, 2.6), (1.2, 0.7, 3.5), (1.2, 0.5, 2.0), (1.05, 0.7, 3.2), (0.9, 0.7, 2.5)],
)
def test_where_a_part_of_the_table_comes_true_it_is_reached_in_a_few_tries(total, true, wanted):
    mask, tries = reach_with_many(wanted, total, lambda share: true * share)
    assert wanted <= tries[-1].speedup <= CLOSE * wanted
    assert str(mask) == tries[-1].kept
    assert len(tries) <= 4


@pytest.mark.parametrize("curve", [lambda share: 0.5 * share, lambda share: min(0.55, share)])
def test_what_no_choice_reaches_is_an_error_whatever_the_table_promises(curve):
    with raises(UsageError, "speedup-unreachable"):
        reach_with_many(3.0, 1.2, curve)


def test_savings_of_the_table_may_add_up_to_more_than_all():
    """As where removing units of several kinds saves less than each of them alone."""
    promised = {name: 2.4 * shares for name, shares in SAVED.items()}  # 1.9 in all
    limits = replace(LIMITS, floors=parse_floors("0", FULL))

    def measure(mask: Mask, number: int) -> Timing:
        gain = sum(SAVED[name][count] for name, count in mask.counts().items())
        return timing(1 / (1 - gain))

    mask, tries = reach(2.0, scores(), limits, promised, measure)
    assert tries[-1].met
    assert mask.count() > 0
    assert [one.predicted for one in tries][-1] == 1000


def test_what_does_not_scale_is_asked_for_on_top():
    mask, tries = try_to_reach(1.5, 0.8, fixed=0.1)
    assert [x.met for x in tries] == [False] * (len(tries) - 1) + [True]
    assert len(tries) <= 4
    assert tries[-1].kept == str(mask)


def test_what_the_floors_do_not_allow_is_an_error_that_says_how_much_is_possible():
    with raises(UsageError, "speedup-unreachable") as caught:
        try_to_reach(3.0, 1.0, floor="1")
    assert "1.639" in str(caught.value)  # 1 / (1 - 2 x 0.07 - 0.12 - 0.13)


@pytest.mark.parametrize("wanted", [3.1, 3.5, 4.0])
def test_choices_that_miss_by_little_are_not_followed_by_none_at_all(wanted):
    """Where small choices save little more than larger ones, and a model without units much more.

    As was measured of a translator with two decoder layers and single sentences.
    """
    promised, true = [0, 0.714, 0.771, 0.83, 0.849, 0.99], [0, 0.661, 0.67, 0.702, 0.712, 0.855]
    mask, tries = reach_with_many(wanted, 0.99, lambda share: np.interp(share, promised, true))
    assert len(tries) > 2
    assert all(int(one.kept.split()[0]) for one in tries)
    assert wanted <= tries[-1].speedup <= CLOSE * wanted
    assert str(mask) == tries[-1].kept


def test_the_table_does_not_forbid_what_can_be_measured():
    """Savings that do not add up: together the layers save more than one by one."""
    _, tries = try_to_reach(2.5, 1.3)
    assert tries[0].predicted < 2.5 <= tries[0].speedup


@pytest.mark.parametrize(("wanted", "share"), [(2.5, 1.3), (1.4, 1.2), (1.5, 1.5)])
def test_a_choice_that_is_too_fast_is_followed_by_one_with_more_units(wanted, share):
    """What is taken is the slowest that is fast enough."""
    mask, tries = try_to_reach(wanted, share)
    first, *others = tries
    assert first.speedup > CLOSE * wanted
    assert others
    met = [one for one in tries if one.met]
    assert str(mask) == min(met, key=lambda one: one.speedup).kept
    assert mask.count() > int(first.kept.split()[0])


def test_the_next_choice_is_on_the_line_between_one_too_slow_and_one_too_fast():
    # 2 % more than the double speed, from the dense model to one that has saved 0.75 for 0.5.
    assert share_between(2, [0.5], [4]) == pytest.approx(0.5 * (1 - 1 / 2.04) / 0.75)
    # After two misses halfway, from 0.45 of the time saved for 0.35.
    missed = [1 / 0.6, 1 / 0.55]
    assert share_between(2, [0.5, 0.3, 0.35], [4, *missed]) == pytest.approx(0.425)
    # From 0.4 of the time saved for 0.3, to 0.75.
    aimed = 0.3 + 0.2 * (1 - 1 / 2.04 - 0.4) / 0.35
    assert share_between(2, [0.3, 0.5], [1 / 0.6, 4]) == pytest.approx(aimed)
    assert share_between(2, [0.1, 0.3, 0.5, 0.9], [1.1, 1 / 0.6, 4, 9]) == pytest.approx(aimed)
    # Half of what is more than the wanted speed is left, where that is less than 2 %.
    nearly = 0.3 + 0.2 * (0.5025 - 0.4) / (0.505 - 0.4)
    assert share_between(2, [0.3, 0.5], [1 / 0.6, 1 / 0.495]) == pytest.approx(nearly)
