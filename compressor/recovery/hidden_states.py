"""The residual stream of real tokens after every Transformer layer, to compare two models.

Pruning does not change its width, so the pruned and the dense model compare without the projections
that narrower students need (TinyBERT, Jiao et al. 2020, eq. 8; CoFi, Xia et al. 2022, section 2.3).

States are the layers' outputs: after the normalization in post-norm models (BERT, Marian), before
the final normalization of the stack in pre-norm models (mBART).
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
    """The first sublayer of each Transformer layer, in order of execution, to stand for the layer:
    its kind determines which tokens the layer processes."""
    return [sublayers[0] for sublayers in by_layer(layers).values()]


def record_outputs(
    model: nn.Module, blocks: Sequence[Sublayer]
) -> AbstractContextManager[dict[str, Any]]:
    """Record the outputs of blocks in forward passes within the context, for `states_of`.

    The dictionary is filled while the model runs. Gradients flow through its tensors.
    """
    return returned(model, [block.layer_path for block in blocks])


def states_of(
    recorded: Mapping[str, Any], blocks: Sequence[Sublayer], task: Objective, batch: Batch
) -> list[Tensor]:
    """Recorded states without padding: [real tokens, width] for each block, row by row."""
    outputs = [recorded[block.layer_path] for block in blocks]
    streams = [output[0] if isinstance(output, tuple) else output for output in outputs]
    masks = [task.token_mask(batch.host, block.kind) for block in blocks]
    return [chosen(stream, mask) for stream, mask in zip(streams, masks, strict=True)]


def variances(batches: Iterable[Sequence[Tensor]]) -> list[float]:
    """Variances of the dense model's hidden states, block by block.

    The mean over the width of the variance over tokens. It is the unit of differences between two
    models, so that their weight has the same meaning for all layers and models. 1 for a constant
    stream.

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
        total = torch.stack(block).sum(0)
        means = total[:-1] / total[-1]
        spread.append(float(means[-1] - means[:-1].square().mean()))
    return [variance if variance > 0 else 1.0 for variance in spread]


def difference(
    states: Sequence[Tensor],
    targets: Sequence[Tensor],
    variances: Sequence[float],
    tokens: Sequence[int] | None = None,
) -> Tensor:
    """Mean squared difference of hidden states in units of their variance, mean over blocks.

    0 for equal states; about 1 for a model that outputs each layer's mean.

    Args:
        states: of the pruned model, [tokens, width] for each block.
        targets: the dense model's, of the same shapes.
        variances: from the function of that name.
        tokens: number of tokens to average over for each block, if `states` has some of them.
    """
    tokens = tokens or [len(own) for own in states]
    parts = [
        (own.float() - target.float()).square().mean(-1).sum() / (count * variance)
        for own, target, variance, count in zip(states, targets, variances, tokens, strict=True)
    ]
    return sum(parts[1:], start=parts[0]) / len(parts)
