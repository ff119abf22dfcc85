"""What the program asks of a budget, whatever its kind, and what a budget may ask of a run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

from compressor.budgets.removal_path import PathCut
from compressor.budgets.unit_costs import UnitCosts
from compressor.budgets.units import (
    MULTIPLES,
    Floors,
    Multiples,
    latest_scores,
    names_tokens,
    parse_floors,
    parse_multiples,
)
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores, Sublayer, Units, units_of
from compressor.options.bounds import UnitsText
from compressor.options.declare import Options, option
from compressor.steps.results import (
    QualityCandidate,
    QualitySearch,
    Source,
    SpeedSearch,
    Throughput,
)

UNREACHABLE = "speedup-unreachable"  # id of the error, which a search for layers survives
Cut = Callable[[Scores, Mask], Mask]  # from scores, and what is left, to what a step leaves


@dataclass(frozen=True)
class Choice:
    """The units that a budget keeps, and why."""

    mask: Mask
    scores: Scores
    text: str = ""  # how they were chosen, where scores alone do not say
    search: SpeedSearch | QualitySearch | None = None  # what was measured on the way


@dataclass(frozen=True)
class Limits:
    """What may be removed from a model."""

    full: Mask  # all units of the dense model; with tokens where these may go
    units: frozenset[Units]  # which go: heads, neurons, tokens
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

    def sublayers(self, layers: Sequence[Sublayer]) -> list[Sublayer]:
        """The sublayers of a model whose units may go."""
        return [layer for layer in layers if units_of(layer.kind) in self.units]

    def without_layers(self, layers: Sequence[str]) -> Limits:
        """The limits of a model that skips more Transformer layers, `decoder.2`."""
        return replace(self, dropped=self.dropped.union(layers))


class Scorer(Protocol):
    """Scores units with the run's method, on its rows."""

    def scores(self, start: Mask) -> Scores:
        """Scores of all units that may go, of the dense model.

        Args:
            start: all units but those of dropped layers, which are skipped and have no scores.
        """

    def rescored(self, mask: Mask) -> Scores:
        """Scores of the units that a mask keeps, in a model without the others.

        Where the run recovers, that model is recovered first, from the one that was scored before.
        """


class Timer(Protocol):
    """Times models on this machine."""

    def time(
        self, masks: Mapping[str, Mask], batch: int, what: str, *, all_tokens: bool = False
    ) -> Throughput:
        """Timings of `dense` and, in turns with it, of the model with each of some masks.

        Args:
            masks: name -> the units that are kept; the names of the timings.
            batch: rows in a batch.
            what: what is timed, for messages: `timing WHAT`.
            all_tokens: decoders score all tokens, as dense does, in place of the run's: what is
                saved is saved by units alone.
        """


class Judge(Protocol):
    """Compares smaller models with the dense one, by their answers to test rows.

    A smaller model is built as it would be delivered. Half of the test rows are searched on, the
    others are held out.
    """

    @property
    def rows(self) -> Source:
        """The rows to search on."""

    @property
    def held_out(self) -> int:
        """The number of held-out rows."""

    @property
    def metric(self) -> str:
        """The name of the metric that counts."""

    def least_provable_drop(self, error: float) -> float:
        """The drop that a model without one changed answer to the searched rows can just prove.

        Args:
            error: one-sided, of the confidence bound.

        Returns:
            On the metric's own scale.
        """

    def candidate(
        self, cut: PathCut, scores: Scores, error: float, *, held_out: bool
    ) -> QualityCandidate:
        """The model with the units of a cut, beside the dense one.

        Args:
            cut: the units that are kept, and where it is on the path of cuts.
            scores: of all units, which the model's record has.
            error: one-sided, of the confidence bound.
            held_out: on the held-out rows, of a model whose measured drop on the searched ones is
                within the budget's; else on the rows to search on.
        """


class Layers(Protocol):
    """Finds out what whole layers are worth."""

    def next_to_drop(self, stack: str, dropped: Sequence[str]) -> str:
        """The layer of a stack whose skipping changes predictions least, beside those dropped.

        Args:
            stack: `encoder` or `decoder`.
            dropped: layers, as `decoder.2`, in the order in which they went.
        """

    def divergence(self, mask: Mask) -> float:
        """Divergence of a smaller model from the dense one on held-out rows, nats per loss term."""


class Budget(Options):
    """How much of a model goes; each kind is a subclass, and stands in `BUDGETS`.

    Its options are its fields; the one that chooses it is declared with `selects=True`. It says
    what may go (`units`, `limits`), refuses what cannot be met (`require_possible`,
    `require_enough_may_go`), and chooses: `choose` by scores and measurements, or `to_learn` for a
    learned mask. A budget that a learned mask cannot meet sets `needs_scores`.
    """

    panel: ClassVar[str] = "Budget"

    floor: UnitsText | None = option(
        None,
        help="Units each sublayer keeps at least: 1 (head), or cross=2,neurons=64; of tokens a "
        "share: tokens=0.2. Default: 1 head where heads are counted, else 0; 0.1 of the tokens.",
    )
    multiple: UnitsText | None = option(
        None, help="Units go in groups: 64 (neurons), or heads=2,neurons=64. Default: 32 neurons."
    )

    default_floor: ClassVar[str] = "1"
    by_penalty: ClassVar[bool] = False  # a penalty on open gates decides how many units stay
    needs_scores: ClassVar[str] = ""  # its name in messages, if a learned mask cannot meet it

    @property
    def needs_training(self) -> str:
        """The option that has no effect where the recovery does not train, if one is given."""
        return ""

    @property
    @abstractmethod
    def text(self) -> str:
        """The budget of one artifact in words, as in `keep 0.5`."""

    @property
    def flag_text(self) -> str:
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
    def allowed_drop(self) -> float | None:
        """How much of the main metric may be lost, of budgets that search for it on test rows.

        On the metric's own scale. Half of the test rows are for the search then.
        """
        return None

    @property
    def searches_rows(self) -> bool:
        """Whether half of the test rows are for a search."""
        return self.allowed_drop is not None

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

    @property
    def asks_for_tokens(self) -> str:
        """The option that is about tokens, as in `--floor tokens=0.2`; empty: none is."""
        return f"--floor {self.floor}" if self.floor and names_tokens(self.floor) else ""

    def with_default_units(self, tokens: bool) -> Self:
        """A copy in which what goes by default is said.

        Args:
            tokens: whether they can go: the model does without, and the method scores them.
        """
        return self

    @abstractmethod
    def units(self, full: Mask) -> frozenset[Units]:
        """Which units go of a model with these: heads, neurons, tokens."""

    def limits(self, full: Mask) -> Limits:
        """What may go of a model with these units, of which tokens are none yet.

        Raises:
            UsageError: it lacks units that an option names, or an option is no number.
        """
        if "tokens" in self.units(full):
            full = full.with_tokens()
        elif self.floor and names_tokens(self.floor):
            raise UsageError(
                f"--floor {self.floor} is about tokens, of which all stay with {self.flag_text}; "
                "add --prune all, or tokens to --keep, or leave them out of the floors",
                id="option-without-use",
            )
        floors = parse_floors(self.floor or self.default_floor, full)
        multiples = MULTIPLES if self.multiple is None else parse_multiples(self.multiple)
        return Limits(full, self.units(full), floors, multiples)

    def require_possible(self, limits: Limits) -> None:
        """Check before the run that the floors leave the budget possible.

        Args:
            limits: what may go of the model.

        Raises:
            UsageError: they do not.
        """

    def require_enough_may_go(self, limits: Limits, costs: UnitCosts) -> None:
        """Check before the run that the model is small enough with all removed that may be.

        Args:
            limits: what may go of the model.
            costs: multiply-adds of it over the rows.

        Raises:
            UsageError: it is not.
        """

    def action(self, method: str) -> str:
        """What choosing its units means, for messages; `method` learns the mask, if not empty."""
        if method:
            return f"learning with {method} which units to keep ({self.text})"
        return f"choosing units: {self.text}"

    def to_learn(self, full: Mask) -> tuple[dict[str, int] | None, float | None]:
        """What a learned mask needs: units to keep per pool, or the penalty per open gate.

        Args:
            full: all units of the dense model.

        Returns:
            Pool (`heads`, `neurons`, or a kind of sublayer) -> units to keep, and None; or None and
            the penalty, in nats per open gate.
        """
        # Not reached: the checks of a request refuse it before, by `needs_scores`.
        raise AssertionError(f"a learned mask cannot meet {self.needs_scores}")

    @abstractmethod
    def choose(self, *asked: Any, **by_name: Any) -> Choice:
        """The units to keep.

        A subclass names as its parameters what it asks for, and gets that alone: `limits`
        (`Limits`), `costs` (`UnitCosts`, multiply-adds), `scorer` (`Scorer`), `timer` (`Timer`),
        `judge` (`Judge`), `layers` (`Layers`), `trainings` (`shapes.Trainings`, or None where the
        recovery does not train), and `report`, which tells the user a line of text.

        Returns:
            The mask, which keeps what the limits do not let go; the scores of all units; how they
            were chosen, in words, and what was measured, where scores alone do not say.

        Raises:
            UsageError: the budget cannot be met.
        """


def cut_in_steps(cuts: Sequence[Cut], limits: Limits, scorer: Scorer) -> Choice:
    """Remove units in steps, scoring what is left anew before each but the first.

    A unit that is removed keeps the score that it was removed for.
    """
    first, *later = cuts
    scores = scorer.scores(limits.start)
    mask = first(scores, limits.start)
    for cut in later:
        latest = scorer.rescored(mask)
        scores = latest_scores(scores, latest, mask)
        mask = cut(latest, mask)
    return Choice(mask, scores)
