"""Do two data sets agree on which heads are important?

Michel, Levy & Neubig 2019, section 4. Two data sets can disagree because they differ or because
scores are noisy. To tell which, each data set is also split into two halves that are scored
separately.
"""

from __future__ import annotations

from dataclasses import replace

from compressor.errors import UsageError
from compressor.options.inputs import read, reading
from compressor.report import numbers
from compressor.study.compare_scores import (
    compared_pair,
    comparison_figure,
    comparison_tables,
)
from compressor.study.options import AgreementStudy
from compressor.study.run import (
    Result,
    StudiedModel,
    facts_of,
)
from compressor.tasks.opened import DataRows
from compressor.tasks.rows import some_rows


def agreement(model: StudiedModel, rows: DataRows, options: AgreementStudy) -> Result:
    """Compare the scores of heads on two data sets, and on two halves of each.

    Raises:
        UsageError: the method uses no data.
    """
    method, seed = options.method, model.seed
    if not method.needs_rows:
        raise UsageError(
            f"--method {method.name} uses no data, so two data sets always agree; choose another",
            id="method-without-data",
        )
    section = options.data.model_copy(update={"calibration": options.data.other})
    how = reading(section, model.checkpoint)
    other = read(section, model.checkpoint, how, model.progress)
    sets = {"first": rows.fitted, "other": other.fitted}
    scores = {name: model.score(method, part) for name, part in sets.items()}
    pairs = {"the two data sets": compared_pair(scores["first"], scores["other"], seed)}
    for name, part in sets.items():
        # Two halves of one set differ by noise alone, which the sets' difference is held against.
        both = (some_rows(part, range(which, part.count, 2)) for which in (0, 1))
        first, second = (model.score(method, half) for half in both)
        pairs[f"two halves of the {name}"] = compared_pair(first, second, seed)
    signature = scores["first"].signature
    spearman = (pair["correlations"][0]["spearman"] for pair in pairs.values())
    whole, *halves = (numbers.fixed(value, 2, sign=True) for value in spearman)
    # The axes of the figure are named by methods.
    named = [replace(one, method=f"the {name} data set") for name, one in scores.items()]
    return Result(
        title=f"Agreement of two data sets on the heads of {model.checkpoint.name}",
        data={
            "other": facts_of(other.fitted),
            "signature": signature,
            "scores": {name: dict(one.values) for name, one in scores.items()},
            "pairs": pairs,
        },
        sentences=[
            f"Spearman's correlation of the two data sets' scores is {whole}; of two halves of the "
            f"same data set, {' and '.join(halves)}.",
            f"Scores: {signature}.",
        ],
        tables=comparison_tables(pairs),
        figure=comparison_figure(named),
    )
