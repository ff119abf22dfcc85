"""What a report begins with: what was gained and lost, and a few answers side by side."""

from __future__ import annotations

import re

from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable, columns
from compressor.results import Comparison, Timing


def conclusion(report: Report) -> ReportTable | None:
    """Quality, latency and size of dense and of the most important variant, and the difference.

    Beside it what the dense model's low precision gives alone. None where there is no variant.
    """
    variant = facts.headline(report)
    if variant is None:
        return None
    alone = facts.dense_alone(report, variant)
    builds = [variant, *([] if alone is None else [alone])]
    titles = [f"{report.dense.name} {report.dense.precision}", f"{variant.name}", "Difference"]
    if alone is not None:
        titles += [f"Dense {alone.precision} alone", "Difference"]
    rows = []
    metric = facts.primary_metric(report)
    if metric is not None:
        style = facts.metric_style(metric)
        cells = [style.score(facts.value(report.dense, metric))]
        for build in builds:
            found = facts.comparison(build, metric)
            cells += [style.score(facts.value(build, metric))]
            cells += [numbers.ABSENT if found is None else _judged(found)]
        rows.append((style.title, *cells))
    dense = facts.timings(report, report.dense.name)
    for row in {x.batch_size: x for x in dense[:1] + dense[-1:]}.values():
        cells = [numbers.adaptive(row.latency_ms.get("p50"))]
        for build in builds:
            own = (x for x in facts.timings(report, build.name) if x.batch_size == row.batch_size)
            cells += _latency(next(own, None))
        rows.append((f"Latency at batch {row.batch_size} (ms)", *cells))
    cells = [numbers.megabytes(report.dense.onnx_bytes)]
    for build in builds:
        cells.append(numbers.megabytes(build.onnx_bytes))
        cells.append(numbers.change(build.onnx_bytes, report.dense.onnx_bytes))
    rows.append(("Size (ONNX MB)", *cells))
    caption = (
        "Difference from dense, with 95% intervals; latency is the median of one batch, the "
        "speed-up is in sentences per second."
    )
    return ReportTable("conclusion", caption, columns("Measured", *titles), tuple(rows))


def _judged(found: Comparison) -> str:
    return f"{phrases.change(found)}, {facts.JUDGMENT_WORDS[facts.judge(found)]}"


_FASTER: dict[facts.Gain, str] = {
    "faster": "times as fast",
    "same": "no measurable gain",
    "slower": "slower",
    "unknown": "not usable",
}


def _latency(row: Timing | None) -> list[str]:
    if row is None:
        return [numbers.ABSENT] * 2
    return [numbers.adaptive(row.latency_ms.get("p50")), _gain(row)]


def _gain(row: Timing) -> str:
    """`1.16 [1.14, 1.18] times as fast`, `0.99 [0.97, 1.01], no measurable gain`."""
    gain = facts.gain(row)
    between = " " if gain == "faster" else ", "
    return f"{phrases.speedup(row)}{between}{_FASTER[gain]}"


_LONG_NUMBER = re.compile(r"-?\d+\.\d{4,}(?:e-?\d+)?")


def samples(report: Report) -> ReportTable | None:
    """A few test rows with the answers of dense and of the most important variant."""
    variant = facts.headline(report)
    shown = [report.dense, *([] if variant is None else [variant])]
    if not report.samples or not all(model.samples for model in shown):
        return None
    answers = zip(*(model.samples for model in shown), strict=True)
    return ReportTable(
        "samples",
        f"{len(report.samples)} test rows at even distances, not chosen by their answers.",
        (*columns("Text, Reference"), *(Column(model.name, numeric=False) for model in shown)),
        tuple(
            (" / ".join(row.texts), *map(_answer, (row.reference, *both)))
            for row, both in zip(report.samples, answers, strict=False)
        ),
        title="Sample answers",
    )


def _answer(text: str) -> str:
    """An answer as a reader wants it: a number with four digits."""
    return f"{float(text):.4g}" if _LONG_NUMBER.fullmatch(text) else text
