"""Quality of smaller models, for a budget that searches by it: built, run, compared with dense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compressor import evaluation, parallel
from compressor.budgets.max_drop import is_within
from compressor.budgets.removal_path import PathCut
from compressor.evaluation.answers import answers
from compressor.evaluation.models import answer_rows, source_of
from compressor.export.exported import export_saved
from compressor.export.saved import save_model
from compressor.model.sublayers import Scores
from compressor.recovery.planning import RecoveryPlan
from compressor.recovery.pruned import prune_units, recover_units
from compressor.selection.values import ArtifactPlan, Measuring, Prunable
from compressor.steps.context import Context
from compressor.steps.results import Comparison, QualityCandidate, Source
from compressor.steps.values import ChosenUnits, DecoderTokens, Exported
from compressor.tasks import Rows


@dataclass(frozen=True)
class CandidateAnswers:
    """Answers of a smaller model to the rows of the search and to those that are held out."""

    searched: list[str]
    held_out: list[str]  # empty if the measured drop is too large to go on with


class RunJudge:
    """Builds smaller models and compares their answers with the dense one's (`budgets.Judge`)."""

    def __init__(
        self,
        artifact: ArtifactPlan,
        recovery: RecoveryPlan,
        scored: DecoderTokens,
        dense: Exported,
        measuring: Measuring,
        opened: Prunable,
        context: Context,
    ) -> None:
        """Let the dense model answer both parts of the test rows.

        Args:
            artifact: whose budget says how much may be lost.
            recovery: of candidates.
            scored: tokens that decoders of candidates score.
            dense: the exported dense model.
            measuring: how answers are made and compared.
            opened: the model, and its rows.
            context: how to compute.

        Raises:
            InputError: the rows can show no loss: the dense model is as good at them as chance is.
        """
        budget, data = artifact.budget, opened.data
        assert data.search is not None
        assert data.test is not None
        assert budget.allowed_drop is not None
        self._artifact = artifact
        self._recovery = recovery
        self._scored = scored
        self._measuring = measuring
        self._opened = opened
        self._context = context
        self._searched = data.search
        self._held_out = data.test
        self._drop = budget.allowed_drop
        beams = measuring.beams
        self._dense_answers: list[list[str]] = []  # to the searched rows, to the held-out ones
        for rows, what in ((self._searched, "rows to search on"), (self._held_out, "rows")):
            texts = answer_rows(dense, rows, beams, context, what)
            # A drop of the whole scale can be seen by any model.
            if self._drop < evaluation.METRICS[self.metric].scale:
                evaluation.require_above_chance(rows, texts, budget.flag_text)
            self._dense_answers.append(texts)

    @property
    def rows(self) -> Source:
        """See `Judge`."""
        return source_of(self._searched)

    @property
    def held_out(self) -> int:
        """See `Judge`."""
        return self._held_out.count

    @property
    def metric(self) -> str:
        """See `Judge`."""
        return evaluation.metrics_of(self._searched)[0]

    def least_provable_drop(self, error: float) -> float:
        """See `Judge`."""
        reference = self._dense_answers[0]
        return -self._bound(self._searched, reference, reference, 0.0, error)[0]

    def candidate(
        self, cut: PathCut, scores: Scores, error: float, *, held_out: bool
    ) -> QualityCandidate:
        """See `Judge`."""
        found = self._try(cut, scores)
        rows, outputs = self._searched, found.searched
        if held_out:
            rows, outputs = self._held_out, found.held_out
        reference = self._dense_answers[held_out]
        bound, needed = self._bound(rows, reference, outputs, self._drop, error)
        resamples = self._measuring.resamples
        return QualityCandidate(
            kept=cut.mask.count("heads"),
            neurons=cut.mask.count("neurons"),
            handed_on=list(cut.mask.handed_on()),
            macs=cut.macs,
            position=cut.position,
            comparison=compare_main(rows, reference, outputs, resamples, self._context.seed),
            bound=bound,
            confidence=1 - error,
            rows_needed=needed,
            accepted=False,
        )

    def _try(self, cut: PathCut, scores: Scores) -> CandidateAnswers:
        how, answers = self._recovery, self._dense_answers[0]
        inputs = self._artifact, cut, scores, how, self._scored, answers, self._measuring
        return self._context.steps.do(
            try_cut,
            *inputs,
            title=f"trying {cut.mask} on {self._searched.count} rows",
            shared=True,
            opened=self._opened,
            context=self._context,
        )

    def _bound(
        self, rows: Rows, reference: list[str], outputs: list[str], drop: float, error: float
    ) -> tuple[float, int | None]:
        """The lower confidence bound of a difference, and the rows that would prove the drop."""
        bound = evaluation.lower_bound(
            evaluation.metrics_for(rows)[0],
            rows.judged(reference),
            rows.judged(outputs),
            rows.references,
            limit=drop,
            alpha=error,
            resamples=self._measuring.resamples,
            seed=self._context.seed,
        )
        counted, _ = rows.counted  # of ranked rows the bound counts queries
        needed = None if bound.rows is None else math.ceil(bound.rows * rows.count / counted)
        return bound.value, needed


def try_cut(
    artifact: ArtifactPlan,
    cut: PathCut,
    scores: Scores,
    recovery: RecoveryPlan,
    scored: DecoderTokens,
    reference: Sequence[str],
    measuring: Measuring,
    *,
    opened: Prunable,
    context: Context,
) -> CandidateAnswers:
    """Build a smaller model as it would be delivered, and let it answer the rows.

    Args:
        artifact: whose budget says how much may be lost.
        cut: the units that are kept.
        scores: of all units.
        recovery: how weights are recovered.
        scored: tokens that decoders score.
        reference: the dense model's answers to the rows of the search.
        measuring: how answers are made and compared.
        opened: the model, and its rows.
        context: how to compute.
    """
    data, source = opened.data, opened.source
    assert data.search is not None
    assert data.test is not None
    assert artifact.budget.allowed_drop is not None
    beams, resamples = measuring.beams, measuring.resamples
    chosen = ChosenUnits(artifact.name, artifact.budget.text, cut.mask, scores)
    with context.steps.staging() as staged:
        directory = staged / "artifact"
        pruned = parallel.on_main(lambda: prune_units(chosen, opened=source))
        recovered = recover_units(
            pruned, recovery, directory=staged, opened=source, context=context
        )
        saved = parallel.on_main(
            lambda: save_model(recovered, directory=directory, opened=source, context=context)
        )
        costs = opened.costs
        parallel.on_main(
            lambda: export_saved(saved, scored, directory=directory, opened=source, costs=costs)
        )
        searched = answers(directory, data.search, context.device, beams, context.progress)
        held_out: list[str] = []
        compared = compare_main(data.search, reference, searched, resamples, context.seed)
        if is_within(compared, artifact.budget.allowed_drop):
            held_out = answers(directory, data.test, context.device, beams, context.progress)
    return CandidateAnswers(searched, held_out)


def compare_main(
    rows: Rows, reference: Sequence[str], outputs: Sequence[str], resamples: int, seed: int
) -> Comparison:
    """Answers beside the dense model's by the metric that counts."""
    name = evaluation.metrics_of(rows)[0]
    compared = evaluation.compare_rows(rows, reference, outputs, resamples, seed)
    return next(x for x in compared if x.metric == name)
