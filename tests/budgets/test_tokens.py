"""Tokens as units: their costs, the order in which they go, and the options that say so."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from compressor.budgets.base import Limits
from compressor.budgets.counts import Counts, Macs
from compressor.budgets.max_drop import MaxDrop
from compressor.budgets.removal_path import RemovalPath, removal_path
from compressor.budgets.speedup import Speedup
from compressor.budgets.token_order import TokenOrder
from compressor.budgets.unit_costs import WorkLeft, token_sublayers
from compressor.budgets.units import MULTIPLES, parse_amount, parse_floors, removal_groups, select
from compressor.errors import UsageError
from compressor.importance import METHODS
from compressor.learned_masks import LEARNED
from compressor.model.sublayers import TOKEN_KIND, TOKEN_UNITS, Mask, Scores
from tests.helpers.errors import raises
from tests.helpers.token_units import (
    COSTS,
    DENSE,
    FULL,
    HEADS,
    LAYERS,
    MULTIPLE,
    TOKENS,
    error,
    flat,
    made_up,
    schedules,
    work,
)


def require_in_turn(before: Mask, unit: tuple[str, int]) -> None:
    """A tenth goes after the one behind it, and after the same one in the next layer."""
    name, tenth = unit
    assert before.keep[name] == (True,) * (tenth + 1) + (False,) * (TOKEN_UNITS - 1 - tenth)
    layer = TOKENS.index(name)
    assert layer + 1 == len(TOKENS) or not before.keep[TOKENS[layer + 1]][tenth]


def walk(path: RemovalPath) -> list[Mask]:
    masks = [path.start]
    for group in path.groups:
        for unit in group.units:
            if unit[0] in TOKENS:
                assert len(group.units) == 1
                require_in_turn(masks[-1], unit)
        masks.append(masks[-1].without(group.units))
    return masks


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_path_takes_everything_in_turn_and_knows_what_is_left(seed, even):
    path = removal_path(made_up(seed), FULL, parse_floors("0", FULL), COSTS, MULTIPLE, even)
    masks = walk(path)
    assert masks[-1].count("heads") == masks[-1].count("neurons") == 0
    assert masks[-1].counts() | dict.fromkeys(TOKENS, 1) == masks[-1].counts()
    assert [path.mask(x) for x in range(len(path))] == masks
    dense = work(FULL)
    for mask, share in zip(masks, path.shares, strict=True):
        assert share == pytest.approx(1 - (dense - work(mask)) / COSTS.dense)
        assert share == pytest.approx(COSTS.share(mask))


@pytest.mark.parametrize("seed", range(4))
def test_what_goes_next_has_the_least_error_for_its_present_cost(seed):
    """Against the costs of all that could go instead, counted anew for every mask of the path."""
    found = made_up(seed)
    floors = parse_floors("0", FULL)
    path = removal_path(found, FULL, floors, COSTS, MULTIPLE)
    masks, ahead = walk(path), removal_groups(found, FULL, floors, MULTIPLE)
    queues = {x[0].units[0][0]: list(x) for x in ahead if x[0].units[0][0] not in TOKENS}
    changes = 0
    for mask, group in zip(masks, path.groups, strict=False):
        name = group.units[0][0]
        if name in TOKENS:
            changes += 1
            continue
        ratios = {
            other: queue[0].score
            * len(queue[0].units)
            / (work(mask) - work(mask.without(queue[0].units)))
            for other, queue in queues.items()
            if queue
        }
        assert ratios[name] == pytest.approx(min(ratios.values()))
        queues[name].pop(0)
    assert changes == 9 * len(TOKENS)


@pytest.mark.parametrize("dropped", [[], ["encoder.1"], ["encoder.3"]])
def test_what_tokens_cost_is_what_is_saved_without_them(dropped):
    start = FULL.without([("encoder_self.0", 0), ("encoder_self.2", 1), ("encoder_ffn.2", 3)])
    start = start.without_layers(dropped)
    left, costs = WorkLeft(COSTS, start), WorkLeft(COSTS, start).of_tokens()
    names = token_sublayers(start)
    assert len(names) == len(costs) == len(TOKENS) - len(dropped)
    # The last layer first, so that none gets fewer than it hands on.
    for number, name in reversed(list(enumerate(names))):
        for tenth in reversed(range(4, 10)):
            before = COSTS.share(start)
            start = start.without([(name, tenth)])
            saved = (before - COSTS.share(start)) * COSTS.dense
            assert costs[number][tenth + 1] - costs[number][tenth] == pytest.approx(saved)
            assert left.remove([(name, tenth)]) == pytest.approx(saved)


@pytest.mark.parametrize("seed", range(6))
def test_the_next_tenths_have_the_least_error_per_cost_of_all_that_can_go(seed):
    """Against every set that can go: exact, also where what is cheap stands behind what is dear."""
    found, order = made_up(seed), TokenOrder(made_up(seed), FULL, 6)
    every = schedules(6)
    # Any costs that rise with the tokens, some of which save nothing.
    steps = np.random.default_rng(seed).exponential(size=(len(TOKENS), TOKEN_UNITS))
    costs = np.cumsum(np.pad(steps * (steps > 0.3), ((0, 0), (1, 0))), axis=1)

    def cost(mask: Mask) -> float:
        return sum(costs[i][mask.counts()[name]] for i, name in enumerate(TOKENS))

    mask = FULL
    while result := order.next(costs.tolist()):
        ratio, units = result
        ratios = [
            (error(found, x) - error(found, mask)) / (cost(mask) - cost(x))
            for x in every
            if cost(x) < cost(mask) - 1e-9
            and all(n <= mask.counts()[name] for name, n in x.counts().items())
        ]
        assert ratio == pytest.approx(min(ratios, default=np.inf))
        for unit in units:
            require_in_turn(mask, unit)
            mask = mask.without([unit])
        order.remove(units)
    assert mask.handed_on() == (6,) * len(TOKENS)


def test_what_costs_nothing_does_not_stand_in_the_way():
    """Rows of nine tokens keep all of them at nine tenths; the next tenth saves one."""
    values = dict.fromkeys(TOKENS, (0.0,) * 8 + (1.0, 0.0))
    order = TokenOrder(Scores(values, "", "", {}), FULL, 1)
    costs = [float(-(-9 * tenths // 10)) for tenths in range(TOKEN_UNITS + 1)]
    ratio, units = order.next([costs] * len(TOKENS))
    # The last layer alone may go on its own; eight tenths and fewer lose nothing more.
    assert ratio == pytest.approx(1 / 8)
    assert {unit for _, unit in units} == set(range(1, 10))


@pytest.mark.parametrize("seed", range(3))
def test_a_path_is_near_the_best_there_is(seed):
    """Against all numbers of heads of two kinds of layers, neurons and tokens, at some shares.

    Scores rise within a sublayer, as those of units that are reconstructed do.
    """
    rng = np.random.default_rng(seed)
    values = {n: flat(np.cumsum(rng.exponential(size=c))) for n, c in FULL.totals().items()}
    values |= {n: values[n][::-1] for n in TOKENS}  # the last tenth is the least important
    found = Scores(values, "", "", {})
    floors = parse_floors("heads=1,neurons=2,tokens=0.8", FULL)
    path = removal_path(found, FULL, floors, COSTS, MULTIPLE)
    masks = walk(path)
    every = []
    for tokens in schedules(8):
        for heads in itertools.product(range(HEADS), repeat=LAYERS):
            for halves in itertools.product(range(2), repeat=LAYERS):
                gone = [(f"encoder_self.{i}", x) for i, n in enumerate(heads) for x in range(n)]
                gone += [
                    (f"encoder_ffn.{i}", x) for i, n in enumerate(halves) for x in range(2 * n)
                ]
                mask = tokens.without(gone)
                every.append((work(mask), error(found, mask)))
    costs, errors = map(np.array, zip(*every, strict=True))
    for mask in masks[:: max(1, len(masks) // 6)]:
        least = errors[costs <= work(mask) + 1e-9].min()
        assert error(found, mask) <= 1.1 * least + 1e-9


def test_tokens_of_dropped_layers_and_of_the_last_one_left_do_not_go():
    start = FULL.without_layers(["encoder.3", "encoder.1"])
    path = removal_path(made_up(0), start, parse_floors("0", FULL), COSTS, MULTIPLE)
    gone = {name for group in path.groups for name, _ in group.units if name in TOKENS}
    assert gone == {"encoder_tokens.0"}  # layer 2 is the last
    assert path.shares[-1] == pytest.approx(COSTS.share(path.mask(len(path) - 1)))
    full = FULL.without_layers(["encoder.1", "encoder.2", "encoder.3"])
    one = Limits(full, frozenset({"tokens"}), parse_floors("0", FULL), MULTIPLE)
    with raises(UsageError, "floors-too-high"):  # the only layer that is left hands on nothing
        MaxDrop(max_drop=1.0, prune="tokens").require_possible(one)


@pytest.mark.parametrize("seed", range(4))
def test_a_share_of_the_tokens_is_kept_in_turn(seed):
    found, floors = made_up(seed), parse_floors("tokens=0.3", FULL)
    assert floors == {"encoder_self": 1, "encoder_ffn": 0, TOKEN_KIND: 3}
    keep = parse_amount("keep", "heads=0.5,tokens=60%", FULL)
    mask = select(found, FULL, keep, floors)
    assert (mask.count("tokens"), mask.count("heads"), mask.count("neurons")) == (18, 6, 16)
    left = [mask.counts()[name] for name in TOKENS]
    assert mask.handed_on() == tuple(left)
    assert min(left) >= 3
    assert all(
        mask.keep[n] == tuple(t < k for t in range(10)) for n, k in zip(TOKENS, left, strict=True)
    )
    assert parse_amount("remove", "tokens=0.2", FULL) == {"tokens": 24}
    least = select(found, FULL, {"tokens": 0}, floors)
    assert [least.counts()[name] for name in TOKENS] == [3, 3, 3]


def test_tenths_go_from_the_last_one_whatever_they_score():
    for groups in removal_groups(made_up(1), FULL, parse_floors("0", FULL), MULTIPLES):
        if groups and groups[0].units[0][0] in TOKENS:
            assert [unit for group in groups for _, unit in group.units] == list(range(9, 0, -1))


@pytest.mark.parametrize(
    ("budget", "id"),
    [
        *(
            (Counts(keep=[f"tokens={x}"]), "budget-invalid")
            for x in ("1.5", "20", "-0.1", "nan", "half")
        ),
        (Counts(keep=["tokens=0.05"]), "floors-too-high"),
        (Counts(keep=["tokens=0.5"], floor="tokens=0.6"), "floors-too-high"),
        *((Macs(macs=[0.5], prune="all", floor=f"tokens={x}"), "budget-invalid") for x in "02x"),
        (Macs(macs=[0.5], prune="all", floor="tokens=0"), "budget-invalid"),
        (Macs(macs=[0.5], prune="both", floor="tokens=0.2"), "option-without-use"),
        (Counts(keep=["0.5"], floor="tokens=0.2"), "option-without-use"),
        (MaxDrop(max_drop=1, prune="tokens", floor="tokens=1"), "floors-too-high"),
        (Macs(macs=[0.5], prune="all", multiple="tokens=2"), "budget-invalid"),
    ],
)
def test_amounts_of_tokens_that_make_no_sense_are_usage_errors(budget, id):
    with raises(UsageError, id):
        budget.require_possible(budget.limits(DENSE))


def test_floors_of_tokens_are_shares_rounded_up():
    for text, tenths in (("0.2", 2), ("0.25", 3), ("70%", 7), ("0.7", 7), ("1", 10), ("0.01", 1)):
        limits = Macs(macs=[0.5], prune="all", floor=f"tokens={text}").limits(DENSE)
        assert limits.floors == {"encoder_self": 1, "encoder_ffn": 0, TOKEN_KIND: tenths}
    assert Macs(macs=[0.5], prune="all").limits(DENSE).floors[TOKEN_KIND] == 1
    assert Macs(macs=[0.5], prune="all", floor="0").limits(DENSE).floors[TOKEN_KIND] == 1


def test_what_goes_is_what_prune_says():
    every = {"heads", "neurons", "tokens"}
    wanted = {"heads": {"heads"}, "both": every - {"tokens"}, "tokens": {"tokens"}, "all": every}
    for name, units in wanted.items():
        budget = Speedup(speedup=1.5, prune=name)
        limits = budget.limits(DENSE)
        assert limits.units == units
        assert limits.full == (FULL if "tokens" in units else DENSE)
        assert budget.asks_for_tokens == (f"--prune {name}" if "tokens" in units else "")
        assert budget.with_default_units(True) == budget.with_default_units(False) == budget
    usual, floor = Macs(macs=[0.5]), Macs(macs=[0.5], floor="tokens=0.2")
    assert floor.asks_for_tokens == "--floor tokens=0.2"
    assert floor.with_default_units(False).prune == "all"  # refused before, where they cannot go
    assert usual.with_default_units(True).prune == "all"
    assert usual.with_default_units(False).prune == "both"
    counts = Counts(keep=["heads=0.5", "encoder_tokens=0.5"])
    assert counts.asks_for_tokens == "--keep encoder_tokens=0.5"
    assert counts.with_default_units(True) == counts
    assert counts.limits(DENSE).full == FULL


def test_methods_that_do_not_score_tokens_say_so():
    for name, method in {**METHODS, **LEARNED}.items():
        if name == "second-order":
            method().check_units({"heads", "neurons", "tokens"})
        else:
            with raises(UsageError, "method-without-tokens"):
                method().check_units({"tokens"})
