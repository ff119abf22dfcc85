"""Recovery after pruning: better weights for the remaining units.

One file per method, with its options and its function in one class, and one line each in
`RECOVERIES`; `recover` runs them. Importing a method imports no torch: its options are part of the
help.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from compressor.errors import UsageError
from compressor.options.declare import Options
from compressor.options.table import Table
from compressor.training.job import TrainingJob

if TYPE_CHECKING:
    from torch import nn

    from compressor.model.sublayers import Mask
    from compressor.tasks import Task
    from compressor.training.precision import Precision
    from compressor.training.text import Text


@dataclass(frozen=True)
class ExtraText:
    """A file of sentences to train on in addition to the calibration rows.

    Args:
        beams: beam width of the dense model's translations of it.
    """

    path: Path
    beams: int


class RecoveryMethod(Options):
    """One recovery step: the options of a method, and its properties.

    Args:
        trains: whether it holds out some of the rows for validation.
        undoes_training: whether it pulls trained weights back towards the dense model's.
    """

    panel: ClassVar[str] = "Recovery"

    trains: ClassVar[bool] = False
    undoes_training: ClassVar[bool] = False
    name: ClassVar[str] = ""

    @property
    def extra_text(self) -> ExtraText | None:
        """More text to train on, if any."""
        return None

    @property
    def earlier(self) -> Path | None:
        """An artifact whose weights it starts from, if any."""
        return None

    def with_precision(self, precision: Precision | None) -> Self:
        """A copy that trains in a precision, unless it has one or does not train."""
        return self

    def on_device(self, device: str) -> Self:
        """A copy with what the device decides, where the options leave it open."""
        return self

    def for_task(self, task: Task) -> Self:
        """A copy with what the task decides, where the device does not."""
        return self

    @abstractmethod
    def recover(self, job: RecoveryJob) -> Recovered:
        """Recover `job.pruned`; both models are in evaluation mode, on the device.

        With sharded training, a method that `trains` gets them on the CPU.
        """


RECOVERIES: Table[type[RecoveryMethod]] = Table(
    "recovery method",
    {
        "reconstruct": "compressor.recovery.reconstruct:Reconstruct",
        "distill": "compressor.recovery.distill:Distill",
    },
    id="recovery-unknown",
)


@dataclass(frozen=True, kw_only=True)
class RecoveryJob(TrainingJob):
    """The models and the data of a recovery method.

    Args:
        dense: the model before pruning; not changed.
        pruned: the model to recover; not changed.
        mask: the units of the dense model that `pruned` keeps.
        text: more rows to train on, without labels, for methods that train.
    """

    dense: nn.Module
    pruned: nn.Module
    mask: Mask
    text: Text | None = None


@dataclass(frozen=True)
class Recovered:
    """A recovered model, and a description for the report.

    Parameters that no method changed are shared with the pruned model.
    """

    model: nn.Module
    text: str


def extra_text(methods: Sequence[RecoveryMethod]) -> ExtraText | None:
    """The text that one of the methods trains on, if any."""
    return next((method.extra_text for method in methods if method.extra_text), None)


def earlier_artifact(methods: Sequence[RecoveryMethod]) -> Path | None:
    """The artifact whose weights one of the methods starts from, if any."""
    return next((method.earlier for method in methods if method.earlier), None)


def recover(methods: Sequence[RecoveryMethod], job: RecoveryJob) -> Recovered:
    """Recover a pruned model with some methods, one after the other.

    Args:
        methods: in order of application; without methods the result is `job.pruned`.

    Raises:
        UsageError: without calibration rows.
        InputError: too few rows to train on, or values that are not finite.
    """
    if not methods:
        return Recovered(job.pruned, "")
    if not job.examples:
        names = "+".join(method.name for method in methods)
        raise UsageError(
            f"--recover {names} needs --calibration FILE; give one, or --recover none",
            id="calibration-missing",
        )
    from compressor.model.modes import evaluating
    from compressor.parallel import sharding
    from compressor.training.data import hold_out

    texts, models = [], [job.dense, job.pruned]
    with evaluating(job.dense), evaluating(job.pruned), sharding.noticing_lost_ranks():
        try:
            for number, method in enumerate(methods):
                device = sharding.home(job.device) if method.trains else job.device
                for model in (job.dense, models[-1]):
                    model.to(device)
                examples = job.examples
                if any(later.trains for later in methods[number + 1 :]):
                    # A model fitted to the validation rows of a later training would seem to have
                    # nothing left to learn.
                    examples, _ = hold_out(examples, job.seed)
                state = job.state and job.state.with_stem(f"{job.state.stem}-{method.name}")
                step = replace(job, pruned=models[-1], examples=examples, state=state)
                recovered = method.recover(step)
                models.append(recovered.model)
                texts.append(recovered.text)
        finally:
            for model in models:
                model.to("cpu")
    return Recovered(models[-1], "; then ".join(texts))
