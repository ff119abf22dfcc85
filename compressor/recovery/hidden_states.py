"""Hidden states, by which two models are compared.

A hidden state is the residual stream of real tokens after a Transformer layer (TinyBERT, Jiao et
al. 2020, equation 8; CoFi, Xia et al. 2022, section 2.3), whose width pruning does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.model.modes import record_outputs, tokens_of
from compressor.model.sublayers import Sublayer
from compressor.model.token_selection import tokens_left
from compressor.tasks import Batch, Objective
from compressor.tasks.batching import chosen


def outputs_of(
    model: nn.Module, task: Objective, batch: Batch, blocks: Sequence[Sublayer]
) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the hidden states after some layers, of one forward pass.

    Args:
        model: dense or pruned.
        task: says which tokens are real, and which have loss terms.
        batch: on the model's device.
        blocks: a sublayer of each of the layers.

    Returns:
        Logits [loss terms, classes or vocabulary], and for each block [real tokens, width]; of the
        tokens that it hands on.
    """
    with record_outputs(model, [block.layer_path for block in blocks]) as recorded:
        logits = task.logits(model, batch)
    states = []
    for block in blocks:
        output = recorded[block.layer_path]
        stream = output[0] if isinstance(output, tuple) else output
        states.append(chosen(stream, block_tokens(task, batch.host, model, block)))
    return chosen(logits, task.term_mask(batch.host)), states


def block_tokens(task: Objective, host: Batch, model: nn.Module, block: Sublayer) -> Tensor:
    """Which of the tokens that a layer computes are real.

    Args:
        task: says which tokens of the batch are real.
        host: the batch, in the host's memory.
        model: dense or pruned.
        block: a sublayer of the layer.

    Returns:
        [batch, tokens] bool, or [batch, 1] where the layer computes one token alone, or [batch,
        kept] where it hands on some.
    """
    return tokens_of(task.token_mask(host, block.kind), model, block.layer_path)


def shared_tokens(
    targets: Sequence[Tensor],
    student: nn.Module,
    task: Objective,
    batch: Batch,
    blocks: Sequence[Sublayer],
) -> list[Tensor]:
    """The dense model's hidden states of the tokens that the pruned one has left.

    Args:
        targets: of the dense model, [real tokens, width] for each block.
        student: the pruned model, whose latest run was of the batch.
        task: says which tokens are real.
        batch: on the model's device.
        blocks: a sublayer of each of the layers.

    Returns:
        In the order of the pruned model's tokens, [kept tokens, width] for each block.
    """
    states = []
    for target, block in zip(targets, blocks, strict=True):
        kept = tokens_left(student, block.layer_path)
        if kept is not None:
            mask = task.token_mask(batch, block.kind)  # [batch, tokens]
            numbers = (mask.flatten().cumsum(0) - 1).view_as(mask)  # of each real token
            real = block_tokens(task, batch.host, student, block)
            target = target[chosen(numbers.gather(1, kept.places), real)]
        states.append(target)
    return states


def variances(batches: Iterable[Sequence[Tensor]]) -> list[float]:
    """Variances of hidden states, the unit in which differences between two models are measured.

    The mean over the width of the variance over tokens, so that a weight of the difference means
    the same for every layer of every model.

    Args:
        batches: the hidden states of this rank's batches, [tokens, width] for each block.

    Returns:
        A variance per block, over all ranks; 1 where states are constant.
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
    tokens: Sequence[int],
) -> Tensor:
    """Mean squared difference of hidden states in units of their variance, averaged over blocks.

    0 where both are the same; about 1 for a model that knows each layer's mean alone.

    Args:
        states: of the pruned model, [tokens, width] for each block.
        targets: of the dense model, in the same shapes.
        variances: of the dense model, a number per block.
        tokens: the number of tokens that the mean of each block is over.
    """
    parts = [
        (state.float() - target.float()).square().mean(-1).sum() / (count * variance)
        for state, target, variance, count in zip(states, targets, variances, tokens, strict=True)
    ]
    return sum(parts[1:], start=parts[0]) / len(parts)
