"""Which units go: a budget chooses by scores and by candidates it evaluates, or a mask is learned.

Every evaluation is a step of its own, from which a stopped search goes on.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from compressor import evaluation, parallel
from compressor.budgets import Choice, Evaluator, Limits
from compressor.budgets.base import Cut
from compressor.budgets.cost_table import trial_mask
from compressor.budgets.max_drop import within
from compressor.budgets.units import PathCut, UnitCosts, latest_scores
from compressor.evaluation.answers import answers
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.for_cuda import link_float32
from compressor.export.precision_names import BASE, precision_timed
from compressor.export.precisions import write_precision
from compressor.export.task_graphs import Network
from compressor.importance.depth import divergence
from compressor.learned_masks import LearnedMask, LearningJob
from compressor.learned_masks import learn as learn_mask
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import release
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.model.surgery import prune, restore_shape, without_skipped
from compressor.pipeline.build import build, keep_weights
from compressor.pipeline.finish import answer_rows
from compressor.pipeline.recover import recover
from compressor.pipeline.score import find_layers, score
from compressor.pipeline.setup import ArtifactPlan, RunSetup, source_of
from compressor.report.search_section import unproven
from compressor.results import QualityCandidate, QualitySearch, Source, Throughput, Timing, Variant
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.steps import Steps
from compressor.tasks import TASKS, Rows
from compressor.throughput import Subject, benchmark


@dataclass(frozen=True)
class CandidateAnswers:
    """Answers of a smaller model to the rows of the search and to those that are held out."""

    searched: list[str]
    held_out: list[str]  # empty if the measured drop is too large to go on with


@dataclass(frozen=True)
class RunEvaluator:
    """Scores, times and evaluates candidates for the budget of one artifact.

    See `compressor.budgets.base.Evaluator` for the methods that budgets call.
    """

    steps: Steps
    setup: RunSetup
    artifact: ArtifactPlan
    dense: Variant  # exported
    dropped: Sequence[str] = ()  # layers that a candidate drops

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
        full, setup = Mask.full(self.setup.sublayers), self.setup
        names = sorted({units_of(kind) for kind in full.kinds()})
        units = " and ".join(f"{full.total(name):,} {name}" for name in names)
        return self.steps.do(
            score, self.limits.start, title=f"scoring {units} with {setup.recipe.method.name}",
            shared=True, source=setup.source, method=setup.recipe.method, sublayers=setup.sublayers,
        )  # fmt: skip

    def cut_in_steps(self, cuts: Sequence[Cut]) -> Choice:
        setup, scores = self.setup, self.scores()
        source, recovery = setup.source, setup.recipe.recovery
        layers, dense = source.checkpoint.layers, source.checkpoint.model
        first, *later = cuts
        mask, model = first(scores, self.limits.start), dense
        for number, cut in enumerate(later, 1):
            if recovery:
                # The next scores need the dense model's shape, in which masks name units.
                pruned = prune(model, layers, mask)
                state = self.steps.scratch / f"recovery-step-{number}.safetensors"
                recovered = recover(recovery, source, pruned, mask, text=setup.text, state=state)
                model = restore_shape(dense, recovered.model, layers, mask)
            latest = score(
                mask, source=source, method=setup.recipe.method, sublayers=setup.sublayers,
                model=model,
            )  # fmt: skip
            scores = latest_scores(scores, latest, mask)
            mask = cut(latest, mask)
        if model is dense:
            return Choice(mask, scores)
        text = f"{self.artifact.budget.scorings} steps, recovered after each"
        weights = keep_weights(self.steps, self.artifact.name, model)
        return Choice(mask, scores, text, weights=weights)

    def time_units(self, kinds: Sequence[str], counts: Sequence[int], at_batch: int) -> Throughput:
        numbers = ", ".join(map(str, counts))
        name, full = "+".join(kinds), Mask.full(self.setup.source.checkpoint.layers)
        masks = {f"{name}={count}": trial_mask(full, kinds, count) for count in counts}
        return self._time(masks, at_batch, f"timing sublayers of {name} with {numbers} units")

    def time_mask(self, mask: Mask, number: int, at_batch: int) -> Timing:
        name, title = f"choice-{number}", f"timing a choice of {mask} (try {number})"
        timed = self._time({name: mask}, at_batch, title)
        return next(row for row in timed.rows if row.variant == name)

    def _time(self, masks: Mapping[str, Mask], at_batch: int, title: str) -> Throughput:
        inputs, setup = (masks, at_batch, self.dense), self.setup
        return self.steps.do(time_masks, *inputs, title=title, setup=setup, steps=self.steps)

    def layer_to_drop(self, stack: str, dropped: Sequence[str]) -> str:
        title = f"finding the next layer to drop: {','.join([*dropped, stack])}"
        chosen = self.steps.do(
            find_layers, {stack: 1}, dropped, title=title, shared=True, source=self.setup.source
        )
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

        source, device = self.setup.source, self.setup.device
        dense, layers = source.checkpoint.model, source.checkpoint.layers
        learn, held = hold_out(source.examples, source.seed)
        methods = [method for method in self.setup.recipe.recovery if not method.trains]
        pruned = prune(dense, layers, mask)
        recovered = recover(methods, replace(source, examples=learn), pruned, mask).model
        batches = source.task.batches(parallel.shard(held), dense)
        try:
            return divergence(recovered.to(device), dense.to(device), batches, source.task, device)
        finally:
            dense.to("cpu")

    def require_sight(self, asked: str, drop: float) -> None:
        # A drop of the whole scale needs no sight.
        if drop < evaluation.METRICS[self._metric].scale:
            for rows in (self.searched, self.held_out):
                evaluation.require_sight(rows, self._reference(rows), asked)

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
            directory, choice = staged / "artifact", Choice(cut.mask, scores)
            name = f"{self.artifact.name}-candidate-{cut.position}"
            artifact = replace(self.artifact, name=name, directory=directory)
            setup = replace(self.setup, engines=(ONNXRUNTIME,))  # which alone answers
            build(artifact, choice, setup, making=nullcontext(directory), steps=self.steps)
            searched = answers(directory, self.searched, device, beams, progress)
            held_out: list[str] = []
            # The measured drop is the same for every error of the bound.
            if within(self._compare(self.searched, searched, cut, drop, 0.5), drop):
                held_out = answers(directory, self.held_out, device, beams, progress)
        return CandidateAnswers(searched, held_out)

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
        return evaluation.metrics_of(self.searched)[0]

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
        comparisons = evaluation.compare_rows(rows, reference, outputs, resamples, recipe.seed)
        bound, needed = self._bound(rows, reference, outputs, drop, error)
        return QualityCandidate(
            kept=cut.mask.count("heads"), neurons=cut.mask.count("neurons"),
            macs=cut.macs, position=cut.position,
            comparison=next(x for x in comparisons if x.metric == self._metric),
            bound=bound, confidence=1 - error, rows_needed=needed, accepted=False,
        )  # fmt: skip

    def _bound(
        self, rows: Rows, reference: list[str], outputs: list[str], drop: float, error: float
    ) -> tuple[float, int | None]:
        recipe = self.setup.recipe
        bound = evaluation.lower_bound(
            evaluation.metrics_for(rows)[0], rows.judged(reference), rows.judged(outputs),
            rows.references, limit=drop, alpha=error, resamples=recipe.evaluation.resamples,
            seed=recipe.seed,
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
        model=source.checkpoint.model, layers=setup.sublayers,
        examples=source.examples, task=source.task,
        keep=keep, penalty=penalty, floors=limits.floors, multiples=limits.multiples,
        seed=source.seed, device=source.device, state=steps.scratch / "gates.safetensors",
        report=steps.progress.message, progress=partial(steps.progress.update, "training steps"),
    )  # fmt: skip
    learned = learn_mask(method, job)
    mask = Mask({**limits.full.keep, **learned.mask.keep})
    trained = learned.model is not source.checkpoint.model
    weights = keep_weights(steps, name, learned.model) if trained else ""
    return Choice(mask, learned.scores, learned.text, weights=weights)


def time_masks(
    masks: Mapping[str, Mask], at_batch: int, dense: Variant, *, setup: RunSetup, steps: Steps
) -> Throughput:
    """Time the exported dense model without the units that masks remove, in turns with itself.

    Time does not depend on the weights, so nothing is recovered or checked.
    """
    settings, device = setup.recipe.throughput, setup.device
    assert settings is not None
    checkpoint, exported = setup.source.checkpoint, Path(dense.directory)
    engine = setup.recipe.budget.timed_engine or ONNXRUNTIME
    precision = precision_timed(setup.precisions, device)
    with steps.staging() as folder:
        reference = exported
        if precision != BASE:  # the dense model may not have been exported in that yet
            reference = folder / "dense"
            link_float32(exported, reference)
            write_precision(reference, precision, (), device=device)
        full = Mask.full(checkpoint.layers).counts()
        subjects = [Subject("dense", reference, full, precision, engine)]
        for number, (name, mask) in enumerate(masks.items(), 1):
            path = folder / str(number)
            export_trial(checkpoint, mask, exported, path, engine)
            if precision != BASE:
                write_precision(path, precision, (), device=device)
            counts = mask.of_layers_left().counts()
            subjects.append(Subject(name, path, counts, precision, engine))
            steps.progress.update("graphs", number, len(masks))
        how = settings.settings() | {"batch_sizes": [at_batch], "memory": False}
        rows, report = setup.data.timed, steps.progress.message
        return benchmark(subjects, rows=rows, device=device, progress=report, **how)


def export_trial(
    checkpoint: Checkpoint, mask: Mask, dense: Path, directory: Path, engine: str = ONNXRUNTIME
) -> None:
    """Write an engine's files of the dense weights without the units that `mask` removes.

    Graphs that lose no unit are copied from `dense`: exporting takes far longer than timing.
    """
    graphs = directory / GRAPH_DIRECTORY
    graphs.mkdir(parents=True)
    shutil.copy(dense / GRAPH_DIRECTORY / "tokenizer.json", graphs)
    changed = {kind for kind in mask.kinds() if mask.count(kind) < mask.total(kind)}
    task_graphs = TASKS[checkpoint.task].graphs
    same = [role for role, kinds in task_graphs.parts.items() if not changed & kinds]
    for role in same:
        for path in (dense / GRAPH_DIRECTORY).glob(f"{role}.onnx*"):  # weights may lie beside it
            shutil.copy(path, graphs)
    pruned = prune(checkpoint.model, checkpoint.layers, mask)
    small = without_skipped(checkpoint, pruned, mask)
    network = Network(small, small.model, small.mask, task_graphs.output_tokens(checkpoint))
    needs_graphs = not task_graphs.write_engine(network, directory, engine)
    task_graphs.export(network, graphs, skip=same if needs_graphs else task_graphs.parts)
    release(small.model, keep=checkpoint.model)
