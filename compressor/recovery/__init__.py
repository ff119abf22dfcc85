"""Recovery after pruning: better weights for the remaining units.

A method is one class here, with its options and the place of its function, and a line in
`RECOVERIES`; `recover` runs them. Nothing here imports torch: the options are part of the help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from typing_extensions import override

from compressor.options.bounds import MOST_BEAMS, Count, NonNegative, Positive
from compressor.options.declare import Options, option
from compressor.options.table import Table, import_object
from compressor.training import LEAST_PATIENCE, PATIENCE, TrainingJob, rate_option

if TYPE_CHECKING:
    from torch import nn

    from compressor.model.sublayers import Mask
    from compressor.tasks import Objective
    from compressor.training.precision import Precision
    from compressor.training.text import Text

# Rows of a step with AdamW, and with Muon, which has a fixed cost per step.
BATCH_ROWS, MUON_BATCH_ROWS = 32, 64
# On a GPU, launching the thousands of kernels of a step takes as long as computing so many rows.
# Calibration rows alone are too few for such steps: half of a classifier's units, 900 rows, five
# epochs of 32 rows a step end at a divergence of 0.0137, of 512 at 0.0154.
GPU_BATCH_ROWS = 512
MOST_COPIES = 100  # of a line of text


@dataclass(frozen=True)
class ExtraText:
    """A file of sentences to train on beside the calibration rows."""

    path: Path
    beams: int  # width of the dense model's translations of it
    copies: int = 0  # altered ones of each line


class RecoveryMethod(Options):
    """Base of the methods that recover a pruned model: a step of `--recover`, with its options.

    A subclass has its options as fields, and `function` names what carries it out. Class variables
    say what a run has to know about it.
    """

    panel: ClassVar[str] = "Recovery"

    name: ClassVar[str] = ""
    function: ClassVar[str]  # `module:function`, which `recover` calls with the method and the job
    trains: ClassVar[bool] = False  # whether it holds out some of the rows for validation
    # Whether it pulls trained weights back towards the dense model's.
    undoes_training: ClassVar[bool] = False

    @property
    def extra_text(self) -> ExtraText | None:
        """The text to train on beside the calibration rows, if any is wanted."""
        return None

    @property
    def earlier(self) -> Path | None:
        """The artifact whose weights it starts from, if any."""
        return None

    def with_precision(self, precision: Precision | None) -> Self:
        """A copy that trains in a precision, unless it has one already or does not train.

        Args:
            precision: `fp32`, `bf16`, or None to leave it open.
        """
        return self

    def on_device(self, device: str) -> Self:
        """A copy with defaults that depend on the device, for options that were not given.

        Args:
            device: `cpu` or `cuda`.
        """
        return self

    def for_task(self, task: Objective) -> Self:
        """A copy with defaults that depend on the task, for options that are still open.

        Args:
            task: of the model.
        """
        return self

    def shortened(self, steps: int, rows: int) -> Self:
        """A copy whose training has some steps alone; itself if it does not train.

        Args:
            steps: of optimization.
            rows: that an epoch goes through.
        """
        return self

    def seconds(self, step: float, rows: int) -> float:
        """How long it trains, at most, without stopping early; 0 if it does not train.

        Args:
            step: seconds of a step of optimization.
            rows: that an epoch goes through.
        """
        return 0.0

    def recover(self, job: RecoveryJob) -> Recovered:
        """Recover `job.pruned`; models are in evaluation mode, and on the job's device.

        With sharded training, a method that `trains` gets them on the CPU.

        Args:
            job: the models, the rows and the device; neither model changes.

        Returns:
            The recovered model, which may share unchanged parameters with `job.pruned`.

        Raises:
            InputError: too few rows, or values that are not finite.
        """
        recovered: Recovered = import_object(self.function)(self, job)
        return recovered


class Reconstruct(RecoveryMethod):
    """Re-solve the projections into the residual stream by least squares; needs no labels.

    Optimal Brain Surgeon's weight update for whole units, solved bottom-up as in K-prune (Park et
    al. 2024).
    """

    name: ClassVar[str] = "reconstruct"
    function = "compressor.recovery.least_squares:reconstruct"
    undoes_training: ClassVar[bool] = True


class Distill(RecoveryMethod):
    """Fine-tune with the dense model as teacher.

    Hinton, Vinyals & Dean 2015; hidden states as in TinyBERT (Jiao et al. 2020, equation 8).
    """

    name: ClassVar[str] = "distill"
    function = "compressor.recovery.distillation:distill"
    trains: ClassVar[bool] = True

    epochs: Count = option(5, name="distill_epochs", help="Distillation: epochs, at most.")
    steps: Count | None = option(
        None,
        name="distill_steps",
        help="Distillation: steps, at most. Default: as many as the epochs have.",
    )
    batch: Count | None = option(
        None,
        name="distill_batch",
        help="Distillation: rows of a step; the default learning rate grows with the root of it. "
        "Default: 32 (64 where encoder-decoders learn from --distill-text); on a GPU, with such a "
        "text, 512.",
    )
    minutes: Positive | None = option(
        None,
        name="distill_minutes",
        help="Distillation: minutes of training, at most; the learning rate falls to zero by then.",
    )
    precision: Literal["fp32", "bf16"] | None = option(
        None,
        name="distill_precision",
        help="Distillation: compute products in fp32 or bf16. Default: bf16 on GPUs and on "
        "processors with instructions for that (AMX, AVX-512 BF16), else fp32.",
    )
    learning_rate: Positive | None = rate_option()
    patience: Count | None = PATIENCE
    hidden: NonNegative | None = option(
        None,
        name="distill_hidden",
        help="Distillation: weight of the difference in hidden states after every layer; 0 leaves "
        "it out. Default: 1 for classifiers, 0.1 for sentence encoders, 0 for encoder-decoders.",
    )
    text: str | None = option(
        None,
        files=True,
        name="distill_text",
        help="Distillation: more text to learn from, in the source language, a sentence a line, "
        "or JSONL; the dense model answers or embeds it. Of any size, packed (.gz, .zst) or not.",
    )
    start: str | None = option(
        None,
        files=True,
        name="distill_start",
        help="Distillation: go on from the weights of this artifact, which has kept the same "
        "units, as an earlier run with the same budget has.",
    )
    beams: int = option(
        1,
        ge=1,
        le=MOST_BEAMS,
        name="distill_beams",
        only_with="distill_text",
        help="Beam width of the dense model's answers to --distill-text.",
    )
    augment: int = option(
        0,
        ge=0,
        le=MOST_COPIES,
        name="distill_augment",
        only_with="distill_text",
        help="Distillation: altered copies of each line of --distill-text to learn from, too, in "
        "which some words are left out or replaced. Not for translators.",
    )

    @property
    @override
    def extra_text(self) -> ExtraText | None:
        if self.text is None:
            return None
        return ExtraText(Path(self.text), self.beams, self.augment)

    @property
    @override
    def earlier(self) -> Path | None:
        return None if self.start is None else Path(self.start)

    @override
    def with_precision(self, precision: Precision | None) -> Distill:
        return self.model_copy(update={"precision": self.precision or precision})

    @override
    def on_device(self, device: str) -> Distill:
        from compressor.training.precision import has_bf16  # imports torch

        on_gpu = device != "cpu"
        # On processors, with a text, the task decides on the rows.
        usual = BATCH_ROWS if self.text is None else GPU_BATCH_ROWS if on_gpu else None
        decided = self.model_copy(update={"batch": self.batch or usual})
        return decided.with_precision("bf16" if has_bf16(device) else "fp32")

    @override
    def shortened(self, steps: int, rows: int) -> Distill:
        # Weights of an earlier artifact would fit one candidate alone.
        epochs = -(-steps * self._step_rows // rows)
        changes = {"steps": steps, "epochs": epochs, "patience": epochs, "start": None}
        return self.model_copy(update={**changes, "minutes": None})

    @override
    def seconds(self, step: float, rows: int) -> float:
        steps = self.epochs * -(-rows // self._step_rows)
        trained = step * (steps if self.steps is None else min(steps, self.steps))
        return trained if self.minutes is None else min(trained, 60 * self.minutes)

    @property
    def waits(self) -> int:
        """The epochs without gain after which training stops.

        A long schedule has many epochs at high learning rates; two without gain say little then.
        """
        return self.patience or max(LEAST_PATIENCE, self.epochs // 3)

    @property
    def _step_rows(self) -> int:
        # `for_task` decides on them before a run begins.
        assert self.batch is not None
        return self.batch

    @override
    def for_task(self, task: Objective) -> Distill:
        usual = MUON_BATCH_ROWS if self.text is not None and task.muon_on_text else BATCH_ROWS
        return self.model_copy(update={"batch": self.batch or usual})


RECOVERIES: Table[type[RecoveryMethod]] = Table(
    "recovery method", {"reconstruct": Reconstruct, "distill": Distill}, id="recovery-unknown"
)


@dataclass(frozen=True, kw_only=True)
class RecoveryJob(TrainingJob):
    """The models and the data that a recovery method works with."""

    dense: nn.Module  # before pruning; not changed
    pruned: nn.Module  # to recover; not changed
    mask: Mask  # the units of the dense model that `pruned` keeps
    text: Text | None = None  # more rows to train on, without labels


@dataclass(frozen=True)
class Recovered:
    """A recovered model.

    Args:
        model: shares the parameters that no method changed with the pruned model.
        text: what was done, for the report.
        steps: of optimization, where it was trained.
        seconds: that these took, with validation.
    """

    model: nn.Module
    text: str
    steps: int = 0
    seconds: float = 0.0


def extra_text(methods: Sequence[RecoveryMethod]) -> ExtraText | None:
    """The text that some method trains on beside the calibration rows, if any is wanted."""
    return next((method.extra_text for method in methods if method.extra_text), None)


def earlier_artifact(methods: Sequence[RecoveryMethod]) -> Path | None:
    """The artifact whose weights some method starts from, if there is one."""
    return next((method.earlier for method in methods if method.earlier), None)


def recover(methods: Sequence[RecoveryMethod], job: RecoveryJob) -> Recovered:
    """Recover a pruned model with some methods, one after the other.

    Rows that a later method holds out for validation are not used by earlier ones.

    Args:
        methods: in the order in which they are applied; without any the model is `job.pruned`. What
            they leave open is decided by the job's device and task.
        job: the models and the calibration rows; both models end up on the CPU.

    Returns:
        The model after the last method, and what each of them says for the report.

    Raises:
        InputError: too few rows to train on, or values that are not finite.
    """
    if not methods:
        return Recovered(job.pruned, "")
    from compressor import parallel
    from compressor.model.modes import evaluating
    from compressor.parallel import sharding
    from compressor.training.data import hold_out

    methods = [method.on_device(job.device).for_task(job.task) for method in methods]
    done, models = list[Recovered](), [job.dense, job.pruned]
    with evaluating(job.dense), evaluating(job.pruned), sharding.translate_rank_errors():
        try:
            for number, method in enumerate(methods):
                # Models in training are moved shard by shard.
                device = "cpu" if parallel.shards() and method.trains else job.device
                for model in (job.dense, models[-1]):
                    model.to(device)
                examples = job.examples
                if any(later.trains for later in methods[number + 1 :]):
                    # A model fitted to the validation rows of a later training would seem to have
                    # nothing left to learn.
                    examples, _ = hold_out(examples, job.seed, job.text)
                state = job.state and job.state.with_stem(f"{job.state.stem}-{method.name}")
                step = replace(job, pruned=models[-1], examples=examples, state=state)
                recovered = method.recover(step)
                models.append(recovered.model)
                done.append(recovered)
        finally:
            for model in models:
                model.to("cpu")
    steps, seconds = sum(x.steps for x in done), sum(x.seconds for x in done)
    return Recovered(models[-1], "; then ".join(x.text for x in done), steps, seconds)
