"""From chosen units to a model that is delivered: prune, recover, save, export.

Each takes what the one before made, and checks its result against it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

from compressor import parallel
from compressor.errors import VerificationError
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.model.checkpoint import Checkpoint, open_checkpoint, round_to, save_checkpoint
from compressor.model.memory import release, trim_memory
from compressor.model.modes import shared_copy
from compressor.model.sublayers import Scores, units_of
from compressor.model.surgery import prune, verify_surgery, without_skipped
from compressor.pipeline.context import Context
from compressor.pipeline.recover import recover
from compressor.pipeline.values import (
    ChosenUnits,
    ModelAndRows,
    Pruned,
    RecoveredModel,
    RecoveryPlan,
    Saved,
)
from compressor.results import Check

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
        plan: how.
        directory: for the weights that are no longer the pruned model's.
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


def save_model(
    recovered: RecoveredModel,
    *,
    directory: Path,
    opened: ModelAndRows,
    context: Context,
) -> Saved:
    """Save a recovered model as a checkpoint, with the record of its units.

    Args:
        directory: an empty one.

    Raises:
        VerificationError: it does not load back bit for bit.
    """
    small, dense = recovered_checkpoint(recovered, opened), opened.checkpoint
    chosen, mask = recovered.chosen, recovered.mask
    record = {
        "schema": 2,
        "model": dense.published_name,
        "revision": dense.revision,
        "task": dense.task,
        "method": chosen.scores.method,
        "signature": chosen.scores.signature,
        "budget": chosen.budget,
        "seed": context.seed,
        "units": mask.totals(),
        "kept": mask.to_json(),
        **({"dropped_layers": sorted(mask.dropped)} if mask.dropped else {}),
        "scores": _recorded(chosen.scores),
        "selection": chosen.text,
        "recovery": recovered.text or "none",
    }
    save_checkpoint(dense, small.model, record, directory)
    check = verify_reload(small, directory, opened)
    release(small.model, keep=dense.model)  # whose weights it shares where nothing was removed
    return Saved(recovered, directory, check)


def _recorded(scores: Scores) -> dict[str, list[float]]:
    """Scores of heads, and of thousands of neurons with six digits."""
    return {
        name: list(values) if units_of(name) == "heads" else [float(f"{x:.6g}") for x in values]
        for name, values in scores.values.items()
    }


def verify_reload(checkpoint: Checkpoint, directory: Path, opened: ModelAndRows) -> Check:
    """Compare a model, bit for bit, and its tokenizer with the files that they were saved to."""
    import torch

    reopened = open_checkpoint(str(directory), verify=False)
    TokenizerProbe.of(checkpoint, *opened.texts).check_saved(directory, reopened.tokenizer)
    loaded, saved = reopened.model.state_dict(), checkpoint.model.state_dict()
    if set(saved) != set(loaded) or not all(torch.equal(saved[k], loaded[k]) for k in saved):
        raise VerificationError(
            f"the checkpoint in {directory} does not load back as it was saved; please report this",
            id="reloaded-differs",
        )
    detail = f"{len(saved)} tensors, bit for bit"
    return Check(name="reloaded equals saved", largest_difference=0.0, tolerance=0.0, detail=detail)


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
