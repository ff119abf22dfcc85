"""Each head removed alone: what does the metric lose, and is it more than chance?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2 and table 1,
with a paired test per head. Where many heads are tested some look significant by chance, so
the p-values are also corrected for their number.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from compressor.importance import Scoring
from compressor.importance.ablation import silenced_answers
from compressor.model.sublayers import Mask, Sublayer
from compressor.report import numbers
from compressor.report.facts import kind_label, metric_style, significant
from compressor.report.tables import Table
from compressor.study.job import Job, dense_answers, judge, make_batches
from compressor.study.output import Result, table
from compressor.study.plotting import by_kind, heat_map, metric_label, point_label
from compressor.study.statistics import ALPHA, holm
from compressor.tasks import Batch

_P_VALUES = ("p", "p_bh", "p_holm")


def study(job: Job) -> Result:
    """Remove every head alone and compare with the whole model."""
    assert job.test is not None
    batches = make_batches(job, job.checkpoint, job.test)
    dense, whole = dense_answers(job, batches)
    found: dict[str, list[dict[str, Any]]] = {}
    for layer in job.checkpoint.layers:
        found[layer.name] = job.workspace.stage(
            f"without-{layer.name}",
            f"removing each of {layer.units} heads of {layer.name}",
            partial(_layer, job, batches, dense, layer),
        )
    judged = correct([head for heads in found.values() for head in heads])
    data = {**job.facts(), **whole, "resamples": job.testing.resamples, **judged, "layers": found}
    return _result(job, data, found)


def _layer(
    job: Job, batches: list[Batch], dense: list[str], layer: Sublayer
) -> list[dict[str, Any]]:
    assert job.test is not None
    checkpoint = job.checkpoint
    scoring = Scoring(
        model=checkpoint.model.to(job.device),
        layers=checkpoint.layers,
        mask=Mask.full(checkpoint.layers),
        batches=batches,
        task=job.task,
        device=job.device,
        tokenizer=checkpoint.tokenizer,
        progress=lambda done, total: job.progress.update("passes", done, total),
    )
    try:
        _, answers = silenced_answers(scoring, [layer], job.testing.num_beams)
    finally:
        checkpoint.model.to("cpu")
    return [
        {"head": head} | judge(job, dense, answers[layer.name, head]) for head in range(layer.units)
    ]


def correct(tests: list[dict[str, Any]]) -> dict[str, Any]:
    """Add `p_holm` and `p_bh` to each test's `p`, in place.

    Returns:
        How many are significant, uncorrected and corrected, and how many would be by chance, at
        most, if nothing made a difference.
    """
    from scipy.stats import false_discovery_control

    p_values = [test["p"] for test in tests]
    shares = false_discovery_control(p_values, method="bh")
    for test, strict, share in zip(tests, holm(p_values), shares, strict=True):
        test |= {"p_holm": strict, "p_bh": float(share)}
    counts = {p: sum(significant(test[p], test["interval"]) for test in tests) for p in _P_VALUES}
    return {
        "tests": len(tests),
        "level": ALPHA,
        "expected_by_chance": ALPHA * len(tests),
        "significant": counts["p"],
        "significant_bh": counts["p_bh"],
        "significant_holm": counts["p_holm"],
    }


def significance_sentences(data: dict[str, Any], what: str) -> list[str]:
    """How many tests are significant, and what to think of that."""
    tests, resamples = data["tests"], data["resamples"]
    sentences = [
        f"At the 5% level {data['significant']} of {tests} {what} change it significantly; up to "
        f"{numbers.fixed(data['expected_by_chance'], 1)} would by chance if none did. Corrected "
        f"for {tests} tests: {data['significant_bh']} (Benjamini-Hochberg), "
        f"{data['significant_holm']} (Holm)."
    ]
    # The smallest p-value of a bootstrap is 1 / (resamples + 1); accuracy has an exact test.
    if data["metric"] != "accuracy" and tests / (resamples + 1) >= ALPHA:
        sentences.append(
            f"{resamples:,} resamples are too few for Holm's correction of {tests} tests: no "
            f"p-value can be small enough below {int(tests / ALPHA):,}."
        )
    return sentences


def mark(test: dict[str, Any]) -> str:
    """`**` significant after Holm's correction, `*` after Benjamini & Hochberg's."""
    interval = test["interval"]
    if significant(test["p_holm"], interval):
        return "**"
    return "*" if significant(test["p_bh"], interval) else ""


MARKS = "* significant at the 5% level after Benjamini-Hochberg's correction, ** after Holm's"


def _result(job: Job, data: dict[str, Any], found: dict[str, list[dict[str, Any]]]) -> Result:
    digits, label = metric_style(job.metric).digits, metric_label(job.metric)
    better = sum(head["difference"] >= 0 for heads in found.values() for head in heads)
    sentences = [
        f"All heads: {label} {numbers.fixed(data['dense'], digits)} on "
        f"{len(job.test.targets) if job.test else 0} rows.",
        f"Removing one head: {better} of {data['tests']} heads cost nothing.",
        *significance_sentences(data, "heads"),
    ]
    values = {name: [head["difference"] for head in heads] for name, heads in found.items()}
    marked = {(name, head["head"]) for name, heads in found.items() for head in heads if mark(head)}
    return Result(
        title=f"Each head of {job.checkpoint.name} removed alone",
        data=data,
        sentences=sentences,
        tables=[
            _grid(kind, found, names, label, digits) for kind, names in by_kind(list(found)).items()
        ],
        details=[_details(found, digits)],
        draw=lambda: heat_map(values, marked, f"change in {point_label(job.metric)}"),
    )


def _grid(kind: str, found: dict[str, Any], names: list[str], label: str, digits: int) -> Table:
    width = max(len(found[name]) for name in names)
    rows = []
    for name in names:
        cells = [
            numbers.fixed(head["difference"], digits, sign=True) + mark(head)
            for head in found[name]
        ]
        rows.append((name.rpartition(".")[2], *cells, *[""] * (width - len(cells))))
    titles = ", ".join(["layer", *(f"head {head}" for head in range(width))])
    caption = f"Change in {label} without one head of {kind_label(kind)}; {MARKS}."
    return table(caption, titles, rows)


def _details(found: dict[str, list[dict[str, Any]]], digits: int) -> Table:
    rows = [
        (
            name,
            str(head["head"]),
            numbers.fixed(head["difference"], digits, sign=True),
            numbers.interval(tuple(head["interval"]), digits, sign=True),
            *(numbers.p_value(head[p]) for p in _P_VALUES),
        )
        for name, heads in found.items()
        for head in heads
    ]
    return table(
        "Every head: 95% interval of the change by paired bootstrap; two-sided p-values as they "
        "are, after Benjamini-Hochberg's and after Holm's correction.",
        "layer, head, change, 95% interval, p, p (BH), p (Holm)",
        rows,
    )
