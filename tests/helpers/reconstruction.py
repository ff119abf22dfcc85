"""What came of a repair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import log_softmax
from torch import nn

from compressor.model.sublayers import Mask
from compressor.recovery import RecoveryJob
from compressor.tasks import Batch, Example
from tests.helpers.stages import repair

MANY = 1500  # enough that every repair helps on the rows held out, too


def batches_of(setup: RecoveryJob) -> list[Batch]:
    return setup.task.batches(setup.examples, setup.dense)


def reconstructed(setup: RecoveryJob) -> nn.Module:
    return repair(setup, reconstruct={}).model


def one_head(layer: int, head: int):
    """A mask that removes a single head."""
    return lambda layers: Mask.full(layers).without([(layers[layer].name, head)])


@torch.no_grad()
def difference(setup: RecoveryJob, pruned: nn.Module) -> float:
    """Mean squared difference of the logits to the dense model's, over real tokens."""
    total, count = 0.0, 0
    for batch in batches_of(setup):
        expected = setup.task.logits(setup.dense, batch)
        actual = setup.task.logits(pruned, batch)
        if expected.dim() == 3:
            real = batch["labels"] != -100
            expected, actual = expected[real], actual[real]
        total += float((actual - expected).pow(2).sum())
        count += expected.numel()
    return total / count


@torch.no_grad()
def divergence(setup: RecoveryJob, model: nn.Module, rows: Sequence[Example]) -> float:
    """Mean KL(dense || pruned) by SciPy's log-softmax in double precision."""
    total, terms = 0.0, 0
    for batch in setup.task.batches(rows, setup.dense):
        mask = setup.task.term_mask(batch)
        wanted, found = (
            log_softmax(setup.task.logits(m, batch)[mask].double().numpy(), axis=-1)
            for m in (setup.dense, model)
        )
        total += float((np.exp(wanted) * (wanted - found)).sum())
        terms += len(wanted)
    return total / terms


@torch.no_grad()
def rows_of(model: nn.Module, path: str, setup: RecoveryJob, kind: str):
    """Inputs and outputs of a module over all real tokens, as NumPy [tokens, features]."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    for batch in batches_of(setup):
        real = setup.task.token_mask(batch, kind)

        def record(module, inputs, output, real=real):
            seen.append((inputs[0][real].double().numpy(), output[real].double().numpy()))

        handle = model.get_submodule(path).register_forward_hook(record)
        setup.task.logits(model, batch)
        handle.remove()
    inputs, outputs = zip(*seen, strict=True)
    return np.concatenate(inputs), np.concatenate(outputs)
