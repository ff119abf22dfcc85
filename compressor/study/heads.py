"""Each head removed alone: how much does the metric change, and is the change significant?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2 and table 1,
with a paired test per head. Of many heads some are significant by chance, so the p-values are also
corrected for the number of tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from compressor.importance import ScoringJob
from compressor.importance.ablation_runs import answers_without_units
from compressor.model.sublayers import Mask, Sublayer
from compressor.report import numbers
from compressor.report.facts import kind_label, metric_style, significant
from compressor.report.table import ReportTable
from compressor.study.job import Job, dense_answers, judge, make_batches
from compressor.study.output import Result, table
from compressor.study.plotting import by_kind, heat_map, metric_label, point_label
from compressor.study.statistics import ALPHA, holm
from compressor.tasks import Batch

_P_VALUES = ("p", "p_bh", "p_holm")


def study(job: Job) -> Result:
    """Remove every head alone and compare with the dense model."""
    assert job.test is not None
    batches = make_batches(job, job.checkpoint, job.test)
    dense, whole = dense_answers(job, batches)
    measured: dict[str, list[dict[str, Any]]] = {}
    for layer in job.checkpoint.attention:
        measured[layer.name] = job.workspace.stage(
            f"without-{layer.name}",
            f"removing each of {layer.units} heads of {layer.name}",
            partial(_layer, job, batches, dense, layer),
            list[dict[str, Any]],
        )
    tests = corrected([head for heads in measured.values() for head in heads])
    in_order = iter(tests)
    layers = {name: [next(in_order) for _ in heads] for name, heads in measured.items()}
    data = {
        **job.facts(),
        **whole,
        "resamples": job.testing.resamples,
        **significance(tests),
        "layers": layers,
    }
    return _result(job, data, layers)


def _layer(
    job: Job, batches: list[Batch], dense: list[str], layer: Sublayer
) -> list[dict[str, Any]]:
    assert job.test is not None
    checkpoint = job.checkpoint
    scoring = ScoringJob(
        model=checkpoint.model.to(job.device),
        layers=checkpoint.attention,
        mask=Mask.full(checkpoint.attention),
        batches=batches,
        task=job.task,
        device=job.device,
        tokenizer=checkpoint.tokenizer,
        progress=lambda done, total: job.progress.update("passes", done, total),
    )
    try:
        _, answers = answers_without_units(scoring, [layer], job.testing.num_beams)
    finally:
        checkpoint.model.to("cpu")
    return [
        {"head": head} | judge(job, dense, answers[layer.name, head]) for head in range(layer.units)
    ]


def corrected(tests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tests with `p_holm` and `p_bh`, their `p` corrected for the number of tests.

    By Holm (the probability of even one false discovery) and by Benjamini & Hochberg (the share
    of false discoveries).
    """
    from scipy.stats import false_discovery_control

    p_values = [test["p"] for test in tests]
    p_bh = false_discovery_control(p_values, method="bh")
    return [
        test | {"p_holm": adjusted, "p_bh": float(share)}
        for test, adjusted, share in zip(tests, holm(p_values), p_bh, strict=True)
    ]


def significance(tests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many `corrected` tests are significant, uncorrected and corrected, and by chance.

    By chance is the expected number, at most, if no test had an effect.
    """
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
    """How many tests are significant, and how many would be by chance."""
    tests, resamples = data["tests"], data["resamples"]
    sentences = [
        f"At the 5% level {data['significant']} of {tests} {what} change the metric significantly; "
        f"up to {numbers.fixed(data['expected_by_chance'], 1)} would by chance if none had an "
        f"effect. Corrected for {tests} tests: {data['significant_bh']} (Benjamini-Hochberg), "
        f"{data['significant_holm']} (Holm)."
    ]
    # The smallest p-value of a bootstrap is 1 / (resamples + 1); accuracy has an exact test.
    if data["metric"] != "accuracy" and tests / (resamples + 1) >= ALPHA:
        sentences.append(
            f"{resamples:,} resamples are too few for Holm's correction of {tests} tests: it needs "
            f"at least {int(tests / ALPHA):,} for any p-value to be small enough."
        )
    return sentences


def mark(test: dict[str, Any]) -> str:
    """`**` significant after Holm's correction, `*` after Benjamini & Hochberg's."""
    interval = test["interval"]
    if significant(test["p_holm"], interval):
        return "**"
    return "*" if significant(test["p_bh"], interval) else ""


MARKS = "* significant at the 5% level after Benjamini-Hochberg's correction, ** after Holm's"


def _result(job: Job, data: dict[str, Any], layers: dict[str, list[dict[str, Any]]]) -> Result:
    digits, label = metric_style(job.metric).digits, metric_label(job.metric)
    free = sum(head["difference"] >= 0 for heads in layers.values() for head in heads)
    sentences = [
        f"All heads: {label} {numbers.fixed(data['dense'], digits)} on "
        f"{len(job.test.targets) if job.test else 0} rows.",
        f"Removing one head: {free} of {data['tests']} heads cost nothing.",
        *significance_sentences(data, "heads"),
    ]
    values = {name: [head["difference"] for head in heads] for name, heads in layers.items()}
    marked = {
        (name, head["head"]) for name, heads in layers.items() for head in heads if mark(head)
    }
    return Result(
        title=f"Each head of {job.checkpoint.name} removed alone",
        data=data,
        sentences=sentences,
        tables=[
            _grid(kind, layers, names, label, digits)
            for kind, names in by_kind(list(layers)).items()
        ],
        details=[_details(layers, digits)],
        draw=lambda: heat_map(values, marked, f"change in {point_label(job.metric)}"),
    )


def _grid(
    kind: str, layers: dict[str, Any], names: list[str], label: str, digits: int
) -> ReportTable:
    """The change without each head: a row per layer, a column per head."""
    width = max(len(layers[name]) for name in names)
    rows = []
    for name in names:
        cells = [
            numbers.fixed(head["difference"], digits, sign=True) + mark(head)
            for head in layers[name]
        ]
        rows.append((name.rpartition(".")[2], *cells, *[""] * (width - len(cells))))
    titles = ", ".join(["layer", *(f"head {head}" for head in range(width))])
    caption = f"Change in {label} without one head of {kind_label(kind)}; {MARKS}."
    return table(caption, titles, rows)


def _details(layers: dict[str, list[dict[str, Any]]], digits: int) -> ReportTable:
    rows = [
        (
            name,
            str(head["head"]),
            numbers.fixed(head["difference"], digits, sign=True),
            numbers.interval(tuple(head["interval"]), digits, sign=True),
            *(numbers.p_value(head[p]) for p in _P_VALUES),
        )
        for name, heads in layers.items()
        for head in heads
    ]
    return table(
        "Every head: 95% interval of the change by paired bootstrap; two-sided p-values without "
        "correction, after Benjamini-Hochberg's and after Holm's.",
        "layer, head, change, 95% interval, p, p (BH), p (Holm)",
        rows,
    )
