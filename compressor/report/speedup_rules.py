"""Rules about speed-ups: ratios of models that were timed in turn in one run.

Other timings are not comparable, and there are no rules about them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

from compressor.errors import UsageError
from compressor.evaluation import scaled_rows
from compressor.report import facts, phrases
from compressor.report.rule import NUMBER, Bounds, Rule, judge, settled_by, two_digits, worst_of
from compressor.report.schema import Report
from compressor.results import ROUNDING, Outcome, Timing, Variant


@dataclass(frozen=True)
class MinSpeedupRule(Rule):
    """Sentences per second over dense must be at least `ratio`, at one or every batch size."""

    option = "min-speedup"
    needs_timing = True
    ratio: float
    batch_size: int | None = None

    @classmethod
    def parse(cls, value: str) -> Self:
        found = re.fullmatch(rf"\s*({NUMBER})\s*(?:@\s*([0-9]{{1,9}})\s*)?", value, re.ASCII)
        if found is None or float(found[1]) == 0 or (found[2] and int(found[2]) == 0):
            raise UsageError(
                f"--{cls.option} {value!r} is neither RATIO nor RATIO@BATCH with numbers above 0; "
                f"write for example --{cls.option} 1.1@16",
                id="min-speedup-malformed",
            )
        return cls(float(found[1]), int(found[2]) if found[2] else None)

    @property
    def text(self) -> str:
        where = "" if self.batch_size is None else f"@{self.batch_size}"
        return f"{self.ratio:.15g}{where}"

    @property
    def subject(self) -> object:
        return self.batch_size

    def check(self, report: Report, variant: Variant) -> tuple[Outcome, bool]:
        rows = self._rows(report, variant)
        verdicts = [judge(ratio, self.interval(row), self._is_met) for row, ratio in rows]
        worst = worst_of(verdicts)
        shown = [pair for pair, verdict in zip(rows, verdicts, strict=True) if verdict == worst]
        measured = phrases.join([self.measured(row) for row, _ in shown])
        message = f"speed-up {measured}, at least {self.ratio:.15g} required"
        row, ratio = min(shown, key=lambda pair: pair[1])
        interval = self.interval(row)
        enough = None
        if worst == "inconclusive":
            enough = self._runs_to_settle(row.runs, ratio, interval)
            what = f"timed batches instead of {row.runs:,} (--bench-seconds)"
            message += settled_by(enough, what, interval)
        outcome = self.outcome(
            variant, worst, message,
            measured=ratio, limit=self.ratio, interval=interval, enough=enough,
        )  # fmt: skip
        return outcome, all(self._is_met(ratio) for _, ratio in rows)

    def interval(self, row: Timing) -> Bounds:
        """The 95 % interval of a timing's speed-up."""
        return row.speedup_interval

    def measured(self, row: Timing) -> str:
        """A timing's speed-up in words."""
        return f"{phrases.speedup(row)} at batch {row.batch_size}"

    def timings(self, report: Report, variant: Variant) -> list[tuple[Timing, float]]:
        """What was measured of a variant, at most one timing a batch size, with its speed-up."""
        return [(row, row.speedup or 0.0) for row in facts.with_speedup(report, variant)]

    def _is_met(self, ratio: float) -> bool:
        return ratio >= self.ratio - ROUNDING

    def _runs_to_settle(self, runs: int, ratio: float, interval: Bounds) -> int | None:
        if interval is None or not math.isfinite(ratio) or runs < 1:
            return None
        low, high = interval
        width = ratio - low if ratio >= self.ratio else high - ratio
        return two_digits(scaled_rows(runs, width, abs(ratio - self.ratio)))

    def _rows(self, report: Report, variant: Variant) -> list[tuple[Timing, float]]:
        """The timings that the rule limits, with their speed-ups; none of them may be missing."""
        rows = self.timings(report, variant)
        held = {row.batch_size for row, _ in rows}
        wanted = set(facts.batch_sizes(report)) if self.batch_size is None else {self.batch_size}
        if not wanted or not wanted <= held:
            raise self.not_measured(variant, "speed-ups at batch sizes", map(str, sorted(held)))
        return [pair for pair in rows if pair[0].batch_size in wanted]


@dataclass(frozen=True)
class MinFastestSpeedupRule(MinSpeedupRule):
    """The same for the fastest build of a model, over the fastest dense build of any engine.

    Builds count that keep the float32 model's quality, itself, and the one that is delivered.
    """

    option = "min-fastest-speedup"
    needs_engines = True

    def interval(self, row: Timing) -> Bounds:
        return row.fastest_speedup_interval

    def measured(self, row: Timing) -> str:
        found = phrases.ratio(row.fastest_speedup, row.fastest_speedup_interval)
        return f"{found} at batch {row.batch_size} ({row.variant} over {row.fastest})"

    def timings(self, report: Report, variant: Variant) -> list[tuple[Timing, float]]:
        best: dict[int, tuple[Timing, float]] = {}
        for build in facts.builds(report, variant):
            base = build.name == build.family
            if not (base or build.name == variant.name or facts.keeps_quality(build)):
                continue
            for row in facts.timings(report, build.name):
                ratio = row.fastest_speedup
                known = best.get(row.batch_size)
                if ratio is not None and (known is None or ratio > known[1]):
                    best[row.batch_size] = row, ratio
        return [best[size] for size in sorted(best)]
