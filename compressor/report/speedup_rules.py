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
from compressor.report import facts, numbers, phrases
from compressor.report.rule import NUMBER, Bounds, Rule, judge, settled_by, worst_of
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
        match = re.fullmatch(rf"\s*({NUMBER})\s*(?:@\s*([0-9]{{1,9}})\s*)?", value, re.ASCII)
        if match is None or float(match[1]) == 0 or (match[2] and int(match[2]) == 0):
            raise UsageError(
                f"--{cls.option} {value!r} is neither RATIO nor RATIO@BATCH with numbers above 0; "
                f"write for example --{cls.option} 1.1@16",
                id="min-speedup-malformed",
            )
        return cls(float(match[1]), int(match[2]) if match[2] else None)

    @property
    def text(self) -> str:
        where = "" if self.batch_size is None else f"@{self.batch_size}"
        return f"{self.ratio:.15g}{where}"

    @property
    def subject(self) -> object:
        return self.batch_size

    def check(self, report: Report, variant: Variant) -> tuple[Outcome, bool]:
        timings = self.timings(report, variant)
        held = {row.batch_size for row, _ in timings}
        wanted = set(facts.batch_sizes(report)) if self.batch_size is None else {self.batch_size}
        if not wanted or not wanted <= held:
            raise self.not_measured(variant, "speed-ups at batch sizes", map(str, sorted(held)))
        rows = [pair for pair in timings if pair[0].batch_size in wanted]
        verdicts = [judge(ratio, self.interval(row), self._is_met) for row, ratio in rows]
        worst = worst_of(verdicts)
        shown = [pair for pair, verdict in zip(rows, verdicts, strict=True) if verdict == worst]
        measured = phrases.join([self.measured(row) for row, _ in shown])
        message = f"speed-up {measured}, at least {self.ratio:.15g} required"
        row, ratio = min(shown, key=lambda pair: pair[1])
        interval, enough = self.interval(row), None
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
        """Timings of a variant with their speed-ups, at most one per batch size."""
        return [(row, row.speedup or 0.0) for row in facts.with_speedup(report, variant)]

    def _is_met(self, ratio: float) -> bool:
        return ratio >= self.ratio - ROUNDING

    def _runs_to_settle(self, runs: int, ratio: float, interval: Bounds) -> int | None:
        if interval is None or not math.isfinite(ratio) or runs < 1:
            return None
        low, high = interval
        width = ratio - low if ratio >= self.ratio else high - ratio
        return numbers.two_digits_up(scaled_rows(runs, width, abs(ratio - self.ratio)))


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
        ratio = phrases.ratio(row.fastest_speedup, row.fastest_speedup_interval)
        return f"{ratio} at batch {row.batch_size} ({row.variant} over {row.fastest})"

    def timings(self, report: Report, variant: Variant) -> list[tuple[Timing, float]]:
        best: dict[int, tuple[Timing, float]] = {}
        for build in facts.builds(report, variant):
            if build.name not in (build.family, variant.name) and not facts.keeps_quality(build):
                continue
            for row in facts.timings(report, build.name):
                ratio = row.fastest_speedup
                known = best.get(row.batch_size)
                if ratio is not None and (known is None or ratio > known[1]):
                    best[row.batch_size] = row, ratio
        return [best[size] for size in sorted(best)]
