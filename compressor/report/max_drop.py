"""What a report says of a search for `--max-drop`: on which rows, what it proved, what is missing.

`sentences` puts `unproven` into the verdict, where nobody can miss it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from compressor.report import facts, numbers
from compressor.results import QualityProbe, QualitySearch, Source

# For reports of schema 1, whose final figures are of the rows that were searched on.
SEARCHED_ON_TEST = (
    "The number of heads was searched on the test rows themselves, which the intervals do not "
    "account for: on other rows the drop can be larger than they say."
)


def search_sentences(search: QualitySearch, test: Source | None) -> list[str]:
    """How a model was searched: what it had to show, on which rows, and how that ended.

    Args:
        test: the rows of the final figures.
    """
    if search.proof is None:
        return _of_schema_1(search, test)
    label, allowed = _label(search), f"{search.drop:.15g}"
    if search.proof == "bound":
        line = (
            f"The smallest model was searched whose drop in {label} is shown to be at most "
            f"{allowed}: measured, and by the lower end of the 95% interval."
        )
    else:
        line = (
            f"The smallest model was searched whose measured drop in {label} is at most {allowed}; "
            "proof was not asked for."
        )
    lines = [line, held_out_sentence(search)]
    delivered = delivered_look(search)
    if delivered is not None and delivered.bound is not None:
        inside = "within" if search.proven else "beyond"
        lines.append(
            f"On the held-out rows the lower confidence bound of the difference in {label} is "
            f"{_number(search, delivered.bound)}, {inside} the limit."
        )
    return lines


def held_out_sentence(search: QualitySearch) -> str:
    """How many rows were searched on, how many held out, and how often these were looked at."""
    count, looks = len(search.probes), len(search.looks)
    rows = 0 if search.rows is None else search.rows.rows
    models = "1 model" if count == 1 else f"{count} models"
    text = (
        f"The search judged {models} on {rows:,} rows; all other figures are measured on "
        f"{search.held_out or 0:,} rows that were held out of it"
    )
    if looks == 1:
        return f"{text} and looked at once."
    return (
        f"{text}. These judged {looks} models in turn, and each time the bound was widened (half "
        "the error), so that all together pass a model that loses more in at most 5% of runs."
    )


def delivered_look(search: QualitySearch) -> QualityProbe | None:
    """The delivered model as the held-out rows judged it."""
    return next((seen for seen in search.looks if seen.position == search.delivered), None)


def unproven(search: QualitySearch) -> str:
    """A warning where proof was asked for and the rows are too few; empty where they are enough."""
    delivered = delivered_look(search)
    if search.proof != "bound" or search.proven or delivered is None or delivered.bound is None:
        return ""
    needed = rows_needed(search, delivered)
    if needed is None:
        enough = "no number of rows would do for this model, whose drop is at the limit"
    else:
        enough = f"about {needed:,} would do for this model if its drop stayed as measured"
    mildest = min(_rows_of_others(search, delivered), default=None)
    if mildest is not None and (needed is None or mildest < needed):
        enough += f", about {mildest:,} for the mildest cut that was tried"
    return (
        f"{_test_rows(search):,} test rows are too few to show that {_label(search)} falls by at "
        f"most {search.drop:.15g}: it can fall by {_number(search, -delivered.bound)}; {enough}."
    )


def rows_needed(search: QualitySearch, judged: QualityProbe) -> int | None:
    """Test rows, those to search on included, that would about prove what a model lost.

    Rounded up to two digits; None where no number would.
    """
    side = search.held_out if judged in search.looks else search.rows and search.rows.rows
    if judged.rows_needed is None or not side:
        return None
    rows = judged.rows_needed * _test_rows(search) / side
    return numbers.two_digits_up(math.ceil(rows))


def _rows_of_others(search: QualitySearch, delivered: QualityProbe) -> Iterator[int]:
    """`rows_needed` of the models that lost no more than allowed but could not prove it."""
    for judged in (*search.probes, *search.looks):
        inside = -judged.comparison.difference <= search.drop + facts.ROUNDING
        if judged.accepted or not inside or judged.position == delivered.position:
            continue
        needed = rows_needed(search, judged)
        if needed is not None:
            yield needed


def _test_rows(search: QualitySearch) -> int:
    return (0 if search.rows is None else search.rows.rows) + (search.held_out or 0)


def _label(search: QualitySearch) -> str:
    return facts.metric_style(search.metric).label


def _number(search: QualitySearch, number: float) -> str:
    return numbers.fixed(number, facts.metric_style(search.metric).digits)


def _of_schema_1(search: QualitySearch, test: Source | None) -> list[str]:
    count = len(search.probes)
    where = "the test rows" if test is None else f"{test.rows:,} rows of {', '.join(test.files)}"
    lines = [
        f"As many heads were removed as possible before {where} showed a drop in {_label(search)} "
        f"of more than {search.drop:.15g} (by the whole 95% interval).",
        f"The search built and ran {count} {'model' if count == 1 else 'models'}. "
        f"{SEARCHED_ON_TEST}",
    ]
    if not any(probe.accepted for probe in search.probes):
        lines.append("No head could be removed.")
    return lines
