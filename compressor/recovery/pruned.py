"""Removing the units that were not chosen, and recovering what is left."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

from compressor import parallel
from compressor.model.checkpoint import Checkpoint, round_to
from compressor.model.memory import trim_memory
from compressor.model.modes import shared_copy
from compressor.model.surgery import prune, verify_surgery, without_skipped
from compressor.recovery.planning import RecoveryPlan, recover
from compressor.steps.context import Context
from compressor.steps.values import ChosenUnits, Pruned, RecoveredModel
from compressor.tasks.opened import ModelAndRows

if TYPE_CHECKING:
    from torch import Tensor, nn


def prune_units(chosen: ChosenUnits, *, opened: ModelAndRows) -> Pruned:
    """Remove the units that were not chosen.

    Raises:
        VerificationError: the model does not answer as with these units masked.
    """
    layers, model = opened.checkpoint.layers, chosen_model(chosen, opened)
    pruned = prune(model, layers, chosen.mask)
    cut = without_skipped(opened.checkpoint, pruned, chosen.mask).model
    on_tokens = opened.task.head_on_tokens
    check = verify_surgery(model, cut, layers, chosen.mask, opened.inputs, on_tokens)
    return Pruned(chosen, check)


def recover_units(
    pruned: Pruned,
    plan: RecoveryPlan,
    *,
    directory: Path,
    opened: ModelAndRows,
    context: Context,
) -> RecoveredModel:
    """Recover a pruned model; a training that was stopped goes on.

    Args:
        pruned: the units that are kept.
        plan: how.
        directory: for the weights that are no longer the pruned model's.
        opened: the dense model, and the rows to recover on.
        context: how to compute.
    """
    model = chosen_model(pruned.chosen, opened)
    cut = prune(model, opened.checkpoint.layers, pruned.mask)
    state = context.state_file("recovery.safetensors")
    recovered = recover(plan, cut, pruned.mask, opened=opened, context=context, state=state)
    if recovered.model is cut:
        return RecoveredModel(pruned)
    path = directory / "recovered.safetensors"

    def write_changed() -> None:
        before, after = cut.state_dict(), recovered.model.state_dict()
        same = {name for name, x in after.items() if x.data_ptr() == before[name].data_ptr()}
        write_weights({name: x for name, x in after.items() if name not in same}, path)

    parallel.on_main(write_changed)
    return RecoveredModel(pruned, recovered.text, path)


def chosen_model(chosen: ChosenUnits, opened: ModelAndRows) -> nn.Module:
    """What units are cut from: the dense model, or one with the weights of the choice."""
    if chosen.weights is None:
        return opened.checkpoint.model
    model = copy.deepcopy(opened.checkpoint.model)
    model.load_state_dict(load_file(chosen.weights))
    return model


def recovered_checkpoint(recovered: RecoveredModel, opened: ModelAndRows) -> Checkpoint:
    """The recovered model as it is stored, without skipped layers, and what belongs to it."""
    trim_memory()
    model = chosen_model(recovered.chosen, opened)
    cut = prune(model, opened.checkpoint.layers, recovered.mask)
    if recovered.weights is not None:
        cut = _with_weights(cut, load_file(recovered.weights))
    small = without_skipped(opened.checkpoint, cut, recovered.mask)
    round_to(small.model, opened.checkpoint.dtype)  # so that checks are of what is stored
    return small


def _with_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a model with other values of some weights, which shares the rest."""
    named: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    named |= model.named_buffers(remove_duplicate=False)
    changed = shared_copy(model, [named[name] for name in weights])
    changed.load_state_dict(weights, strict=False)
    return changed


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights, of which several may share memory, to a file."""
    # The file format refuses tensors that share memory: every name gets a copy.
    tensors = {name: x.to("cpu", copy=True).contiguous() for name, x in weights.items()}
    save_file(tensors, path)


def keep_weights(model: nn.Module, directory: Path) -> Path:
    """Keep all weights of a model that belong to a choice of units; the path of their file."""
    path = directory / "weights.safetensors"
    parallel.on_main(lambda: write_weights(model.state_dict(), path))
    return path
