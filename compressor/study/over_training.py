"""How the importance of heads develops over the checkpoints of one training.

Michel, Levy & Neubig 2019, section 6 (quality at fixed pruning levels over training); also how the
ranking of heads approaches the last checkpoint's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.budgets.units import HEADS
from compressor.errors import InputError
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.study.compare_scores import TIED, flat, kinds_of, overlap_p, shared_units, spearman
from compressor.study.curve import Point, removals
from compressor.study.effects import MetricText
from compressor.study.job import Job, answer, judge, make_batches, open_model, score
from compressor.study.options import TrainingStudy
from compressor.study.output import Result, table
from compressor.study.plotting import Line, draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 0.25  # share of the heads that count as the most important


@dataclass(frozen=True)
class HeadRanking:
    """How close a checkpoint's ranking of heads is to the last one's; None where undefined.

    Args:
        spearman: correlation over all heads; `kinds`: within each kind.
        top: the number of heads in the most important quarter; `shared`: how many of them both
            checkpoints have in common, `by_chance`: the expected number by chance, `p`: the
            probability of at least as many by chance (see `compressor.study.compare_scores`).
    """

    spearman: float | None
    kinds: dict[str, float | None]
    top: int
    shared: int | None
    by_chance: float
    p: float | None


@dataclass(frozen=True)
class TrainingCheckpoint:
    """What was found about one checkpoint of the training."""

    name: str
    directory: str
    scores: Scores
    points: list[Point]
    ranking: HeadRanking

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "directory": self.directory,
            "scores": dict(self.scores.values),
            "points": [point.to_json() for point in self.points],
            **asdict(self.ranking),
        }


def study(job: Job[TrainingStudy]) -> Result:
    """Score and prune every checkpoint by its own scores, and compare it with the last one."""
    directories = job.request.checkpoints
    # Not kept: all checkpoints together may not fit into memory, so each is opened again later.
    for directory in directories[:-1]:
        _open(job, directory)  # so that a wrong one is refused before anything is computed
    names = _names(directories)
    measured = [_measure(job, number, name) for number, name in enumerate(names)]
    last, _ = measured[-1]
    checkpoints = [
        TrainingCheckpoint(name, directory, scores, points, ranking(scores, last))
        for name, directory, (scores, points) in zip(names, directories, measured, strict=True)
    ]
    data = {
        **job.facts(),
        "metric": job.metric,
        "signature_scores": last.signature,
        "resamples": job.request.evaluation.resamples,
        "at_floor": any(point.effect.at_floor for point in checkpoints[-1].points),
        "checkpoints": [one.to_json() for one in checkpoints],
    }
    return _result(job, data, checkpoints)


def _names(directories: Sequence[str]) -> list[str]:
    """The checkpoints' short names, or their whole paths where two short names are the same."""
    short = [Path(directory).name for directory in directories]
    return short if len(set(short)) == len(short) else list(directories)


def _open(job: Job[TrainingStudy], directory: str) -> Checkpoint:
    """Open a checkpoint of the training, which must have the attention layers of the last one."""
    checkpoint = open_model(job.request, directory)
    if checkpoint.attention != job.checkpoint.attention:
        raise InputError(
            f"{directory} has other attention layers than {job.checkpoint.name}; give checkpoints "
            "of one training",
            id="checkpoints-differ",
        )
    return checkpoint


def _measure(job: Job[TrainingStudy], number: int, name: str) -> tuple[Scores, list[Point]]:
    """A checkpoint's scores, and its quality with more and more heads removed."""
    directories, percentages = job.request.checkpoints, job.request.points
    last = number == len(directories) - 1
    # The last one is the model of the study, which is open already.
    checkpoint = job.checkpoint if last else _open(job, directories[number])
    calibration = job.rows.get("calibration")
    # Stages are files, so they go by number: names may be whole paths.
    scores = score(job, checkpoint, calibration, f"scores-{number}", f"scoring {name}")

    def compute() -> list[Point]:
        batches = make_batches(job, checkpoint, job.rows["test"])
        # Not those that studies share, which are the last checkpoint's.
        dense = answer(job, checkpoint, batches)
        full = Mask.full(checkpoint.attention)
        return [
            Point(removed, full.total(), judge(job, dense, answer(job, checkpoint, batches, mask)))
            for removed, mask in removals(scores, full, HEADS, percentages)
        ]

    title = f"pruning {name} at {len(percentages)} levels"
    return scores, job.workspace.stage(f"levels-{number}", title, compute, list[Point])


def ranking(scores: Scores, last: Scores) -> HeadRanking:
    """Compare a checkpoint's ranking of heads with the last one's."""
    total = len(flat(scores))
    # Halves up, as in `curve.removals`.
    top = max(1, int(TOP * total + 0.5))
    shared = shared_units(scores, last, top, highest=True)
    return HeadRanking(
        spearman=spearman(flat(scores), flat(last)),
        kinds={kind: spearman(flat(scores, kind), flat(last, kind)) for kind in kinds_of(scores)},
        top=top,
        shared=shared,
        by_chance=top * top / total,
        p=overlap_p(shared, top, total),
    )


def _result(
    job: Job[TrainingStudy], data: dict[str, Any], checkpoints: list[TrainingCheckpoint]
) -> Result:
    metric, first = MetricText(job.metric), checkpoints[0]
    kinds = ", ".join(kind_label(kind) for kind in first.ranking.kinds)
    return Result(
        title=f"Heads over the training of {job.checkpoint.name}",
        data=data,
        sentences=[*_verdict(first), f"Scores: {data['signature_scores']}."],
        tables=[
            table(
                "Each checkpoint's ranking of heads compared with the last one's: Spearman's "
                "correlation, and how many heads of the most important quarter both share; p is "
                "the probability of at least as many by chance. "
                f"{numbers.ABSENT}: {TIED}, or all scores are the same.",
                f"checkpoint, all heads, {kinds}, top quarter shared, by chance, p",
                [(one.name, *_cells(one.ranking)) for one in checkpoints],
            ),
            table(
                f"{metric.label} with some of {first.points[0].of} heads removed, by each "
                "checkpoint's own scores.",
                ", ".join(["checkpoint", *(f"{point.removed} removed" for point in first.points)]),
                [
                    (one.name, *(metric.value(point.effect.value) for point in one.points))
                    for one in checkpoints
                ],
            ),
        ],
        draw=lambda: _figure(metric, checkpoints),
    )


def _cells(ranking: HeadRanking) -> tuple[str, ...]:
    correlations = (ranking.spearman, *ranking.kinds.values())
    return (
        *(numbers.fixed(value, 3, sign=True) for value in correlations),
        numbers.ABSENT if ranking.shared is None else f"{ranking.shared} of {ranking.top}",
        numbers.fixed(ranking.by_chance, 1),
        numbers.p_value(ranking.p),
    )


def _verdict(first: TrainingCheckpoint) -> list[str]:
    """How close the first checkpoint's ranking is to the last one's, as far as that is defined."""
    ranking, sentences = first.ranking, []
    if ranking.spearman is not None:
        sentences.append(
            f"The rankings of heads of {first.name} and of the last checkpoint have a rank "
            f"correlation of {numbers.fixed(ranking.spearman, 2, sign=True)}."
        )
    if ranking.shared is not None:
        sentences.append(
            f"{ranking.shared} of the {ranking.top} heads that are the most important in the end "
            f"are so in {first.name} already ({numbers.fixed(ranking.by_chance, 1)} by chance)."
        )
    return sentences


def _figure(metric: MetricText, checkpoints: list[TrainingCheckpoint]) -> Figure:
    from matplotlib.figure import Figure

    # matplotlib leaves points out that are not numbers.
    x, absent = range(len(checkpoints)), float("nan")
    rankings = [one.ranking for one in checkpoints]
    correlations = [absent if one.spearman is None else one.spearman for one in rankings]
    shares = [absent if one.shared is None else one.shared / one.top for one in rankings]
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    agreement = [
        Line("rank correlation with the last", x, correlations),
        Line("top quarter shared", x, shares),
    ]
    draw_lines(left, agreement)
    left.set_ylabel("share, correlation")
    levels = [
        Line(
            f"{point.removed} heads removed", x, [one.points[i].effect.value for one in checkpoints]
        )
        for i, point in enumerate(checkpoints[0].points)
    ]
    draw_lines(right, levels)
    right.set_ylabel(metric.label)
    for axes in (left, right):
        axes.set_xticks(x, [one.name for one in checkpoints], rotation=30, ha="right")
        axes.legend(fontsize=8)
    return figure
