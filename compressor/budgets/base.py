"""What the program asks of a budget, whatever its kind, and what a budget may ask of a run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol, Self

from compressor.budgets.units import (
    MULTIPLES,
    Floors,
    Multiples,
    PathCut,
    UnitCosts,
    parse_floors,
    parse_layers,
    parse_multiples,
    removal_groups,
)
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores, Units, units_of
from compressor.options.bounds import UnitsText
from compressor.options.declare import Options, option
from compressor.results import (
    QualityCandidate,
    QualitySearch,
    Source,
    SpeedSearch,
    Throughput,
    Timing,
)

UNREACHABLE = "speedup-unreachable"  # id of the error, which a search for layers survives
Prune = Literal["heads", "neurons", "both"]
Cut = Callable[[Scores, Mask], Mask]  # from scores, and what is left, to what a step leaves


@dataclass(frozen=True)
class Choice:
    mask: Mask
    scores: Scores
    text: str = ""  # how they were chosen, where scores alone do not say
    search: SpeedSearch | QualitySearch | None = None  # what was measured on the way
    weights: str = ""  # SHA-256 of those that belong to the mask; empty for the dense model's


@dataclass(frozen=True)
class Limits:
    """What may be removed from a model."""

    full: Mask  # all units of the dense model
    units: frozenset[Units]  # which go: heads, neurons, or both
    floors: Floors  # least number of units in each sublayer of a kind
    multiples: Multiples  # in which groups units go
    # Stack -> how many of its layers go before units are chosen.
    to_drop: Mapping[str, int] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()  # these layers, once they are known
    even: bool = False  # whether the attentions of a stack keep equally many heads

    @property
    def start(self) -> Mask:
        """The units to choose from: all but those of dropped layers."""
        return self.full.without_layers(self.dropped)


class Evaluator(Protocol):
    """What a run does for a budget that chooses units."""

    @property
    def limits(self) -> Limits: ...
    @property
    def costs(self) -> UnitCosts: ...
    def message(self, text: str) -> None: ...
    def scores(self) -> Scores:
        """Scores of all units of the dense model that may go."""

    def cut_in_steps(self, cuts: Sequence[Cut]) -> Choice:
        """Remove units in steps, scoring anew (and recovering, if the run does) between them."""

    def time_units(self, kinds: Sequence[str], counts: Sequence[int], at_batch: int) -> Throughput:
        """Time `dense`, and `KIND+KIND=COUNT`, whose sublayers of these kinds have COUNT units."""

    def time_mask(self, mask: Mask, number: int, at_batch: int) -> Timing:
        """Time one choice against the dense model; `number` counts the tries, from 1."""

    def layer_to_drop(self, stack: str, dropped: Sequence[str]) -> str:
        """The layer of a stack whose skipping changes predictions least, beside those dropped."""

    def try_layers(
        self, dropped: Sequence[str], choose: Callable[[Evaluator], Choice]
    ) -> tuple[Choice, float]:
        """Units chosen after layers were dropped, and the divergence from the dense model."""

    def require_sight(self, asked: str, drop: float) -> None:
        """Raise `InputError` if rows show no drop beyond this: the dense model is at the floor."""

    def least_provable_drop(self, error: float) -> float:
        """The drop that a model without one changed answer to the searched rows can just prove."""

    def search_rows(self) -> tuple[Source, int, str]:
        """The rows to search on, how many others are held out, and the metric that counts."""

    def warn_if_unproven(self, search: QualitySearch) -> None:
        """Warn the user where the rows were too few to prove what was asked for."""

    def judge(self, cut: PathCut, drop: float, error: float) -> QualityCandidate:
        """Build a smaller model and compare its answers to the searched rows with dense."""

    def judge_held_out(self, cut: PathCut, drop: float, error: float) -> QualityCandidate:
        """The same on the held-out rows, of a model that was within the limit for `judge`."""


class Budget(Options):
    """How much of a model goes; each kind is a subclass."""

    panel: ClassVar[str] = "Budget"

    floor: UnitsText | None = option(
        None,
        help="Units each sublayer keeps at least: 1 (head), or cross=2,neurons=64. Default: 1 head "
        "where heads are counted, else 0.",
    )
    multiple: UnitsText | None = option(
        None, help="Units go in groups: 64 (neurons), or heads=2,neurons=64. Default: 32 neurons."
    )

    default_floor: ClassVar[str] = "1"
    searches_rows: ClassVar[bool] = False  # half of the test rows are for a search
    by_penalty: ClassVar[bool] = False  # a penalty on open gates decides how many units stay
    needs_scores: ClassVar[str] = ""  # its name in messages, if a learned mask cannot meet it

    @property
    @abstractmethod
    def text(self) -> str:
        """The budget of one artifact in words, as in `keep 0.5`."""

    @property
    def as_typed(self) -> str:
        """The option that chose it, as in `--keep 0.5`, for messages."""
        return f"--{self.text}"

    @property
    def timed_batch(self) -> int | None:
        """Batch size at which choices are timed, of budgets that measure speed."""
        return None

    @property
    def timed_engine(self) -> str | None:
        """Engine that choices are timed in; None for the one that every artifact is for."""
        return None

    @property
    def scorings(self) -> int:
        """How often units are scored."""
        return 1

    @property
    def slug(self) -> str:
        """Name of the artifact's directory when a run has several budgets."""
        return self.text.replace(" ", "-").replace("=", "-").replace(",", "-").replace("%", "pct")

    def each(self) -> Sequence[Self]:
        """One budget for each artifact."""
        return [self]

    @abstractmethod
    def units(self, full: Mask) -> frozenset[Units]:
        """Whether heads go, or neurons, or both."""

    def limits(self, full: Mask) -> Limits:
        """What may go of a model; UsageError if it lacks the units, or options are no numbers."""
        floors = parse_floors(self.floor or self.default_floor, full)
        multiples = MULTIPLES if self.multiple is None else parse_multiples(self.multiple)
        return Limits(full, self.units(full), floors, multiples)

    def require_possible(self, limits: Limits) -> None:
        """Raise `UsageError` if the floors make the budget impossible."""

    def require_enough_may_go(self, limits: Limits, costs: UnitCosts) -> None:
        """Raise `UsageError` if the model is too large with all removed that may be."""

    def action(self, method: str) -> str:
        """What choosing its units means, for messages; `method` learns the mask, if not empty."""
        if method:
            return f"learning with {method} which units to keep ({self.text})"
        return f"choosing units: {self.text}"

    def to_learn(self, full: Mask) -> tuple[dict[str, int] | None, float | None]:
        """What a learned mask needs: units to keep per pool, or the penalty per open gate."""
        # Not reached: the checks of a request refuse it before, by `needs_scores`.
        raise AssertionError(f"a learned mask cannot meet {self.needs_scores}")

    @abstractmethod
    def choose(self, evaluator: Evaluator) -> Choice:
        """The units to keep; UsageError if the budget cannot be met."""


class CompetingUnits(Budget):
    """Base of budgets for which heads and neurons compete."""

    prune: Prune = option("both", help="Which units go: heads, neurons or both.")
    drop_layers: str | None = option(
        None,
        help="Whole layers that go first, those whose skipping changes predictions least: "
        "decoder=2, or encoder=1,decoder=2; with --speedup also search.",
    )
    even_heads: bool = option(
        False,
        help="All attentions of the encoder keep equally many heads, all of the decoder too: "
        "CTranslate2 computes as many for each as the largest has.",
    )

    # Whole sublayers may go, which saves their fixed cost as well.
    default_floor: ClassVar[str] = "0"

    def layers_to_drop(self, full: Mask) -> dict[str, int]:
        """Stack -> how many of its layers go before units are chosen."""
        return {} if self.drop_layers is None else parse_layers(self.drop_layers, full)

    def limits(self, full: Mask) -> Limits:
        limits = super().limits(full)
        return replace(limits, to_drop=self.layers_to_drop(full), even=self.even_heads)

    def units(self, full: Mask) -> frozenset[Units]:
        return frozenset({"heads", "neurons"} if self.prune == "both" else {self.prune})


class SearchedUnits(CompetingUnits):
    """Base of budgets that measure models while they choose."""

    needs_scores: ClassVar[str] = "a budget that is measured"

    def action(self, method: str) -> str:
        return f"searching units for {self.text}"

    def require_possible(self, limits: Limits) -> None:
        scores = scores_of_none(limits)
        if not any(
            removal_groups(scores, limits.start, limits.floors, limits.multiples, limits.even)
        ):
            raise UsageError(
                f"{self.text}: the floors keep all units; lower --floor or --multiple",
                id="floors-too-high",
            )


def scores_of_none(limits: Limits) -> Scores:
    """Scores of units that may go, none of which is more important than another."""
    totals = limits.start.totals()
    values = {name: (0.0,) * n for name, n in totals.items() if units_of(name) in limits.units}
    return Scores(values, "none", "", {})
