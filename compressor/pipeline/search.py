"""Which units go: a budget chooses by scores and by candidates it evaluates, or a mask is learned.

Every evaluation is a step of its own, from which a stopped search goes on. For `--max-drop` half of
the test rows are searched on; the others, which all final figures are measured on, confirm the
result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from compressor import parallel
from compressor.budgets import Choice, Evaluator, Limits
from compressor.budgets.base import Cut
from compressor.budgets.cost_table import trial_mask
from compressor.budgets.max_drop import within
from compressor.budgets.units import PathCut, UnitCosts, latest_scores
from compressor.evaluation import (
    METRICS,
    compare_rows,
    lower_bound,
    metrics_for,
    metrics_of,
    require_sight,
)
from compressor.evaluation.answers import answers
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import precision_timed
from compressor.importance.ablation_runs import divergence
from compressor.learned_masks import LearnedMask, LearningJob
from compressor.learned_masks import learn as learn_mask
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.surgery import prune, restore_shape
from compressor.pipeline.build import keep_weights
from compressor.pipeline.evaluate import answer_rows
from compressor.pipeline.recover import recover
from compressor.pipeline.score import find_layers, score
from compressor.pipeline.setup import ArtifactPlan, RunSetup, source_of
from compressor.pipeline.time_masks import time_masks
from compressor.report.searches import unproven
from compressor.results import (
    QualityCandidate,
    QualitySearch,
    ResultModel,
    Source,
    Throughput,
    Timing,
    Variant,
)
from compressor.steps import Steps
from compressor.tasks import Rows

_CHOICE = "choice"


class CandidateAnswers(ResultModel):
    """Answers of a smaller model to the rows of the search and to those that are held out.

    Args:
        held_out: empty if the measured drop is too large to go on with.
    """

    searched: list[str]
    held_out: list[str]


@dataclass(frozen=True)
class RunEvaluator:
    """Scores, times and evaluates candidates for the budget of one artifact.

    See `compressor.budgets.base.Evaluator` for the methods that budgets call.

    Args:
        dense: the exported dense model.
        build: makes the model of a choice, as it would be delivered, with a name in a directory.
        dropped: layers that a candidate drops.
    """

    steps: Steps
    setup: RunSetup
    artifact: ArtifactPlan
    dense: Variant
    build: Callable[[str, Choice, Path], None]
    dropped: Sequence[str] = ()

    @property
    def sha256(self) -> str:
        return self.setup.sha256

    @property
    def limits(self) -> Limits:
        limits = self.setup.limits
        return replace(limits, dropped=limits.dropped.union(self.dropped))

    @property
    def costs(self) -> UnitCosts:
        return self.setup.costs

    def message(self, text: str) -> None:
        self.steps.progress.message(text)

    def scores(self) -> Scores:
        full = Mask.full(self.setup.sublayers)
        names = sorted({units_of(kind) for kind in full.kinds()})
        units = " and ".join(f"{full.total(name):,} {name}" for name in names)
        title = f"scoring {units} with {self.setup.recipe.method.name}"
        return self.steps.do(score, self.limits.start, title=title, shared=True, **self._scoring)

    @property
    def _scoring(self) -> dict[str, Any]:
        setup, recipe = self.setup, self.setup.recipe
        return {
            "source": setup.source, "method": recipe.method, "sublayers": setup.sublayers,
            "seed": recipe.seed, "device": setup.device, "progress": self.steps.progress,
        }  # fmt: skip

    def cut_in_steps(self, cuts: Sequence[Cut]) -> Choice:
        setup, scores = self.setup, self.scores()
        first, *later = cuts
        recovers = bool(later) and bool(setup.recipe.recovery)
        layers, dense = setup.source.checkpoint.layers, setup.source.checkpoint.model
        mask, model = first(scores, self.limits.start), dense
        for number, cut in enumerate(later, 1):
            if recovers:
                # The next scores need the dense model's shape, in which masks name units.
                pruned = prune(model, layers, mask)
                recovered = recover(
                    setup.recipe.recovery, setup.source, pruned, mask, seed=setup.recipe.seed,
                    device=setup.device, progress=self.steps.progress, text=setup.text,
                    state=self.steps.scratch / f"recovery-step-{number}.safetensors",
                )  # fmt: skip
                model = restore_shape(dense, recovered.model, layers, mask)
            latest = score(mask, model=model, **self._scoring)
            scores = latest_scores(scores, latest, mask)
            mask = cut(latest, mask)
        weights = "" if model is dense else keep_weights(self.steps, self.artifact.name, model)
        text = f"{self.artifact.budget.scorings} steps, recovered after each" if recovers else ""
        return Choice(mask, scores, text, weights=weights)

    def time_units(self, kinds: Sequence[str], counts: Sequence[int], at_batch: int) -> Throughput:
        numbers = ", ".join(map(str, counts))
        title = f"timing sublayers of {'+'.join(kinds)} with {numbers} units"
        return self.steps.do(self._time_units, kinds, counts, at_batch, title=title)

    def _time_units(self, kinds: Sequence[str], counts: Sequence[int], at_batch: int) -> Throughput:
        full, name = Mask.full(self.setup.source.checkpoint.layers), "+".join(kinds)
        masks = {f"{name}={count}": trial_mask(full, kinds, count) for count in counts}
        return self._time(masks, at_batch)

    def time_mask(self, mask: Mask, number: int, at_batch: int) -> Timing:
        title = f"timing a choice of {mask} (try {number})"
        return self.steps.do(self._time_mask, mask, number, at_batch, title=title)

    def _time_mask(self, mask: Mask, number: int, at_batch: int) -> Timing:
        timed = self._time({_CHOICE: mask}, at_batch)
        return next(row for row in timed.rows if row.variant == _CHOICE)

    def _time(self, masks: Mapping[str, Mask], at_batch: int) -> Throughput:
        setup = self.setup
        assert setup.recipe.throughput is not None
        with self.steps.staging() as folder:
            return time_masks(
                masks, at_batch, checkpoint=setup.source.checkpoint,
                dense=Path(self.dense.directory), rows=setup.data.timed,
                settings=setup.recipe.throughput, device=setup.device, folder=folder,
                progress=self.steps.progress,
                engine=setup.recipe.budget.timed_engine or ONNXRUNTIME,
                precision=precision_timed(setup.precisions, setup.device),
            )  # fmt: skip

    def layer_to_drop(self, stack: str, dropped: Sequence[str]) -> str:
        title = f"finding the next layer to drop: {','.join([*dropped, stack])}"
        chosen = self.steps.do(
            find_layers, {stack: 1}, dropped, title=title, shared=True, source=self.setup.source,
            device=self.setup.device, progress=self.steps.progress,
        )  # fmt: skip
        return next(iter(chosen))

    def try_layers(
        self, dropped: Sequence[str], choose: Callable[[Evaluator], Choice]
    ) -> tuple[Choice, float]:
        choice = choose(replace(self, dropped=dropped))
        title = f"trying without layers: {','.join(dropped) or 'none'}"
        lost = self.steps.do(self._divergence, choice.mask, title=title, shared=True)
        return choice, lost

    def _divergence(self, mask: Mask) -> float:
        """Divergence from the dense model on held-out rows, in nats per loss term.

        The pruned model is recovered on the other rows, without training: that would take as long
        as the run's own for every number of layers.
        """
        from compressor.training.data import hold_out

        source, device, seed = self.setup.source, self.setup.device, self.setup.recipe.seed
        dense, layers = source.checkpoint.model, source.checkpoint.layers
        learn, held = hold_out(source.examples, seed)
        methods = [method for method in self.setup.recipe.recovery if not method.trains]
        recovered = recover(
            methods, replace(source, examples=learn), prune(dense, layers, mask), mask, seed=seed,
            device=device, progress=self.steps.progress,
        ).model  # fmt: skip
        batches = source.task.batches(parallel.shard(held), dense)
        try:
            return divergence(recovered.to(device), dense.to(device), batches, source.task, device)
        finally:
            dense.to("cpu")

    def require_sight(self, asked: str, drop: float) -> None:
        if drop < METRICS[self._metric].scale:  # a drop of the whole scale needs no sight
            for rows in (self.searched, self.held_out):
                require_sight(rows, self._reference(rows), asked)

    def least_provable_drop(self, error: float) -> float:
        reference = self._reference(self.searched)
        return -self._bound(self.searched, reference, reference, 0.0, error)[0]

    def search_rows(self) -> tuple[Source, int, str]:
        return source_of(self.searched), self.held_out.count, self._metric

    def warn_if_unproven(self, search: QualitySearch) -> None:
        warning = unproven(search)
        if warning:
            self.message(f"warning: {warning}")

    def judge(self, cut: PathCut, drop: float, error: float) -> QualityCandidate:
        return self._compare(self.searched, self._try(cut, drop).searched, cut, drop, error)

    def judge_held_out(self, cut: PathCut, drop: float, error: float) -> QualityCandidate:
        return self._compare(self.held_out, self._try(cut, drop).held_out, cut, drop, error)

    def _try(self, cut: PathCut, drop: float) -> CandidateAnswers:
        title = f"trying {cut.mask} on {self.searched.count} rows"
        scores = self.scores()
        return self.steps.do(self._try_cut, cut, scores, drop, title=title, shared=True)

    def _try_cut(self, cut: PathCut, scores: Scores, drop: float) -> CandidateAnswers:
        """Build a smaller model as it would be delivered, and let it answer the rows."""
        device, progress = self.setup.device, self.steps.progress
        beams = self.setup.recipe.evaluation.num_beams
        with self.steps.staging() as staged:
            directory = staged / "artifact"
            name = f"{self.artifact.name}-candidate-{cut.position}"
            self.build(name, Choice(cut.mask, scores), directory)
            searched = answers(directory, self.searched, device, beams, progress)
            held_out: list[str] = []
            # The measured drop is the same for every error of the bound.
            if within(self._compare(self.searched, searched, cut, drop, 0.5), drop):
                held_out = answers(directory, self.held_out, device, beams, progress)
        return CandidateAnswers(searched=searched, held_out=held_out)

    @property
    def searched(self) -> Rows:
        """The rows to search on."""
        assert self.setup.data.search is not None
        return self.setup.data.search

    @property
    def held_out(self) -> Rows:
        """The test rows that nothing is chosen by."""
        assert self.setup.data.test is not None
        return self.setup.data.test

    @property
    def _metric(self) -> str:
        return metrics_of(self.searched)[0]

    def _reference(self, rows: Rows) -> list[str]:
        """The dense model's answers."""
        what = "rows to search on" if rows is self.searched else "rows"
        return answer_rows(self.steps, self.dense, rows, self.setup, what)

    def _compare(
        self, rows: Rows, outputs: list[str], cut: PathCut, drop: float, error: float
    ) -> QualityCandidate:
        """A smaller model's answers beside the dense one's, by a bound of this one-sided error."""
        recipe, reference = self.setup.recipe, self._reference(rows)
        resamples = recipe.evaluation.resamples
        comparisons = compare_rows(rows, reference, outputs, resamples, recipe.seed)
        bound, needed = self._bound(rows, reference, outputs, drop, error)
        return QualityCandidate(
            kept=cut.mask.count("heads"),
            neurons=cut.mask.count("neurons"),
            macs=cut.macs,
            position=cut.position,
            comparison=next(x for x in comparisons if x.metric == self._metric),
            bound=bound,
            confidence=1 - error,
            rows_needed=needed,
            accepted=False,
        )

    def _bound(
        self, rows: Rows, reference: list[str], outputs: list[str], drop: float, error: float
    ) -> tuple[float, int | None]:
        recipe = self.setup.recipe
        bound = lower_bound(
            metrics_for(rows)[0], rows.judged(reference), rows.judged(outputs), rows.references,
            limit=drop, alpha=error, resamples=recipe.evaluation.resamples, seed=recipe.seed,
        )  # fmt: skip
        counted, _ = rows.counted  # of ranked rows the bound counts queries
        needed = None if bound.rows is None else math.ceil(bound.rows * rows.count / counted)
        return bound.value, needed


def choose(name: str, scores: Scores, evaluator: RunEvaluator) -> Choice:
    """The units that an artifact keeps, as its budget chooses by scores and by candidates."""
    return evaluator.artifact.budget.choose(evaluator)


def learn(name: str, evaluator: RunEvaluator) -> Choice:
    """What a learned mask keeps; weights that were trained with it are kept beside the result."""
    setup, steps, limits = evaluator.setup, evaluator.steps, evaluator.setup.limits
    method, source = setup.recipe.method, setup.source
    assert isinstance(method, LearnedMask)
    keep, penalty = evaluator.artifact.budget.to_learn(limits.full)
    job = LearningJob(
        model=source.checkpoint.model,
        layers=setup.sublayers,
        examples=source.examples,
        task=source.task,
        keep=keep,
        penalty=penalty,
        floors=limits.floors,
        multiples=limits.multiples,
        seed=setup.recipe.seed,
        device=setup.device,
        state=steps.scratch / "gates.safetensors",
        report=steps.progress.message,
        progress=partial(steps.progress.update, "training steps"),
    )
    learned = learn_mask(method, job)
    mask = Mask({**limits.full.keep, **learned.mask.keep})
    trained = learned.model is not source.checkpoint.model
    weights = keep_weights(steps, name, learned.model) if trained else ""
    return Choice(mask, learned.scores, learned.text, weights=weights)
