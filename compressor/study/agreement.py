"""Do two data sets agree on which heads are important?

Michel, Levy & Neubig 2019, section 4 (importance on one test set against another). Two data sets
can disagree because they differ or because scores are noisy. To tell which, each data set is also
split into two halves that are scored separately.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compressor.errors import UsageError
from compressor.model.sublayers import Scores
from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.study.compare_scores import TIED, compare_scores, comparison_figure, flat, overlap_p
from compressor.study.job import Job, score
from compressor.study.options import AgreementStudy
from compressor.study.output import Result, table
from compressor.study.statistics import permutation_p
from compressor.tasks import Rows
from compressor.tasks.rows import some_rows


def study(job: Job[AgreementStudy]) -> Result:
    """Score on both data sets and on halves of each, and compare."""
    method, seed = job.request.method, job.request.seed
    if not method.needs_rows:
        raise UsageError(
            f"--method {method.name} uses no data, so two data sets always agree; choose another",
            id="method-without-data",
        )
    sets = {"first": job.rows["calibration"], "other": job.rows["other"]}
    scores = {name: _score(job, rows, name) for name, rows in sets.items()}
    pairs = {"the two data sets": compared(scores["first"], scores["other"], seed)}
    for name, rows in sets.items():
        # Two halves of one set differ by noise alone, which the sets' difference is held against.
        # They have half the rows, so they agree less than two whole samples would.
        halves = [_score(job, half(rows, i), f"{name}-half-{i + 1}") for i in (0, 1)]
        pairs[f"two halves of the {name}"] = compared(halves[0], halves[1], seed)
    # As methods, which the axes of the figure are named by.
    named = [replace(one, method=f"the {name} data set") for name, one in scores.items()]
    data = {
        **job.facts(),
        "signature": scores["first"].signature,
        "scores": {
            name: {n: list(v) for n, v in one.values.items()} for name, one in scores.items()
        },
        "pairs": pairs,
    }
    return _result(job, data, named)


def _score(job: Job[AgreementStudy], rows: Rows, name: str) -> Scores:
    title = f"scoring on {len(rows.sources)} rows ({name.replace('-', ' ')})"
    return score(job, job.checkpoint, rows, f"scores-{name}", title)


def half(rows: Rows, which: int) -> Rows:
    """Every second row, starting with the first (`which=0`) or the second (1)."""
    return some_rows(rows, range(which, rows.count, 2))


def compared(first: Scores, second: Scores, seed: int) -> dict[str, Any]:
    """`compare_scores` of two data sets' scores, with a p-value in each row.

    Of `correlations`, `p` is two-sided by shuffling heads; of `lowest`, the probability of at
    least as large an overlap of two random sets. None where the correlation or the overlap is
    undefined.
    """
    (pair,) = compare_scores([first, second])["pairs"]

    def correlation_p(row: dict[str, Any]) -> float | None:
        kind = None if row["kind"] == "all" else row["kind"]
        x, y = flat(first, kind), flat(second, kind)
        return None if row["spearman"] is None else permutation_p(x, y, seed)

    total = pair["correlations"][0]["units"]
    lowest = [x | {"p": overlap_p(x["shared"], x["units"], total)} for x in pair["lowest"]]
    correlations = [row | {"p": correlation_p(row)} for row in pair["correlations"]]
    return {"correlations": correlations, "lowest": lowest}


def _result(job: Job[AgreementStudy], data: dict[str, Any], scores: list[Scores]) -> Result:
    correlations, lowest = [], []
    for name, pair in data["pairs"].items():
        rows = pair["correlations"]
        # With a single kind of attention, the rows of all heads and of the kind are the same.
        for row in rows[:1] if len(rows) == 2 else rows:
            kind = "all heads" if row["kind"] == "all" else kind_label(row["kind"])
            values = (numbers.fixed(row[key], 3, sign=True) for key in ("spearman", "kendall"))
            correlations.append((name, kind, str(row["units"]), *values, numbers.p_value(row["p"])))
        for row in pair["lowest"]:
            chance = numbers.fixed(row["by_chance"], 1)
            shared = numbers.fixed(row["shared"], 0)
            lowest.append((name, str(row["units"]), shared, chance, numbers.p_value(row["p"])))
    return Result(
        title=f"Agreement of two data sets on the heads of {job.checkpoint.name}",
        data=data,
        sentences=[verdict(data["pairs"]), f"Scores: {data['signature']}."],
        tables=[
            table(
                "Rank correlations; p by shuffling heads (two-sided, Spearman).",
                "compared, kind of attention, heads, Spearman, Kendall, p",
                correlations,
                texts=2,
            ),
            table(
                "Overlap of the two sets of heads with the lowest scores; p is the probability of "
                f"at least as many shared heads by chance. {numbers.ABSENT}: {TIED}.",
                "compared, heads, shared, by chance, p",
                lowest,
            ),
        ],
        draw=lambda: comparison_figure(scores),
    )


def verdict(pairs: dict[str, Any]) -> str:
    """Compare the correlation of the data sets with those of their halves."""
    spearman = {name: pair["correlations"][0]["spearman"] for name, pair in pairs.items()}
    missing = [name for name, value in spearman.items() if value is None]
    if missing:
        return (
            f"Spearman's correlation of {' and of '.join(missing)} is not defined, because "
            "all heads have the same score, so it is not known whether the data differ."
        )
    # In the order in which `study` compares them: the two data sets first.
    between, *within = (numbers.fixed(value, 2, sign=True) for value in spearman.values())
    return (
        f"Spearman's correlation of the two data sets' scores is {between}; of two halves of the "
        f"same data set, {' and '.join(within)}. If the first is clearly below these, the data "
        "differ; if it is near them, the difference is noise."
    )
