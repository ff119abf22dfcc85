"""`--speedup`: removes what makes the model faster by a factor on this machine.

With `--drop-layers search` it also finds how many whole layers go before units are chosen. Where
the run trains, candidates of the same speed are trained for a short while (`shapes`); else one more
layer of either stack goes at a time, while that leaves less divergence at the same speed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from compressor.budgets.base import (
    UNREACHABLE,
    Choice,
    Layers,
    Limits,
    Scorer,
    Timer,
)
from compressor.budgets.competing import SearchedUnits
from compressor.budgets.shapes import ShapeSearch, TooShortError, Trainings
from compressor.budgets.unit_costs import UnitCosts
from compressor.budgets.units import lose_together
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, kind_of, units_of
from compressor.options.bounds import BatchSize, Positive
from compressor.options.declare import option
from compressor.steps.results import CostTable, LayerCost, LayersTry, SpeedSearch, Timing, delivered

SEARCH = "search"  # in place of numbers of layers


class Speedup(SearchedUnits):
    """The cheapest removal that makes the model faster by a factor on this machine."""

    speedup: float = option(
        gt=1,
        allow_inf_nan=False,
        selects=True,
        help="Instead of units to keep: 1.3 times as fast on this machine.",
    )
    at_batch: BatchSize = option(16, help="Batch size of --speedup.")
    at_engine: str | None = option(
        None, help="Engine that --speedup is measured in, one of --engines. Default: onnxruntime."
    )

    probe_minutes: Positive | None = option(
        None,
        only_with="drop_layers=search",
        help="Minutes of the short trainings by which a run that distills weighs layers to drop, "
        "all together. Default: what leaves choosing under a quarter of the run's time.",
    )

    @property
    def text(self) -> str:
        """The budget in words: `speedup 1.3 at batch 16`."""
        engine = "" if self.at_engine is None else f" in {self.at_engine}"
        return f"speedup {self.speedup:.15g} at batch {self.at_batch}{engine}"

    @property
    def flag_text(self) -> str:
        """The option that chose it: `--speedup 1.3`."""
        return f"--speedup {self.speedup:.15g}"

    @property
    def needs_training(self) -> str:
        """The minutes of short trainings, if they are given."""
        return "" if self.probe_minutes is None else f"--probe-minutes {self.probe_minutes:g}"

    @property
    def timed_batch(self) -> int:
        """The batch size of the option."""
        return self.at_batch

    @property
    def timed_engine(self) -> str | None:
        """The engine of the option."""
        return self.at_engine

    def layers_to_drop(self, full: Mask) -> dict[str, int]:
        """None where the search finds out how many go."""
        # The search begins with all layers and finds out how many go.
        return {} if self.drop_layers == SEARCH else super().layers_to_drop(full)

    def choose(
        self,
        limits: Limits,
        costs: UnitCosts,
        scorer: Scorer,
        timer: Timer,
        layers: Layers,
        trainings: Trainings | None,
        report: Callable[[str], None],
    ) -> Choice:
        """Time what units cost, choose the cheapest that is fast enough, and time that.

        Raises:
            UsageError: the speed cannot be reached.
        """
        # Once for all numbers of layers: savings are shares of the whole dense model's time.
        table = self._measure_costs(limits, timer)

        def choose_units(limits: Limits) -> Choice:
            return self._choose_units(limits, table, costs, scorer, timer, report)

        if self.drop_layers == SEARCH and trainings is not None:
            minutes = self.probe_minutes
            try:
                return ShapeSearch(limits, layers, trainings, choose_units, minutes, report).best()
            except TooShortError:
                report(
                    "  the run's training is too short to train candidates in a quarter of its "
                    "time: they are weighed by their divergence before it"
                )
        if self.drop_layers == SEARCH:
            return search_layers(limits, layers, choose_units, report)
        return choose_units(limits)

    def _choose_units(
        self,
        limits: Limits,
        table: CostTable,
        costs: UnitCosts,
        scorer: Scorer,
        timer: Timer,
        report: Callable[[str], None],
    ) -> Choice:
        from compressor.budgets.cost_table import layer_weights, savings  # imports NumPy
        from compressor.budgets.reach import reach

        scores = scorer.scores(limits.start)
        saved = savings(table, limits.start, layer_weights(costs, limits))

        def measure(mask: Mask, number: int) -> Timing:
            name = f"choice-{number}"
            what = f"a choice of {mask} (try {number})"
            timed = timer.time({name: mask}, self.at_batch, what)
            return next(row for row in timed.rows if row.variant == name)

        mask, tries = reach(self.speedup, scores, limits, saved, measure)
        if not delivered(tries).met:
            report(
                f"no choice reached {self.speedup:g} at batch {self.at_batch} in {len(tries)} "
                "tries; the fastest one is taken"
            )
        count = "1 choice" if len(tries) == 1 else f"{len(tries)} choices"
        text = f"by the measured cost of units at batch {self.at_batch}, {count} timed"
        search = SpeedSearch(wanted=self.speedup, costs=table, tries=tries)
        return Choice(mask, scores, text, search)

    def _measure_costs(self, limits: Limits, timer: Timer) -> CostTable:
        """What sublayers of each kind save at some numbers of units, timed on this machine."""
        from compressor.budgets.cost_table import (
            counts_to_measure,
            layer_costs,
            tenths_to_measure,
            timed_sublayers,
            trial_mask,
        )

        rows: list[LayerCost] = []
        seconds: list[float] = []
        lengths = ""
        # Even attentions of a stack are timed together: an engine that pads them to the largest
        # shows nothing while one kind keeps all.
        firsts = [f"{x}.0" for x in limits.full.kinds() if units_of(x) in limits.units]
        for tied in lose_together(firsts, limits.even):
            kinds = list(map(kind_of, tied))
            totals = [n for name, n in limits.full.totals().items() if kind_of(name) in kinds]
            # In a dense model all sublayers of a kind have equally many units.
            floor = max(limits.floors[kind] for kind in kinds)
            units = units_of(kinds[0])
            if units == "tokens":
                counts = tenths_to_measure(floor)
            else:
                counts = counts_to_measure(totals[0], floor, limits.multiples[units])
            if not counts:
                continue  # the floor keeps all units, so there is nothing to save
            names = {count: f"{'+'.join(kinds)}={count}" for count in counts}
            masks = {name: trial_mask(limits.full, kinds, n) for n, name in names.items()}
            what = f"sublayers of {'+'.join(kinds)} with {', '.join(map(str, counts))} units"
            if units == "tokens":
                what = f"layers that hand on {', '.join(map(str, counts))} tenths of the tokens"
            measured = timer.time(masks, self.at_batch, what, all_tokens=True)
            layers = {n: len(timed_sublayers(limits.full, kinds, n)) for n in counts}
            timings = {row.variant: row for row in measured.rows}
            for kind in kinds:
                by_count = {count: timings[name] for count, name in names.items()}
                rows += layer_costs(kind, layers, by_count)
            seconds.append(self.at_batch / timings["dense"].sentences_per_second)
            lengths = f"{measured.lengths}; {measured.precision}, {measured.rows[0].provider}"
        mean = sum(seconds) / len(seconds)
        return CostTable(batch_size=self.at_batch, dense_seconds=mean, lengths=lengths, rows=rows)


def search_layers(
    limits: Limits,
    layers: Layers,
    choose_units: Callable[[Limits], Choice],
    report: Callable[[str], None],
) -> Choice:
    """The best choice of units after different numbers of layers were dropped.

    Args:
        limits: before more layers are dropped.
        layers: tells the next layer to drop, and what a choice has lost.
        choose_units: within the limits of a model without the layers.
        report: tells the user a line of text.

    Raises:
        UsageError: no number of layers is fast enough.
    """
    choices: dict[tuple[str, ...], Choice] = {}  # by the layers that were dropped
    errors: list[UsageError] = []

    def attempt(dropped: Sequence[str], stack: str | None) -> LayersTry:
        gone = [*dropped, layers.next_to_drop(stack, dropped)] if stack else [*dropped]
        try:
            choice = choose_units(limits.without_layers(gone))
        except UsageError as error:
            if error.id != UNREACHABLE:
                raise
            errors.append(error)  # the speed may be reached without one more layer
            return LayersTry(layers=gone)
        lost = layers.divergence(choice.mask)
        choices[tuple(gone)] = choice
        assert isinstance(choice.search, SpeedSearch)
        timed = delivered(choice.search.tries)
        divergence = lost if timed.met else None
        without = f"without {' and '.join(gone)}" if gone else "with all layers"
        report(
            f"  {without}: divergence {divergence:.4f} at {timed.speedup:.3g} times the speed"
            if divergence is not None
            else f"  {without}: {timed.speedup:.3g} times as fast, less than wanted"
        )
        return LayersTry(
            layers=gone, kept=str(choice.mask), speedup=timed.speedup, divergence=divergence
        )

    stacks = Counter(layer.partition(".")[0] for layer in limits.full.layers())
    tries = climb(stacks, attempt)
    best = min(tries, key=_rank).layers  # the first of equals: no later try keeps more layers
    if not choices:
        raise errors[-1]
    choice = choices[tuple(best)]
    assert isinstance(choice.search, SpeedSearch)
    dropped = f"{' and '.join(best)} dropped" if best else "no layer dropped"
    return replace(
        choice,
        text=f"{choice.text}; {dropped}, the best of {len(tries)} numbers of layers",
        search=choice.search.model_copy(update={"layers": tries}),
    )


def climb(
    layers: Mapping[str, int], attempt: Callable[[Sequence[str], str | None], LayersTry]
) -> list[LayersTry]:
    """All tries in the order in which they were made, until none was better than the best.

    `layers` has each stack's number of layers, one of which stays. `attempt` drops some layers and
    one more of a stack (or no more).
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
