"""Smaller models for `--max-drop`: built, run on test rows, and compared with the dense one.

How far to cut is decided in `compressor.budgets.max_drop`. Half of the test rows are searched on;
the others, which all final figures are measured on, confirm what the search found. Every candidate
is a stage of its own, from which a stopped run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compressor.budgets import Choice
from compressor.budgets.max_drop import within
from compressor.budgets.path import PathCut
from compressor.evaluation import (
    METRICS,
    compare_rows,
    lower_bound,
    metrics_for,
    metrics_of,
    require_sight,
)
from compressor.evaluation.answers import answers
from compressor.model.sublayers import Scores
from compressor.pipeline.evaluate import Answering, answer_rows, answer_search_rows
from compressor.pipeline.inputs import source_of
from compressor.pipeline.stages import stage
from compressor.request.plan import ArtifactPlan
from compressor.results import QualityProbe, ResultModel, Source, Variant
from compressor.storage.workspace import Workspace
from compressor.tasks import Rows

# Builds the artifact of a choice in a directory, as it would be delivered.
BuildArtifact = Callable[[ArtifactPlan, Choice, Path], Variant]


@dataclass(frozen=True)
class Judge:
    """Builds smaller models and compares their answers with the dense model's.

    Args:
        search: the rows to search on.
        held_out: the test rows that no candidate is chosen by.
        dense: the exported dense model.
        resamples: of the bootstrap.
    """

    workspace: Workspace
    search: Rows
    held_out: Rows
    dense: Variant
    build: BuildArtifact
    answering: Answering
    resamples: int
    seed: int

    @property
    def metric(self) -> str:
        """The metric that counts."""
        return metrics_of(self.search)[0]

    def described(self) -> tuple[Source, int, str]:
        """The rows to search on, how many are held out, and the metric."""
        return source_of(self.search), self.held_out.count, self.metric

    def require_sight(self, asked: str, drop: float) -> None:
        """See `Trials`; a drop of the whole scale needs none."""
        if drop >= METRICS[self.metric].scale:
            return
        held_out = answer_rows(self.workspace, self.dense, self.held_out, self.answering)
        for rows, answered in ((self.search, self._searched()), (self.held_out, held_out)):
            require_sight(rows, answered, asked)

    def _searched(self) -> list[str]:
        """The dense model's answers to the rows of the search."""
        return answer_search_rows(self.workspace, self.dense, self.search, self.answering)

    def least_provable_drop(self, error: float) -> float:
        """The drop that a model without one changed answer to the searched rows can just prove."""
        reference = self._searched()
        return -self._bound(self.search, reference, reference, 0.0, error)[0]

    def judge(
        self, plan: ArtifactPlan, scores: Scores, cut: PathCut, drop: float, error: float
    ) -> QualityProbe:
        """Build a model and compare its answers to the rows of the search."""
        return _candidate(self.workspace, self, plan, scores, cut, drop, error).probe

    def judge_held_out(
        self, plan: ArtifactPlan, scores: Scores, cut: PathCut, drop: float, error: float
    ) -> QualityProbe:
        """Compare the answers of a model that was built to the held-out rows."""
        candidate = _candidate(self.workspace, self, plan, scores, cut, drop, error)
        reference = answer_rows(self.workspace, self.dense, self.held_out, self.answering)
        return self.compare(self.held_out, reference, candidate.held_out, cut, drop, error)

    def compare(
        self,
        rows: Rows,
        reference: list[str],
        outputs: list[str],
        cut: PathCut,
        drop: float,
        error: float,
    ) -> QualityProbe:
        """A candidate's answers beside the dense model's, by a bound of this one-sided error."""
        comparisons = compare_rows(rows, reference, outputs, self.resamples, self.seed)
        bound, needed = self._bound(rows, reference, outputs, drop, error)
        return QualityProbe(
            kept=cut.mask.count("heads"),
            neurons=cut.mask.count("neurons"),
            macs=cut.macs,
            position=cut.position,
            comparison=next(x for x in comparisons if x.metric == self.metric),
            bound=bound,
            confidence=1 - error,
            rows_needed=needed,
            accepted=False,
        )

    def _bound(
        self, rows: Rows, reference: list[str], outputs: list[str], drop: float, error: float
    ) -> tuple[float, int | None]:
        found = lower_bound(
            metrics_for(rows)[0], rows.judged(reference), rows.judged(outputs), rows.references,
            limit=drop, alpha=error, resamples=self.resamples, seed=self.seed,
        )  # fmt: skip
        counted, _ = rows.counted  # of ranked rows the bound counts queries
        needed = None if found.rows is None else math.ceil(found.rows * rows.count / counted)
        return found.value, needed


class JudgedCandidate(ResultModel):
    """A candidate judged on the rows of the search, and what it answers to the held-out rows.

    Args:
        held_out: answers; empty if the measured drop is too large to go on with.
    """

    probe: QualityProbe
    held_out: list[str]


@stage("candidate")
def _candidate(
    workspace: Workspace,
    judge: Judge,
    plan: ArtifactPlan,
    scores: Scores,
    cut: PathCut,
    drop: float,
    error: float,
) -> JudgedCandidate:
    """Build a smaller model as it would be delivered, let it answer the rows, compare it."""
    device, beams = judge.answering.device, judge.answering.num_beams
    name = f"candidate-{cut.position}"
    with workspace.staging() as staged:
        directory = staged / "artifact"
        candidate = ArtifactPlan(f"{plan.name}-{name}", plan.budget, directory, plan.action)
        judge.build(candidate, Choice(cut.mask, scores), directory)
        outputs = answers(directory, judge.search, device, beams, workspace.progress)
        reference = answer_search_rows(workspace, judge.dense, judge.search, judge.answering)
        probe = judge.compare(judge.search, reference, outputs, cut, drop, error)
        if not within(probe, drop):
            return JudgedCandidate(probe=probe, held_out=[])
        outputs = answers(directory, judge.held_out, device, beams, workspace.progress)
    return JudgedCandidate(probe=probe, held_out=outputs)
