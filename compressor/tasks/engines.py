"""The engines that run models of a task, and the device that a command computes on."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.errors import EnvironmentProblem, UsageError
from compressor.progress import Progress
from compressor.runtime.engines.pytorch import PyTorch
from compressor.runtime.session import choose_device
from compressor.storage.names import ONNXRUNTIME
from compressor.tasks import Task


def pick_device(wanted: str, progress: Progress) -> str:
    """The device to compute on with torch and onnxruntime alike; a named one must do for both."""
    device = choose_device(wanted)
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        problem = f"onnxruntime can use the GPU, but torch {torch.__version__} cannot"
        if wanted == "cuda":
            raise EnvironmentProblem(
                f"{problem}; install a CUDA build of torch, or --device cpu",
                id="torch-without-cuda",
            )
        progress.message(f"{problem}: everything runs on the CPU")
        return "cpu"
    return device


def require_engines(names: Sequence[str], task: Task, device: str = "cpu") -> None:
    """Check, before anything long is computed, that engines run models of the task on a device."""
    for name in names:
        engine = task.engine(name)
        if engine.dense_only and not task.plain_logits:
            raise UsageError(
                f"the engine {name} runs no models for {task.name}; leave it out of --engines",
                id="engine-not-for-task",
            )
        if name != ONNXRUNTIME:
            engine.library()
            engine.choose_device(device)


def engines_to_measure(engines: Sequence[str], task: Task, device: str, timed: bool) -> list[str]:
    """The engines of a run: those that were asked for, and where a GPU is timed PyTorch, too.

    Without it the dense model might look slower than what a user has already.
    """
    measured, rival = list(engines), PyTorch.name
    if timed and device == "cuda" and rival not in measured and task.plain_logits:
        measured += [rival] * PyTorch.library().cuda.is_available()
    return measured
