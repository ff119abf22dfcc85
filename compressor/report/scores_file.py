"""The file of scores that `compress score` writes, and `compress prune` reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compressor.errors import InputError, UsageError
from compressor.model.sublayers import SCORES_SCHEMA, UNITS_OF, Scores, units_of
from compressor.storage.files import write_json
from compressor.storage.input_files import read_json
from compressor.storage.wrong_values import wanted

_Sublayer = Annotated[str, Field(pattern=rf"^({'|'.join(UNITS_OF)})\.")]
_Score = Annotated[float, Field(gt=-1e300, lt=1e300)]  # so that sums of them are finite, too


class _ScoresFile(BaseModel):
    """What `compress score` writes."""

    model_config = ConfigDict(strict=True)

    version: int = Field(alias="schema", ge=SCORES_SCHEMA, le=SCORES_SCHEMA)
    scores: dict[_Sublayer, Annotated[list[_Score], Field(min_length=1)]]
    method: str
    signature: str
    cost: dict[str, float]
    weights: str


def write_scores(path: Path, scores: Scores) -> dict[str, Any]:
    """Write scores, which have a fingerprint of the scored weights; returns what was written."""
    data = {**scores.to_json(), "weights": scores.weights}
    write_json(path, data)
    return data


def read_scores(path: Path) -> Scores:
    """Read a file that `compress score` wrote; `InputError` if it is none."""
    try:
        return Scores.from_json(_ScoresFile.model_validate(read_json(path)).model_dump())
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
    except ValidationError as error:
        wrong = error.errors()[0]
        reason = f"{'.'.join(map(str, wrong['loc']))[:80]}: {wanted(wrong)[:100]}"
    except ValueError as error:
        reason = str(error)[:300]
    raise InputError(
        f"{path} is not a scores file of this version: {reason}; make one with `compress score`",
        id="scores-unreadable",
    )


def is_scores_file(path: Path) -> bool:
    """Whether a file is one that `compress score` wrote."""
    try:
        read_scores(path)
    except InputError:
        return False
    return True


def require_weights(scores: Scores, model: str, weights: str) -> None:
    """Raise `UsageError` for scores of a model with another fingerprint than the one to prune."""
    if scores.weights and scores.weights != weights:
        raise _other_weights(model)


def require_counts(scores: Scores, model: str, counts: Mapping[str, int]) -> None:
    """Raise `UsageError` for scores of other units than a model has: sublayer -> how many."""
    if not {name: len(values) for name, values in scores.values.items()}.items() <= counts.items():
        raise _other_weights(model)


def _other_weights(model: str) -> UsageError:
    return UsageError(
        f"the scores are of another model than {model}: its weights differ; make new ones "
        "with `compress score`",
        id="scores-of-other-weights",
    )


def require_units(scores: Scores, units: Collection[str], budget: str) -> None:
    """Raise `UsageError` if units of a budget have no scores.

    Args:
        scores: from a file.
        units: heads, neurons, tokens.
        budget: in words.
    """
    missing = set(units) - {units_of(name) for name in scores.values}
    if missing:
        raise UsageError(
            f"{budget}: the scores are not of {' and '.join(sorted(missing))}; make them with "
            f"`compress score --prune {'all' if 'tokens' in missing else 'both'}`",
            id="scores-missing",
        )
