"""What a run is asked for, resolved, and the artifacts that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from compressor.budgets import Budget, Limits
from compressor.errors import UsageError
from compressor.importance import UnitMethod
from compressor.model.location import checkpoint_files
from compressor.options.parts import options_of
from compressor.progress import SILENT, Progress
from compressor.recovery import RecoveryMethod, earlier_artifact, extra_text
from compressor.report.rule import Rule
from compressor.request.recipe import as_yaml
from compressor.request.sections import Benchmark, Card, Data, Gate, ModelSection, RunEvaluation
from compressor.results import Inconclusive
from compressor.storage.hashes import fingerprint, sha256_of
from compressor.storage.version import __version__


@dataclass(frozen=True)
class ArtifactPlan:
    """One budget and where its artifact goes.

    Args:
        budget: of this artifact alone.
        action: what choosing its units means, for messages.
    """

    name: str
    budget: Budget
    directory: Path
    action: str


@dataclass(frozen=True)
class RunPlan:
    """What a run is asked for.

    Args:
        precision: names, as given.
        engines: to export for.
        source_text: texts like those that an encoder will read; it keeps their tokens.
        target_text: text in the target language; its tokens are those that decoders score.
        throughput: how speed is measured; None where it is not.
        card: what the model cards say.
        rules: of the gate.
        options: all by name, as in a recipe file.
    """

    model: ModelSection
    data: Data
    method: UnitMethod
    budget: Budget
    recovery: Sequence[RecoveryMethod]
    precision: Sequence[str]
    engines: Sequence[str]
    source_text: Path | None
    target_text: Path | None
    evaluation: RunEvaluation
    throughput: Benchmark | None
    card: Card
    rules: Sequence[Rule]
    inconclusive: Inconclusive
    seed: int
    device: str
    options: Mapping[str, Any]

    def with_recovery(self, steps: Sequence[RecoveryMethod]) -> RunPlan:
        """The same with the options of a repair more resolved."""
        options = dict(self.options)
        for step in steps:
            options |= options_of(step)
        return replace(self, recovery=steps, options=options)

    def to_yaml(self, budget: Budget | None = None) -> str:
        """The recipe with all options: of the run, or of the artifact with one of its budgets."""
        own = {} if budget is None else options_of(budget)
        return as_yaml({**self.options, **own})

    def identity(
        self,
        device: str,
        weights: list[Path],
        rows: Mapping[str, str | None],
        progress: Progress = SILENT,
    ) -> dict[str, Any]:
        """What must be the same for a stopped run to go on: options, and all inputs' fingerprints.

        Args:
            weights: the files of the checkpoint.
            rows: what rows are for -> their SHA-256.
        """
        free = {*Card.model_fields, *Gate.model_fields, "verify"}
        extra, start = extra_text(self.recovery), earlier_artifact(self.recovery)
        texts = {
            "source": self.source_text,
            "target": self.target_text,
            "distill": extra and extra.path,
        }
        return {
            **{name: value for name, value in self.options.items() if name not in free},
            "device": device,
            "version": __version__,
            "weights": fingerprint(weights),
            "start_weights": start and fingerprint(checkpoint_files(start)),
            **{f"{name}_sha256": digest for name, digest in rows.items()},
            **{
                f"{name}_text_sha256": text
                and sha256_of(text, partial(progress.update, f"MiB of {text.name} hashed"))
                for name, text in texts.items()
            },
        }


def plan_artifacts(plan: RunPlan, limits: Limits, output: Path) -> list[ArtifactPlan]:
    """One plan for each budget; several get a directory below `output` each.

    Raises:
        UsageError: the same budget twice, or one that the model or the method cannot meet.
    """
    budgets: Sequence[Budget] = plan.budget.each()
    names = [budget.slug for budget in budgets]
    if len(set(names)) < len(names):
        raise UsageError(
            f"the same budget is asked for twice: {', '.join(b.text for b in budgets)}",
            id="budget-twice",
        )
    method = plan.method
    for budget in budgets:
        budget.require_possible(limits)
        if method.learns:
            keep, _ = budget.to_learn(limits.full)
            method.check_size(keep or {}, limits.full)
    method.check_units(limits.units)
    alone, learned_by = len(budgets) == 1, method.name if method.learns else ""
    return [
        ArtifactPlan(name, budget, output if alone else output / name, budget.action(learned_by))
        for name, budget in zip(names, budgets, strict=True)
    ]
