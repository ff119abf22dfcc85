"""Do two data sets agree on which heads are important?

Michel, Levy & Neubig 2019, section 4 (importance on one test set against another). Two data sets
can disagree because they differ or because scores are noisy. To tell which, each data set is also
split into two halves that are scored separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compressor.errors import UsageError
from compressor.model.sublayers import Scores
from compressor.pipeline.inputs import read
from compressor.report import numbers
from compressor.study.compare_scores import (
    compare_scores,
    comparison_figure,
    comparison_tables,
    flat,
    overlap_p,
)
from compressor.study.inputs import StudyInputs, facts_of
from compressor.study.options import AgreementStudy
from compressor.study.output import Result
from compressor.study.statistics import permutation_p
from compressor.tasks import Rows
from compressor.tasks.rows import some_rows


def study(request: AgreementStudy, inputs: StudyInputs) -> Result:
    """Score on both data sets and on halves of each, and compare."""
    method, checkpoint, seed = request.method, inputs.checkpoint, inputs.seed
    if not method.needs_rows:
        raise UsageError(
            f"--method {method.name} uses no data, so two data sets always agree; choose another",
            id="method-without-data",
        )
    section = request.data.model_copy(update={"calibration": request.data.other})
    first = inputs.rows.calibration
    other = read(section, checkpoint, inputs.task, inputs.progress).calibration
    assert first is not None
    assert other is not None
    sets = {"first": first, "other": other}
    scores = {name: inputs.score(method, rows) for name, rows in sets.items()}
    pairs = {"the two data sets": compared(scores["first"], scores["other"], seed)}
    for name, rows in sets.items():
        # Two halves of one set differ by noise alone, which the sets' difference is held against.
        # They have half the rows, so they agree less than two whole samples would.
        halves = [inputs.score(method, half(rows, which)) for which in (0, 1)]
        pairs[f"two halves of the {name}"] = compared(halves[0], halves[1], seed)
    data = {
        "other": facts_of(other),
        "signature": scores["first"].signature,
        "scores": {name: dict(one.values) for name, one in scores.items()},
        "pairs": pairs,
    }
    # As methods, which the axes of the figure are named by.
    named = [replace(one, method=f"the {name} data set") for name, one in scores.items()]
    return Result(
        title=f"Agreement of two data sets on the heads of {checkpoint.name}",
        data=data,
        sentences=[verdict(pairs), f"Scores: {data['signature']}."],
        tables=comparison_tables(pairs),
        draw=lambda: comparison_figure(named),
    )


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
    for row in pair["correlations"]:
        kind = None if row["kind"] == "all" else row["kind"]
        x, y = flat(first, kind), flat(second, kind)
        row["p"] = None if row["spearman"] is None else permutation_p(x, y, seed)
    total = pair["correlations"][0]["units"]
    for row in pair["lowest"]:
        row["p"] = overlap_p(row["shared"], row["units"], total)
    return {"correlations": pair["correlations"], "lowest": pair["lowest"]}


def verdict(pairs: Mapping[str, Any]) -> str:
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
