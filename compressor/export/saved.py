"""Saving a recovered model as a checkpoint, which loads back as it was."""

from __future__ import annotations

from pathlib import Path

from compressor.errors import VerificationError
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.memory import release
from compressor.model.sublayers import Scores, units_of
from compressor.recovery.pruned import recovered_checkpoint
from compressor.steps.context import Context
from compressor.steps.results import Check
from compressor.steps.values import RecoveredModel, Saved
from compressor.tasks.opened import ModelAndRows


def save_model(
    recovered: RecoveredModel,
    *,
    directory: Path,
    opened: ModelAndRows,
    context: Context,
) -> Saved:
    """Save a recovered model as a checkpoint, with the record of its units.

    Args:
        recovered: the units that are kept, and changed weights.
        directory: an empty one.
        opened: the dense model.
        context: with the seed, which the record has.

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
    """Scores of heads and of tokens, and of thousands of neurons with six digits."""
    return {
        name: [float(f"{x:.6g}") for x in values] if units_of(name) == "neurons" else list(values)
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
