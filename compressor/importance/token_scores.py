"""Scores of tokens: the error that handing on fewer of them adds, in the unit of second order.

E_i(s) is the error of handing on s tenths of a row's tokens from layer i on, while the layers
before it hand on all. It is measured: twice the divergence of the predictions, which is the
Fisher information's quadratic form of a small change (Kullback 1959, chapter 2), per row. Second
order measures the same form by gradients of the loss on labelled rows, the empirical Fisher
information. Where labels fit better than the predicted probabilities say, as on rows that a model
was trained on, that one is smaller; and of numbers it has the squared error of the predictions in
it. So the measured form is multiplied by the ratio of both at the predictions,

    E |dL/dz|^2 / E tr(d^2 divergence / dz^2),    z the model's logits.

That layer i drops the tenth t costs e_i(t) = E_i(t) - E_i(t + 1), with all later layers, to whom
it does not come. Its score is what that costs over dropping it in the next layer only, e_i(t) -
e_(i+1)(t), so that scores of all that a schedule drops add up to its error.

Tenths go in order: the most significant last, and from late layers first. Scores are the nearest
numbers that rise in this order (isotonic regression on a partial order, Spouge, Wan & Wilbur 2003).
Their sets of lowest scores are then the schedules with the least error for their tokens (Picard
1976), and groups of scores that are equal add up to what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.importance import ScoringJob
from compressor.model.modes import evaluating, fixed_outputs, frozen, hooks, record_outputs
from compressor.model.sublayers import TOKEN_KIND, TOKEN_UNITS, Mask
from compressor.model.surgery import masked
from compressor.model.token_selection import layers_left
from compressor.tasks import Batch

# Ratio of successive scores, so that rounding keeps their order.
_STEP = 1 + 1e-9

# Each level is a run of its own, so that all take many times as long as other scores. Errors are of
# few rows, so that few rows would not do: with 256 of MiniLM's the chosen schedules have about a
# quarter more error than with 2,048, with 512 a tenth.
MOST_TOKENS = 65_536
LEAST_ROWS = 256


def token_names(mask: Mask) -> list[str]:
    """Entries of a mask for tokens of each layer that is left, but the last: `encoder_tokens.1`."""
    left = [x for x in mask.layers() if x.startswith("encoder") and x not in mask.dropped]
    names = [f"{TOKEN_KIND}.{layer.partition('.')[2]}" for layer in left[:-1]]
    return names if mask.total(TOKEN_KIND) else []


def levels_below(left: Sequence[int]) -> list[tuple[int, int]]:
    """The (layer, tenths) to measure where layers hand on so many tenths."""
    return [(i, tenths) for i, most in enumerate(left) for tenths in range(most)]


def runs_for_tokens(scoring: ScoringJob) -> int:
    """How often `token_scores` runs the model, or what is behind one of its layers, on a batch."""
    left = scoring.mask.handed_on()
    return 1 + len(levels_below(left)) if left else 0


def token_scores(scoring: ScoringJob) -> dict[str, list[float]]:
    """The error that each tenth of each layer adds, in nats squared per row.

    Args:
        scoring: the model and the calibration batches. Errors are those that come on top of what
            its mask removes; `progress` gets (runs done, runs).

    Returns:
        Entry of the mask -> `TOKEN_UNITS` scores. Those of units that are left rise strictly in the
        order in which they have to go; others are 0.
    """
    left = scoring.mask.handed_on()
    errors = measured_errors(scoring, left)
    fitted = in_order(telescoped(errors, left), left)
    names = token_names(scoring.mask)
    kept = [scoring.mask.kept(name) for name in names]
    values = {name: [0.0] * TOKEN_UNITS for name in names}
    highest = 0.0
    # Of equal ones those of later layers, and later tenths, are first.
    for i, t in sorted(levels_below(left), key=lambda x: (fitted[x[0]][x[1]], -sum(x))):
        highest = max(fitted[i][t], highest * _STEP, math.nextafter(highest, math.inf))
        values[names[i]][kept[i][t]] = highest
    return values


def spread_rows(batches: Sequence[Batch]) -> list[Batch]:
    """Take every so many-th row of batches, at least one of each, of about `MOST_TOKENS` tokens.

    Of long rows there are at least `LEAST_ROWS`, if there are that many.

    Args:
        batches: of this rank, in any order; as many are returned.
    """
    rows = parallel.total(sum(len(batch.rows) for batch in batches))
    tokens = parallel.total(sum(batch["input_ids"].numel() for batch in batches))
    every = max(1, min(math.ceil(tokens / MOST_TOKENS), rows // LEAST_ROWS))
    taken, before = [], 0
    for batch in batches:
        first = min(-before % every, len(batch.rows) - 1)
        taken.append(batch.lines(slice(first, None, every), batch.spare))
        before += len(batch.rows)
    return taken


@torch.no_grad()
def measured_errors(scoring: ScoringJob, left: Sequence[int]) -> dict[tuple[int, int], float]:
    """Measure E_i(s) for all of `levels_below(left)`, in nats squared per row.

    What is before layer i runs once for all; the rest runs with the tokens that are left, on
    `spread_rows`.

    Args:
        scoring: the model and the calibration batches.
        left: tenths that each layer of the model with the job's mask hands on.
    """
    model, task = scoring.model, scoring.task
    mask = scoring.mask
    names, levels = token_names(mask), levels_below(left)
    masks = [
        mask.without((name, unit) for name in names[i:] for unit in mask.kept(name)[tenths:])
        for i, tenths in levels
    ]
    paths = layers_left(model)
    batches = spread_rows(scoring.batches)
    sums = torch.zeros(len(levels) + 2, dtype=torch.float64)
    total = len(batches) * (1 + len(levels))
    done = 0

    def predictions(batch: Batch) -> Tensor:
        # A small divergence in float32 is all rounding.
        return task.predictions(task.logits(model, batch)[task.term_mask(batch)].double())

    with evaluating(model):
        for on_host in batches:
            batch = on_host.to(scoring.device)
            with masked(model, scoring.layers, mask, hides=False):
                with record_outputs(model, paths) as outputs:
                    target = predictions(batch)
                with fixed_outputs(model, outputs):
                    sums[-2:] += torch.tensor(_squares(scoring, batch), dtype=torch.float64)
            scoring.progress(done := done + 1, total)
            for number, ((i, _), cut) in enumerate(zip(levels, masks, strict=True)):
                before = {path: outputs[path] for path in paths[:i]}
                with masked(model, scoring.layers, cut, hides=False), fixed_outputs(model, before):
                    sums[number] += float(task.divergence(predictions(batch), target))
                scoring.progress(done := done + 1, total)
    parallel.add_up(sums)
    rows = parallel.total(sum(len(batch.rows) for batch in batches))
    *divergences, slopes, curvature = sums.tolist()
    # Where the divergence has no curvature it is zero, too.
    factor = 2 * (slopes / curvature if curvature > 0 else 1.0) / rows
    return {level: factor * x for level, x in zip(levels, divergences, strict=True)}


def _squares(scoring: ScoringJob, batch: Batch) -> tuple[float, float]:
    """Squared gradient of the loss by the logits, and the trace of the divergence's curvature.

    Both are summed over the rows of a batch.
    """
    model, task = scoring.model, scoring.task
    leaves: list[Tensor] = []

    def detach(module: nn.Module, inputs: Any, output: Any) -> Any:
        leaves.append(output.logits.detach().requires_grad_())
        output["logits"] = leaves[-1]
        return output

    with torch.enable_grad(), frozen(model), hooks([model.register_forward_hook(detach)]):
        (slopes,) = torch.autograd.grad(task.loss(model, batch), leaves[-1:])
        logits = task.logits(model, batch)
        predictions = task.predictions(logits[task.term_mask(batch)])
        divergence = task.divergence(predictions, predictions.detach())
        (gradient,) = torch.autograd.grad(divergence, leaves[-1:], create_graph=True)
        curvature = 0.0
        for column in range(gradient.shape[-1]):
            summed = gradient[..., column].sum()
            (change,) = torch.autograd.grad(summed, leaves[-1:], retain_graph=True)
            curvature += float(change[..., column].sum())
    return float(slopes.square().sum()), curvature


def telescoped(errors: Mapping[tuple[int, int], float], left: Sequence[int]) -> list[list[float]]:
    """What dropping each tenth costs over dropping it in the next layer only.

    Args:
        errors: (layer, tenths) -> E_i(s), for all of `levels_below(left)`.
        left: tenths that each layer hands on.

    Returns:
        For each layer one number per tenth that is left.
    """

    def marginal(i: int, t: int) -> float:
        if i == len(left) or t >= left[i]:
            return 0.0
        return errors[i, t] - errors.get((i, t + 1), 0.0)

    return [[marginal(i, t) - marginal(i + 1, t) for t in range(n)] for i, n in enumerate(left)]


def in_order(values: Sequence[Sequence[float]], left: Sequence[int]) -> list[list[float]]:
    """The nearest numbers, by squares, that fall neither with earlier layers nor with lower tenths.

    Numbers of a set are all its mean, unless a part of them that can go first has a lower mean;
    then both parts are looked at in turn.

    Args:
        values: for each layer, of tenths from the most significant on.
        left: how many each layer has, which do not rise from layer to layer.

    Returns:
        Numbers from 0, in the shape of `values`.
    """
    fitted = [[0.0] * n for n in left]
    sets = [([0] * len(left), list(left))]  # of each layer the tenths from lower up to upper
    while sets:
        lower, upper = sets.pop()
        cells = [(i, t) for i in range(len(left)) for t in range(lower[i], upper[i])]
        if not cells:
            continue
        mean = math.fsum(values[i][t] for i, t in cells) / len(cells)
        scale = max(abs(values[i][t]) for i, t in cells)
        gain, split = _best_part(values, mean, lower, upper)
        if gain > 1e-9 * scale and split not in (lower, upper):
            sets += [(lower, split), (split, upper)]
            continue
        for i, t in cells:
            fitted[i][t] = max(mean, 0.0)
    return fitted


def _best_part(
    values: Sequence[Sequence[float]], mean: float, lower: Sequence[int], upper: Sequence[int]
) -> tuple[float, list[int]]:
    """The part that can go first and lies most below a mean, in the sum over its tenths.

    Returns:
        By how much it lies below, and how many tenths it leaves each layer.
    """
    # Per tenths that a layer keeps, at most: the best sum over it and all layers behind, and which.
    best: list[tuple[float, list[int]]] = [(0.0, [])] * (TOKEN_UNITS + 1)
    for i in reversed(range(len(lower))):
        below = [mean - value for value in values[i][lower[i] : upper[i]]]
        # Of keeping lower, lower + 1, … upper tenths.
        sums = [*accumulate(reversed(below), initial=0.0)][::-1]
        exactly = {
            lower[i] + number: (total + best[lower[i] + number][0], lower[i] + number)
            for number, total in enumerate(sums)
        }
        following = []
        for most in range(TOKEN_UNITS + 1):
            chosen = max(((x, -s) for s, (x, _) in exactly.items() if s <= most), default=None)
            if chosen is None:
                following.append((-math.inf, list[int]()))
            else:
                total, tenths = chosen[0], -chosen[1]
                following.append((total, [tenths, *best[tenths][1]]))
        best = following
    return best[TOKEN_UNITS]
