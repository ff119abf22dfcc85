"""What budgets choose, each with a stand-in of what it asks a run for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature

import numpy as np
import pytest

from compressor.budgets import BUDGETS
from compressor.budgets.counts import Macs, Penalty, SteppedCounts
from compressor.budgets.max_drop import MaxDrop
from compressor.budgets.removal_path import PathCut
from compressor.budgets.shapes import TrainingCost
from compressor.budgets.speedup import Speedup
from compressor.budgets.unit_costs import UnitCosts
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.steps.results import Source, Throughput
from tests.helpers.errors import raises
from tests.helpers.scores import judged, timing

TOTALS = {"encoder_self.0": 4, "encoder_self.1": 4, "encoder_ffn.0": 64, "encoder_ffn.1": 64}
FULL = Mask({name: (True,) * count for name, count in TOTALS.items()})
COSTS = UnitCosts(dense=1000.0, units={"encoder_self": 50.0, "encoder_ffn": 4.0})


def values(seed: int) -> dict[str, tuple[float, ...]]:
    rng = np.random.default_rng(seed)
    return {name: tuple(rng.exponential(size=count).tolist()) for name, count in TOTALS.items()}


class Scorer:
    """Makes up other scores each time."""

    def __init__(self) -> None:
        self.masks: list[Mask] = []

    def scores(self, start: Mask) -> Scores:
        self.masks = [start]
        return Scores(values(0), "made up", "", {"seconds": 1.0})

    def rescored(self, mask: Mask) -> Scores:
        self.masks.append(mask)
        return Scores(values(len(self.masks) - 1), "made up", "", {"seconds": 1.0})


def lowest(scores: Mapping[str, Sequence[float]], mask: Mask, count: int) -> set[tuple[str, int]]:
    """The heads of a mask with the lowest scores."""
    kept = [(name, i) for name in mask.keep if "self" in name for i in mask.kept(name)]
    return set(sorted(kept, key=lambda head: scores[head[0]][head[1]])[:count])


def removed(mask: Mask) -> set[tuple[str, int]]:
    return {(n, i) for n, flags in mask.keep.items() for i, kept in enumerate(flags) if not kept}


def test_counts_remove_the_lowest_scores():
    budget, scorer = SteppedCounts(keep=["3"], floor="0"), Scorer()
    choice = budget.choose(budget.limits(FULL), scorer)
    assert scorer.masks == [FULL]
    assert removed(choice.mask) == lowest(values(0), FULL, 5)
    assert (choice.text, choice.search, dict(choice.scores.values)) == ("", None, values(0))


def test_counts_in_steps_remove_by_scores_of_what_is_left():
    budget, scorer = SteppedCounts(keep=["2"], floor="0", steps=2), Scorer()
    choice = budget.choose(budget.limits(FULL), scorer)
    first = lowest(values(0), FULL, 3)
    half = FULL.without(first)
    assert scorer.masks == [FULL, half]
    assert removed(choice.mask) == first | lowest(values(1), half, 3)
    for name, scores in choice.scores.values.items():
        for unit, score in enumerate(scores):
            assert score == values((name, unit) not in first)[name][unit]
    assert choice.scores.cost == {"seconds": 2.0}


@pytest.mark.parametrize("steps", [1, 2])
def test_macs_leave_the_share_and_no_more(steps):
    """The next group of heads or neurons of the path would have been one too many."""
    budget, scorer = Macs(macs=[0.6], steps=steps), Scorer()
    mask = budget.choose(budget.limits(FULL), COSTS, scorer).mask
    left = 50 * mask.count("heads") + 4 * mask.count("neurons")
    share = 1 - (8 * 50 + 128 * 4 - left) / 1000
    assert 0.6 - 32 * 4 / 1000 < share <= 0.6
    assert len(scorer.masks) == steps
    tight = Macs(macs=[0.6], floor="heads=4,neurons=64")
    with raises(UsageError, "macs-unreachable"):
        tight.choose(tight.limits(FULL), COSTS, Scorer())


class Timer:
    """Every head takes so much of the dense time, but for a share that does not come true."""

    def __init__(self, head: float, share: float = 1.0) -> None:
        self.head, self.share = head, share
        self.timed: list[tuple[list[str], int, str]] = []

    def time(
        self, masks: Mapping[str, Mask], batch: int, what: str, *, all_tokens: bool = False
    ) -> Throughput:
        self.timed.append((list(masks), batch, what))
        saved = {x: self.share * self.head * (8 - mask.count("heads")) for x, mask in masks.items()}
        rows = [timing(1.0, "dense"), *(timing(1 / (1 - x), name) for name, x in saved.items())]
        return Throughput(
            provider="none", device="cpu", precision="fp32", threads=1, lengths="", rows=rows
        )


def test_speedup_times_units_then_what_it_chose():
    budget = Speedup(speedup=1.25, at_batch=4, prune="heads")
    timer, said = Timer(0.05), list[str]()
    choice = budget.choose(budget.limits(FULL), COSTS, Scorer(), timer, None, None, said.append)
    counts = [f"encoder_self={n}" for n in range(4)]
    assert [(names, batch) for names, batch, _ in timer.timed] == [(counts, 4), (["choice-1"], 4)]
    assert timer.timed[0][2] == "sublayers of encoder_self with 0, 1, 2, 3 units"
    # 1 / (1 - 4 x 0.05) = 1.25, by the four heads that are worth least together.
    assert removed(choice.mask) == lowest(values(0), FULL, 4)
    assert (choice.search.wanted, len(choice.search.tries)) == (1.25, 1)
    assert said == []
    with raises(UsageError, "speedup-unreachable"):
        budget.choose(budget.limits(FULL), COSTS, Scorer(), Timer(0.01), None, None, said.append)


class Layers:
    """The first layers matter least; a model without one is so far from the dense one."""

    def __init__(self, lost: Sequence[float]) -> None:
        self.lost = lost

    def next_to_drop(self, stack: str, dropped: Sequence[str]) -> str:
        return f"{stack}.{len(dropped)}"

    def divergence(self, mask: Mask) -> float:
        return self.lost[len(mask.dropped)]


@pytest.mark.parametrize(("lost", "dropped"), [([0.2, 0.1], {"encoder.0"}), ([0.1, 0.2], set())])
def test_speedup_drops_the_layers_that_leave_the_model_closest(lost, dropped):
    budget = Speedup(speedup=1.25, prune="heads", drop_layers="search")
    said: list[str] = []
    how = COSTS, Scorer(), Timer(0.05), Layers(lost), None, said.append
    choice = budget.choose(budget.limits(FULL), *how)
    assert choice.mask.dropped == dropped
    assert [len(one.layers) for one in choice.search.layers] == [0, 1]
    assert [one.divergence for one in choice.search.layers] == lost
    assert len(said) == 2


class Trainings:
    """A step takes a second, the run's own training an hour and a half."""

    def __init__(self, lost: Mapping[int, float], whole: float = 5400.0) -> None:
        self.lost, self.whole = lost, whole
        self.trained: list[tuple[frozenset[str], int]] = []

    def cost(self, mask: Mask) -> TrainingCost:
        return TrainingCost(fixed=10.0, step=1.0, whole=self.whole, spent=300.0)

    def divergence(self, mask: Mask, steps: int) -> float:
        self.trained.append((mask.dropped, steps))
        return self.lost[len(mask.dropped)]


@pytest.mark.parametrize(("lost", "dropped"), [([0.2, 0.1], {"encoder.0"}), ([0.1, 0.2], set())])
@pytest.mark.parametrize("minutes", [None, 2.0])
def test_speedup_drops_the_layers_that_training_makes_up_for(lost, dropped, minutes):
    """Whatever the divergence is before; of the last layer's place, which stays, too."""
    budget = Speedup(speedup=1.25, prune="heads", drop_layers="search", probe_minutes=minutes)
    said, trainings = list[str](), Trainings(dict(enumerate(lost)))
    how = COSTS, Scorer(), Timer(0.05), Layers(lost[::-1]), trainings, said.append
    choice = budget.choose(budget.limits(FULL), *how)
    assert choice.mask.dropped == dropped
    # 25 minutes, of which the units of two others take two and a half each, for three; or two
    # minutes for two, since three would be too short. Ten seconds of each are no steps.
    candidates, steps = (3, (1500 - 2 * 150) // 3 - 10) if minutes is None else (2, 60 - 10)
    assert trainings.trained == [(frozenset(), steps), (frozenset({"encoder.0"}), steps)]
    assert choice.search.probe_steps == steps
    assert [one.divergence for one in choice.search.layers] == lost
    about = candidates * (10 + steps) / 60
    assert f"{candidates} at most: about {about:.1f} minutes; the run's own training" in said[0]
    assert "takes about 90.0" in said[0]


def test_too_short_a_training_says_so_and_layers_are_weighed_without():
    budget = Speedup(speedup=1.25, prune="heads", drop_layers="search")
    said, trainings = list[str](), Trainings({}, whole=1000.0)  # a third less 300 s: 33 s
    how = COSTS, Scorer(), Timer(0.05), Layers([0.2, 0.1]), trainings, said.append
    choice = budget.choose(budget.limits(FULL), *how)
    assert choice.mask.dropped == {"encoder.0"}
    assert (trainings.trained, choice.search.probe_steps) == ([], 0)
    assert "too short to train candidates" in said[0]


class Judge:
    """Every cut of the path costs 0.1; the bound lies lower, and the held-out rows are harder."""

    rows = Source(files=["test.tsv"], rows=100, sha256="0" * 64)
    held_out, metric = 90, "accuracy"

    def __init__(self, width: float = 0.1, harder: float = 0.0) -> None:
        self.width, self.harder, self.looks = width, harder, list[tuple[float, bool]]()

    def least_provable_drop(self, error: float) -> float:
        return self.width

    def candidate(self, cut: PathCut, scores: Scores, error: float, *, held_out: bool):
        self.looks.append((error, held_out))
        drop = 0.1 * cut.position + self.harder * held_out
        return judged(cut.mask.count("heads"), -drop, -drop - self.width, cut.position)


@pytest.mark.parametrize(
    ("judge", "heads", "proven", "looks"),
    [
        (Judge(), 4, True, [(0.025, True)]),  # 0.4, and 0.1 for the bound
        (Judge(harder=0.1), 5, True, [(0.025, True), (0.0125, True)]),
        (Judge(width=0.6), 3, False, [(0.025, True)]),  # nothing can be proven
    ],
)
def test_max_drop_finds_the_smallest_model_within_it(judge, heads, proven, looks):
    budget = MaxDrop(max_drop=0.5, prune="heads")
    said: list[str] = []
    choice = budget.choose(budget.limits(FULL), COSTS, Scorer(), judge, said.append)
    assert choice.mask.count("heads") == heads
    assert removed(choice.mask) == lowest(values(0), FULL, 8 - heads) or not proven
    assert (choice.search.proven, choice.search.held_out) == (proven, 90)
    assert [look for look in judge.looks if look[1]] == looks
    assert said[0].startswith("  searching on 100 of the 190 test rows")
    with raises(UsageError, "max-drop-unreachable"):
        strict = MaxDrop(max_drop=0.01, prune="heads")
        strict.choose(strict.limits(FULL), COSTS, Scorer(), Judge(), said.append)


def test_a_penalty_asks_for_nothing_and_lets_a_mask_learn():
    budget = Penalty(penalty=0.05)
    assert budget.to_learn(FULL) == (None, 0.05)
    assert budget.units(FULL) == {"heads"}
    with pytest.raises(AssertionError):
        budget.choose()


def test_budgets_ask_for_what_a_run_offers():
    offered = {"limits", "costs", "scorer", "timer", "judge", "layers", "trainings", "report"}
    asked = {kind.__name__: set(signature(kind.choose).parameters) - {"self"} for kind in BUDGETS}
    assert asked.pop("Penalty") == set()
    assert all("limits" in names and names <= offered for names in asked.values())
