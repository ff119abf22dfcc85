"""From scores to a mask: exactly as many units as were asked for.

A budget is written `0.5` (a fraction), `36` (a count) or per kind, `encoder_self=0.3,cross=0.8`;
kinds that are not named keep all their heads. Floors say how many heads every layer must keep.
Budgets of another sort name a speed-up or a drop in quality; how many heads that means is measured
(`compressor.budgets.speed`, `compressor.budgets.quality`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from compressor.errors import UsageError, did_you_mean
from compressor.model.sublayers import KINDS, Mask, Scores, kind_of

ALL = "all"
Floors = Mapping[str, int]  # kind -> least number of units in each of its sublayers


@dataclass(frozen=True)
class Budget:
    """How many units to keep: per kind, or of all kinds together (`{"all": n}`)."""

    measured: ClassVar[bool] = False  # whether measurements, not `keep`, say how many heads stay

    text: str  # as the user wrote it, for example `keep 0.5`
    keep: Mapping[str, int]

    @property
    def slug(self) -> str:
        """Name of the variant's directory when a run has several budgets."""
        return self.text.replace(" ", "-").replace("=", "-").replace(",", "-").replace("%", "pct")


@dataclass(frozen=True)
class SpeedBudget(Budget):
    """What makes the model `speedup` times as fast at one batch size; `keep` is empty."""

    measured: ClassVar[bool] = True

    speedup: float
    at_batch: int

    @classmethod
    def of(cls, speedup: float, at_batch: int) -> SpeedBudget:
        """The budget of `--speedup` and `--at-batch`."""
        return cls(f"speedup {speedup:.15g} at batch {at_batch}", {}, speedup, at_batch)


@dataclass(frozen=True)
class QualityBudget(Budget):
    """As few heads as cost no more than `drop` of the main metric; `keep` is empty."""

    measured: ClassVar[bool] = True

    drop: float

    @classmethod
    def of(cls, drop: float) -> QualityBudget:
        """The budget of a `--max-drop` that is a plain number."""
        return cls(f"max-drop {drop:.15g}", {}, drop)


def is_number(text: str) -> bool:
    """Whether a value of `--max-drop` is a plain number, hence a budget and not a rule."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_budget(mode: Literal["keep", "remove"], text: str, full: Mask) -> Budget:
    """Read `--keep` or `--remove` for a model with the heads of `full`.

    Raises:
        UsageError: not a number, out of range, or a kind of attention the model does not have.
    """
    keep = {}
    for kind, amount in _parts(text, full, f"--{mode}").items():
        total = full.total(None if kind == ALL else kind)
        count = _count(amount, total, f"--{mode} {text}")
        keep[kind] = count if mode == "keep" else total - count
    return Budget(f"{mode} {text}", keep)


def parse_floors(text: str, full: Mask) -> dict[str, int]:
    """Read `--floor`: `1`, or per kind `cross=2,encoder_self=0`. Kinds not named get 1."""
    floors = dict.fromkeys(full.kinds(), 1)
    for kind, amount in _parts(text, full, "--floor").items():
        if not amount.isdecimal():
            raise UsageError(
                f"--floor {text}: {amount!r} is not a number of heads; write --floor 1, or "
                "--floor cross=2",
                id="floor-invalid",
            )
        floors.update(dict.fromkeys(full.kinds() if kind == ALL else [kind], int(amount)))
    return floors


def _parts(text: str, full: Mask, option: str) -> dict[str, str]:
    if "=" not in text:
        return {ALL: text.strip()}
    parts: dict[str, str] = {}
    for part in text.split(","):
        kind, equals, amount = (piece.strip() for piece in part.partition("="))
        if not equals or kind in parts:
            raise UsageError(
                f"{option} {text}: write one KIND=AMOUNT for each kind, as in "
                f"{option} encoder_self=0.3,cross=0.8",
                id="budget-invalid",
            )
        if kind not in full.kinds():
            there = ", ".join(full.kinds())
            known = "the model has no" if kind in KINDS else "there is no"
            raise UsageError(
                f"{option} {text}: {known} attention {kind!r}; it has {there}"
                + did_you_mean(kind, full.kinds()),
                id="kind-unknown",
            )
        parts[kind] = amount
    return parts


def _count(amount: str, total: int, where: str) -> int:
    """A count, or a fraction of `total` rounded to the nearest head (0.5 rounds up)."""
    try:
        if amount.isdecimal():
            count = int(amount)
        else:
            number = float(amount.rstrip("%")) / (100 if amount.endswith("%") else 1)
            if not 0 <= number <= 1:
                raise ValueError
            count = int(number * total + 0.5)
    except ValueError as error:
        raise UsageError(
            f"{where}: {amount!r} is neither a fraction (0.5, 50%) nor a number of heads (36)",
            id="budget-invalid",
        ) from error
    if count > total:
        raise UsageError(
            f"{where}: there are only {total} heads; ask for at most that", id="budget-too-large"
        )
    return count


def fewest_units(full: Mask, floors: Floors, kind: str = ALL) -> int:
    """How many units the floors demand, of one kind or of all."""
    return sum(
        min(len(flags), floors[kind_of(name)])
        for name, flags in full.keep.items()
        if kind in (ALL, kind_of(name))
    )


def check_possible(budget: Budget, floors: Floors, full: Mask) -> None:
    """Raise `UsageError` if the floors make the budget impossible; says how many are needed."""
    if budget.measured and fewest_units(full, floors) == full.total():
        raise UsageError(
            f"{budget.text}: the floors keep all {full.total()} heads; lower --floor",
            id="floors-too-high",
        )
    for kind, wanted in budget.keep.items():
        needed = fewest_units(full, floors, kind)
        if wanted < needed:
            names = [name for name in full.keep if kind in (ALL, kind_of(name))]
            of = "" if kind == ALL else f" of {kind}"
            raise UsageError(
                f"{budget.text} leaves {wanted} heads{of}, but the floors of its {len(names)} "
                f"layers need {needed}; keep more, or lower --floor (0 lets a layer lose all)",
                id="floors-too-high",
            )


def select(scores: Scores, mask: Mask, keep: Mapping[str, int], floors: Floors) -> Mask:
    """Remove the least important units of `mask` until exactly `keep` are left.

    Args:
        keep: kept units per kind, or of all kinds together under `all`.
        floors: least number of units in each sublayer of a kind.
    """
    counts = mask.counts()
    excess = {kind: mask.count(None if kind == ALL else kind) - n for kind, n in keep.items()}
    removed = []
    for name, unit in scores.ascending():
        pool = ALL if ALL in excess else kind_of(name)
        if not mask.keep[name][unit] or excess.get(pool, 0) <= 0:
            continue
        if counts[name] > floors[kind_of(name)]:
            counts[name] -= 1
            excess[pool] -= 1
            removed.append((name, unit))
    return mask.without(removed)


def step_targets(full: Mask, budget: Budget, steps: int) -> list[dict[str, int]]:
    """Units to keep after each of some equal steps to a budget; steps without effect are left out.

    Returns:
        Per step the kept units per kind, as in `Budget.keep`; at least one step.
    """
    pools = {kind: None if kind == ALL else kind for kind in budget.keep}
    targets = []
    left = {kind: full.total(pool) for kind, pool in pools.items()}
    for step in range(1, steps + 1):
        wanted = {
            kind: full.total(pool) - round((full.total(pool) - budget.keep[kind]) * step / steps)
            for kind, pool in pools.items()
        }
        if wanted != left:
            targets.append(wanted)
        left = wanted
    return targets or [left]


def latest_scores(old: Scores, new: Scores, mask: Mask) -> Scores:
    """New scores of the units that `mask` keeps, the old ones of those that are gone."""
    values = {
        name: tuple(
            n if keep else o
            for o, n, keep in zip(old.values[name], new.values[name], mask.keep[name], strict=True)
        )
        for name in new.values
    }
    cost = {key: old.cost[key] + new.cost[key] for key in new.cost}
    return Scores(values, new.method, new.signature, cost)
