"""Whether an artifact's graphs answer as its weights do."""

from __future__ import annotations

from pathlib import Path

from compressor.export.task_graphs import Network, require_same_weights
from compressor.model.checkpoint import open_checkpoint
from compressor.model.location import INDEX, WEIGHTS
from compressor.runtime.artifact import Artifact
from compressor.runtime.opening import open_output_tokens
from compressor.steps.results import Check
from compressor.tasks import TASKS
from compressor.tasks.opened import random_check_batches


def has_weights(directory: Path) -> bool:
    """Whether a directory holds a checkpoint."""
    return any((directory / name).exists() for name in (WEIGHTS, INDEX))


def verify_weights(directory: Path, artifact: Artifact | None) -> list[Check]:
    """Load a checkpoint, and compare it with the graphs beside it.

    Args:
        directory: with weights.
        artifact: the description of its graphs; None without graphs.

    Raises:
        InputError: the checkpoint cannot be loaded.
        VerificationError: the graphs do not answer as the weights do.
    """
    if artifact is None:
        open_checkpoint(str(directory), verify=False)
        return []
    task = TASKS[artifact.task]
    checkpoint = open_checkpoint(
        str(directory), task=artifact.task, auto_class=task.auto_class, verify=False
    )
    inputs = [batch.inputs() for batch in random_check_batches(checkpoint, task)]
    scored = None
    if artifact.scored and artifact.scored[1]:
        scored = open_output_tokens(directory, artifact).ids.tolist()
    network = Network(checkpoint, checkpoint.model, checkpoint.mask, scored)
    require_same_weights(task.graphs, network, artifact, directory)
    checks = list(task.graphs.check(checkpoint.model, directory, inputs))
    return checks + list(task.graphs.verify_engines(network, directory, inputs))
