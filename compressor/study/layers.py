"""One layer at a time keeps a single head: how many layers need more than one?

Michel, Levy & Neubig 2019, section 3.3 and tables 2 and 3. The head is chosen on calibration rows,
the metric is measured on test rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from compressor.errors import UsageError
from compressor.importance import ScoringJob
from compressor.importance.ablation_runs import losses_alone
from compressor.model.sublayers import Mask, Sublayer
from compressor.report import numbers
from compressor.report.facts import kind_label, metric_style
from compressor.study.heads import MARKS, corrected, mark, significance, significance_sentences
from compressor.study.job import (
    Job,
    answer,
    dense_answers,
    judge,
    make_batches,
    score,
)
from compressor.study.output import Result, table
from compressor.study.plotting import COLORS, MARKERS, by_kind, metric_label, point_label
from compressor.tasks import Batch


def study(job: Job) -> Result:
    """Remove all heads of a layer but its best one, and compare with the dense model."""
    assert job.test is not None
    best, how = _best_heads(job)
    batches = make_batches(job, job.checkpoint, job.test)
    dense, whole = dense_answers(job, batches)
    measured: list[dict[str, Any]] = []
    for layer in job.checkpoint.attention:
        measured.append(
            job.workspace.stage(
                f"alone-{layer.name}",
                f"leaving {layer.name} one of {layer.units} heads",
                partial(_layer, job, batches, dense, layer, best[layer.name]),
                dict[str, Any],
            )
        )
    data = {**job.facts(), **whole, "chosen_by": how, "resamples": job.testing.resamples}
    tests = corrected(measured)
    data |= significance(tests) | {"layers": tests}
    return _result(job, data, tests)


def _best_heads(job: Job) -> tuple[dict[str, int], str]:
    """The head that each layer keeps: the best one alone or, with a method, by its score.

    Returns:
        Layer name -> head, and how the heads were chosen, in words.
    """
    if job.request.scoring is not None:
        scores = score(
            job, job.checkpoint, job.calibration, "scores", f"scoring with {job.method.name}"
        )
        best = {name: values.index(max(values)) for name, values in scores.values.items()}
        return best, f"highest score: {scores.signature}"
    if job.calibration is None:
        raise UsageError(
            "`compress study layers` needs --calibration FILE to choose each layer's head on",
            id="calibration-missing",
        )
    losses = job.workspace.stage(
        "losses", "losses of each head alone", lambda: _losses(job), dict[str, list[float]]
    )
    best = {name: values.index(min(values)) for name, values in losses.items()}
    return best, "lowest loss on the calibration rows of the head alone in its layer"


def _losses(job: Job) -> dict[str, list[float]]:
    assert job.calibration is not None
    checkpoint = job.checkpoint
    scoring = ScoringJob(
        model=checkpoint.model.to(job.device),
        layers=checkpoint.attention,
        mask=Mask.full(checkpoint.attention),
        batches=make_batches(job, checkpoint, job.calibration),
        task=job.task,
        device=job.device,
        progress=lambda done, total: job.progress.update("passes", done, total),
    )
    try:
        return losses_alone(scoring)
    finally:
        checkpoint.model.to("cpu")


def _layer(
    job: Job, batches: list[Batch], dense: list[str], layer: Sublayer, head: int
) -> dict[str, Any]:
    others = [(layer.name, other) for other in range(layer.units) if other != head]
    mask = Mask.full(job.checkpoint.attention).without(others)
    answers = answer(job, job.checkpoint, batches, len(dense), mask)
    return {"layer": layer.name, "heads": layer.units, "head": head} | judge(job, dense, answers)


def _result(job: Job, data: dict[str, Any], tests: list[dict[str, Any]]) -> Result:
    digits, label = metric_style(job.metric).digits, metric_label(job.metric)
    rows = [
        (
            one["layer"],
            f"{one['head']} of {one['heads']}",
            numbers.fixed(one["value"], digits),
            numbers.fixed(one["difference"], digits, sign=True) + mark(one),
            numbers.interval(tuple(one["interval"]), digits, sign=True),
            *(numbers.p_value(one[p]) for p in ("p", "p_bh", "p_holm")),
        )
        for one in tests
    ]
    worst = min(tests, key=lambda one: one["difference"])
    sentences = [
        f"All heads: {label} {numbers.fixed(data['dense'], digits)}; each layer's one head chosen "
        f"by {data['chosen_by']}.",
        f"The largest loss is in {worst['layer']}: "
        f"{numbers.fixed(worst['difference'], digits, sign=True)}."
        if worst["difference"] < 0
        else "No layer loses anything.",
        *significance_sentences(data, "layers"),
    ]
    return Result(
        title=f"One head per layer of {job.checkpoint.name}",
        data=data,
        sentences=sentences,
        tables=[
            table(
                f"One layer at a time keeps its best head alone, the others all heads; {MARKS}.",
                f"layer, head kept, {label}, change, 95% interval, p, p (BH), p (Holm)",
                rows,
            )
        ],
        draw=lambda: _figure(job, tests),
    )


def _figure(job: Job, tests: list[dict[str, Any]]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="#666666", linestyle="--", linewidth=1.2)
    by_name = {one["layer"]: one for one in tests}
    kinds = by_kind(list(by_name))
    for i, (kind, names) in enumerate(kinds.items()):
        # Kinds beside each other, not on top of each other.
        shift = 0.12 * (i - (len(kinds) - 1) / 2)
        for x, name in enumerate(names):
            axes.plot([x + shift] * 2, by_name[name]["interval"], color=COLORS[i], marker="_")
        axes.plot(
            [x + shift for x in range(len(names))],
            [by_name[name]["difference"] for name in names],
            MARKERS[i],
            color=COLORS[i],
            label=kind_label(kind),
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer that has one head left")
    axes.set_ylabel(f"change in {point_label(job.metric)}")
    axes.set_title("bars: 95% interval", loc="left", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure
