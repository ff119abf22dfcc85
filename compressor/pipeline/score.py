"""Scores of units over the calibration rows, and the file that `compress score` writes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from compressor import parallel
from compressor.budgets import Counts
from compressor.budgets.units import select
from compressor.errors import InputError, UsageError
from compressor.evaluation import main_metric, require_above_chance
from compressor.importance import ScoringJob, ScoringMethod, UnitMethod, score_units
from compressor.importance.depth import layers_to_drop
from compressor.model.checkpoint import Checkpoint
from compressor.model.location import resolve, weight_files
from compressor.model.sublayers import SCORES_SCHEMA, UNITS_OF, Mask, Scores, Sublayer, units_of
from compressor.model.surgery import skipped
from compressor.options.requests import PruneRequest
from compressor.options.sections import ModelSection
from compressor.pipeline.context import Context
from compressor.pipeline.values import ModelAndRows
from compressor.storage.files import write_json
from compressor.storage.hashes import fingerprint
from compressor.storage.input_files import read_json
from compressor.storage.wrong_values import wanted


def score(
    mask: Mask,
    method: UnitMethod,
    sublayers: Sequence[Sublayer],
    *,
    opened: ModelAndRows,
    context: Context,
    model: nn.Module | None = None,
) -> Scores:
    """Scores of all units of some sublayers, of the checkpoint's model or another of its shape.

    Args:
        mask: units that it removes are gated to zero and score zero; layers that it drops are
            skipped, and their units have no scores.
        method: how to score.
        sublayers: of the checkpoint, whose units are scored.
        opened: the checkpoint, and the rows to score on.
        model: with the checkpoint's shape and other weights; None: the checkpoint's.
    """
    assert isinstance(method, ScoringMethod)
    task, rows = opened.task, opened.rows
    progress = context.progress
    model = model or opened.checkpoint.model
    examples = parallel.shard(opened.examples) if method.needs_rows else []

    def require_metric_sees(asked: str, answers: Sequence[str]) -> None:
        if rows is not None and mask.count() == mask.total():
            require_above_chance(rows, answers, asked)

    scoring = ScoringJob(
        model=model.to(context.device),
        mask=mask,
        layers=[x for x in sublayers if x.layer not in mask.dropped],
        batches=task.batches(examples, model, device=context.device),
        task=task,
        tokenizer=opened.checkpoint.tokenizer,
        metric=None if rows is None else lambda answers: main_metric(rows, answers),
        require_above_chance=require_metric_sees,
        seed=context.seed,
        device=context.device,
        report=progress.message,
        progress=partial(progress.update, "scoring"),
    )
    try:
        with skipped(model, opened.checkpoint.layers, mask):
            return parallel.agree(score_units(method, scoring))
    finally:
        model.to("cpu")


def find_layers(
    numbers: Mapping[str, int], dropped: Sequence[str], *, opened: ModelAndRows, context: Context
) -> dict[str, float]:
    """The layers whose skipping changes predictions least, in the order in which they go.

    Args:
        numbers: stack -> how many of its layers go.
        dropped: layers that go before.
        opened: the model, and the rows whose predictions count.

    Returns:
        Layer, as `decoder.2` -> divergence from the dense model without it and those before, nats.
    """
    model, layers = opened.checkpoint.model, opened.checkpoint.layers
    batches = opened.task.batches(parallel.shard(opened.examples), model, device=context.device)
    report = partial(context.progress.update, "layers")
    return layers_to_drop(
        model, layers, batches, opened.task, numbers, context.device, report, dropped
    )


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


def write_scores(path: Path, scores: Scores, model: ModelSection) -> dict[str, Any]:
    """Write scores with a fingerprint of the scored weights; returns what was written."""
    data = {**scores.to_json(), "weights": scores.weights or weights_of(model)}
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


def other_weights(model: ModelSection) -> UsageError:
    """The error of scores of another model than the one to prune."""
    return UsageError(
        f"the scores are of another model than {model.path}: its weights differ; make new ones "
        "with `compress score`",
        id="scores-of-other-weights",
    )


def units_by_scores(
    request: PruneRequest, scores: Scores, checkpoint: Checkpoint
) -> tuple[Counts, Mask]:
    """The budget of `compress prune`, and the units that it keeps by scores."""
    full = Mask.full(checkpoint.layers)
    if not {name: len(v) for name, v in scores.values.items()}.items() <= full.counts().items():
        raise other_weights(request.model)
    budgets = request.budget.each()
    if len(budgets) != 1:
        raise UsageError(
            "say once how many units to keep, for example --keep 0.5", id="budget-twice"
        )
    (budget,) = budgets
    missing = budget.units(full) - {units_of(name) for name in scores.values}
    if missing:
        raise UsageError(
            f"{budget.text}: the scores are not of {' and '.join(sorted(missing))}; make them with "
            "`compress score --prune both`",
            id="scores-missing",
        )
    limits = budget.limits(full)
    budget.require_possible(limits)
    return budget, select(scores, full, budget.amounts(full), limits.floors, limits.multiples)


def weights_of(model: ModelSection) -> str:
    """A fingerprint of the files of a checkpoint's weights."""
    directory = resolve(model.path, model.revision, model.allow_pickle)
    return fingerprint(weight_files(directory, model.allow_pickle))
