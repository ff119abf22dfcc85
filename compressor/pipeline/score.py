"""Scores of units over the calibration rows, and the file that `compress score` writes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from compressor import parallel
from compressor.budgets import Counts
from compressor.budgets.units import select
from compressor.errors import InputError, UsageError
from compressor.evaluation import main_metric, require_sight
from compressor.importance import ScoringJob, ScoringMethod, UnitMethod, score_units
from compressor.importance.ablation_runs import layers_to_drop
from compressor.model.checkpoint import Checkpoint
from compressor.model.location import resolve, weight_files
from compressor.model.sublayers import SCORES_SCHEMA, UNITS_OF, Mask, Scores, Sublayer, units_of
from compressor.model.surgery import skipped
from compressor.pipeline.inputs import ModelAndRows
from compressor.progress import Progress
from compressor.request.recipe import PruneRequest
from compressor.request.sections import ModelSection
from compressor.storage.files import write_json
from compressor.storage.hashes import fingerprint
from compressor.storage.input_files import read_json

MOST_SCORE = 1e300
_FIELDS = {"scores": dict, "method": str, "signature": str, "cost": dict, "weights": str}


def score(
    mask: Mask,
    *,
    source: ModelAndRows,
    method: UnitMethod,
    sublayers: Sequence[Sublayer],
    seed: int,
    device: str,
    progress: Progress,
    model: nn.Module | None = None,
) -> Scores:
    """Scores of all units of some sublayers.

    Args:
        mask: units that are left; the others are gated to zero and score zero. Layers that it
            drops are skipped; their units have no scores.
        model: one of the checkpoint's shape, to be scored in its place.
    """
    assert isinstance(method, ScoringMethod)
    task, rows, layers = source.task, source.rows, source.checkpoint.layers
    model = model or source.checkpoint.model

    def require_metric_sees(asked: str, answers: Sequence[str]) -> None:
        if rows is not None and mask.count() == mask.total():
            require_sight(rows, answers, asked)

    scoring = ScoringJob(
        model=model.to(device),
        layers=[x for x in sublayers if x.layer not in mask.dropped],
        mask=mask,
        batches=task.batches(parallel.shard(source.examples), model) if method.needs_rows else [],
        task=task,
        tokenizer=source.checkpoint.tokenizer,
        metric=None if rows is None else lambda answers: main_metric(rows, answers),
        require_sight=require_metric_sees,
        seed=seed,
        device=device,
        progress=partial(progress.update, "scoring"),
        report=progress.message,
    )
    try:
        with skipped(model, layers, mask):
            return parallel.agree(score_units(method, scoring))
    finally:
        model.to("cpu")


def find_layers(
    numbers: Mapping[str, int],
    dropped: Sequence[str],
    *,
    source: ModelAndRows,
    device: str,
    progress: Progress,
) -> dict[str, float]:
    """The layers whose skipping changes predictions least, and the divergence in nats; in order.

    Args:
        numbers: stack -> how many of its layers go, after those `dropped` before.
    """
    model, layers = source.checkpoint.model, source.checkpoint.layers
    batches, report = source.task.batches(parallel.shard(source.examples), model), progress.update
    return layers_to_drop(
        model, layers, batches, source.task, numbers, device, partial(report, "layers"), dropped
    )


def write_scores(path: Path, scores: Scores, model: ModelSection) -> dict[str, Any]:
    """Write scores with a fingerprint of the scored weights; returns what was written."""
    data = {**scores.to_json(), "weights": scores.weights or weights_of(model)}
    write_json(path, data)
    return data


def read_scores(path: Path) -> Scores:
    """Read a file that `compress score` wrote; `InputError` if it is none."""
    try:
        data = read_json(path)
        if isinstance(data, dict) and "scores" in data and data.get("schema") != SCORES_SCHEMA:
            raise InputError(
                f"{path} has scores of schema {str(data.get('schema', 'none'))[:40]}, this version "
                f"reads {SCORES_SCHEMA}; make them again with `compress score`",
                id="scores-version",
            )
        _require_scores(data)
    except OSError as error:
        raise InputError(
            f"cannot read scores {path}: {error.strerror}; make them with `compress score`",
            id="scores-unreadable",
        ) from error
    except ValueError as error:
        raise InputError(
            f"{path} is not a scores file: {str(error)[:300]}; make one with `compress score`",
            id="scores-unreadable",
        ) from error
    return Scores.from_json(data)


def is_scores_file(path: Path) -> bool:
    """Whether a file holds scores, of this version or another."""
    try:
        read_scores(path)
    except InputError as error:
        return error.id == "scores-version"
    return True


def require_weights(scores: Scores, model: ModelSection) -> None:
    """Raise `UsageError` for scores of other weights than those of the model to prune."""
    if scores.weights and scores.weights != weights_of(model):
        raise UsageError(
            f"the scores are of another model than {model.path}: its weights differ; make new ones "
            "with `compress score`",
            id="scores-of-other-weights",
        )


def select_units(
    request: PruneRequest, scores: Scores, checkpoint: Checkpoint
) -> tuple[Counts, Mask]:
    """The budget of `compress prune`, and the units that it keeps by scores."""
    full = Mask.full(checkpoint.layers)
    if not {name: len(v) for name, v in scores.values.items()}.items() <= full.counts().items():
        raise UsageError(
            f"the scores are of another model than {request.model.path}: its sublayers differ; "
            "make new ones with `compress score`",
            id="scores-of-another-model",
        )
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


def _require_scores(data: Any) -> None:
    """Raise ValueError for JSON that is not what `write_scores` writes."""
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    for name, kind in _FIELDS.items():
        if not isinstance(data.get(name), kind):
            raise ValueError(f"it has no {name}, or something else in its place")
    for name, values in data["scores"].items():
        if name.partition(".")[0] not in UNITS_OF or not isinstance(values, list) or not values:
            raise ValueError(f"{name[:40]!r} is no sublayer with scores")
        for unit, value in enumerate(values):
            # False for NaN too.
            if type(value) not in (int, float) or not -MOST_SCORE < value < MOST_SCORE:
                raise ValueError(f"unit {unit} of {name} is scored {str(value)[:40]}, not a number")
    if not all(type(value) in (int, float) for value in data["cost"].values()):
        raise ValueError("its cost is not made of numbers")
