"""The residual stream after every Transformer layer, of real tokens, to compare two models by.

It keeps its width when heads or neurons go, so a pruned model's can be compared with the dense
model's without the projections that narrower students need (TinyBERT, Jiao et al. 2020, eq. 8;
CoFi, Xia et al. 2022, section 2.3).

What a layer returns is taken as it is: where layers end with a normalization (BERT, Marian), after
it; where they begin with one (mBART), before the normalization that follows the stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.model.modes import returned
from compressor.model.sublayers import Sublayer, by_layer
from compressor.tasks import Batch, Objective
from compressor.tasks.batching import chosen


def find_blocks(layers: Sequence[Sublayer]) -> list[Sublayer]:
    """One sublayer of each Transformer layer, in the order of execution: it stands for the layer,
    and its kind tells which tokens that works on."""
    return [sublayers[0] for sublayers in by_layer(layers).values()]


def observed(
    model: nn.Module, blocks: Sequence[Sublayer]
) -> AbstractContextManager[dict[str, Any]]:
    """What blocks return in the forward pass within the context, see `states_of`.

    A dictionary that is filled while the model runs. Gradients flow through its tensors.
    """
    return returned(model, [block.layer_path for block in blocks])


def states_of(
    found: Mapping[str, Any], blocks: Sequence[Sublayer], task: Objective, batch: Batch
) -> list[Tensor]:
    """What was observed, without padding: [real tokens, width] for each block, row by row."""
    outputs = [found[block.layer_path] for block in blocks]
    streams = [output[0] if isinstance(output, tuple) else output for output in outputs]
    masks = [task.token_mask(batch.host, block.kind) for block in blocks]
    return [chosen(stream, mask) for stream, mask in zip(streams, masks, strict=True)]


def variances(batches: Iterable[Sequence[Tensor]]) -> list[float]:
    """How far the dense model's hidden states lie from their mean, block by block.

    The mean over the width of the variance over tokens; the unit in which differences between two
    models are measured, so that a weight of them means the same for every layer of every model. A
    constant stream counts as 1.

    Args:
        batches: the hidden states of each batch of this rank: [tokens, width] for each block.
    """
    sums: list[Tensor] = []  # of each block, [width + 2] float64: sums, mean square, tokens
    for states in batches:
        rows = [
            torch.cat([x.sum(0), x.square().sum(0).mean()[None], x.new_tensor([len(x)])])
            for x in (state.double() for state in states)
        ]
        sums = [a + b for a, b in zip(sums, rows, strict=True)] if sums else rows
    ranks = [x for x in parallel.gather([x.cpu() for x in sums]) if x]  # some may have no rows
    spread = []
    for block in zip(*ranks, strict=True):
        found = torch.stack(block).sum(0)
        means = found[:-1] / found[-1]
        spread.append(float(means[-1] - means[:-1].square().mean()))
    return [variance if variance > 0 else 1.0 for variance in spread]


def difference(
    states: Sequence[Tensor],
    wanted: Sequence[Tensor],
    variances: Sequence[float],
    tokens: Sequence[int] | None = None,
) -> Tensor:
    """Mean squared difference of hidden states in units of their variance, mean over blocks.

    0 where both are the same; 1 is about what a model has that knows each layer's mean alone.

    Args:
        states: of the pruned model, [tokens, width] for each block.
        wanted: the dense model's, of the same shapes.
        variances: see the function.
        tokens: of each block, that the mean is over, where these are only some of them.
    """
    tokens = tokens or [len(found) for found in states]
    parts = [
        (found.float() - target.float()).square().mean(-1).sum() / (count * variance)
        for found, target, variance, count in zip(states, wanted, variances, tokens, strict=True)
    ]
    return sum(parts[1:], start=parts[0]) / len(parts)
