"""Options of distillation, see `compressor.recovery.distillation`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from compressor.options.bounds import MOST_BEAMS, Count
from compressor.options.declare import option
from compressor.recovery import ExtraText, Recovered, RecoveryJob, RecoveryMethod
from compressor.training.job import PATIENCE, rate_option

if TYPE_CHECKING:
    from compressor.tasks import Task
    from compressor.training.precision import Precision

# Rows of a step with AdamW, and with Muon, which has a fixed cost per step.
BATCH_ROWS, MUON_BATCH_ROWS = 32, 64
# On a GPU, launching the thousands of kernels of a step takes as long as computing so many rows.
GPU_BATCH_ROWS = 512


class Distill(RecoveryMethod):
    """Fine-tune with the dense model as teacher."""

    trains: ClassVar[bool] = True
    name: ClassVar[str] = "distill"

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
        "Default: 32 (64 where encoder-decoders learn from --distill-text), on a GPU 512.",
    )
    minutes: float | None = option(
        None,
        name="distill_minutes",
        gt=0,
        allow_inf_nan=False,
        help="Distillation: minutes of training, at most; the learning rate falls to zero by then.",
    )
    precision: Literal["fp32", "bf16"] | None = option(
        None,
        name="distill_precision",
        help="Distillation: compute products in fp32 or bf16, which is faster on GPUs and on "
        "processors with AMX. Default: bf16 on a GPU, else fp32.",
    )
    learning_rate: float | None = rate_option()
    patience: Count = PATIENCE
    hidden: float | None = option(
        None,
        name="distill_hidden",
        ge=0,
        allow_inf_nan=False,
        help="Distillation: weight of the difference in hidden states after every layer; 0 leaves "
        "it out. Default: 1 for classifiers, 0.1 for sentence encoders, 0 for encoder-decoders.",
    )
    text: str | None = option(
        None,
        name="distill_text",
        help="Distillation: more text to learn from, in the source language, a sentence a line, "
        "or JSONL; the dense model answers or embeds it. Of any size, packed (.gz, .zst) or not.",
    )
    start: str | None = option(
        None,
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

    @property
    def extra_text(self) -> ExtraText | None:
        return None if self.text is None else ExtraText(Path(self.text), self.beams)

    @property
    def earlier(self) -> Path | None:
        return None if self.start is None else Path(self.start)

    def with_precision(self, precision: Precision | None) -> Distill:
        return self.model_copy(update={"precision": self.precision or precision})

    def on_device(self, device: str) -> Distill:
        on_gpu = device != "cpu"
        # On processors, with a text, the task decides on the rows.
        usual = GPU_BATCH_ROWS if on_gpu else BATCH_ROWS if self.text is None else None
        decided = self.model_copy(update={"batch": self.batch or usual})
        return decided.with_precision(_usual_precision(device))

    def for_task(self, task: Task) -> Distill:
        usual = MUON_BATCH_ROWS if self.text is not None and task.muon_on_text else BATCH_ROWS
        return self.model_copy(update={"batch": self.batch or usual})

    def recover(self, job: RecoveryJob) -> Recovered:
        from compressor.recovery.distillation import by_muon, distill, with_earlier_weights
        from compressor.training.loop import Schedule

        usual_rows = MUON_BATCH_ROWS if by_muon(job) else BATCH_ROWS
        rows = self.batch or (usual_rows if job.device == "cpu" else GPU_BATCH_ROWS)
        schedule = Schedule(
            self.epochs,
            batch_size=rows,
            patience=self.patience,
            steps=self.steps,
            seconds=None if self.minutes is None else 60 * self.minutes,
        )
        usual = job.task.learning_rate
        if job.text is not None:
            usual = job.task.text_learning_rate or usual
        # Gradient noise falls with the square root of the rows; for the scaling rule see Malladi et
        # al. 2022, "On the SDEs and scaling rules for Adam".
        rate = self.learning_rate or usual * math.sqrt(rows / usual_rows)
        hidden = job.task.hidden_weight if self.hidden is None else self.hidden
        if self.earlier is not None:
            job = replace(job, pruned=with_earlier_weights(job.pruned, job.mask, self.earlier))
        precision = self.precision or _usual_precision(job.device)
        done = distill(job, schedule, rate, hidden, precision)
        since = "" if self.earlier is None else f"; started from the weights of {self.earlier}"
        return replace(done, text=done.text + since)


def _usual_precision(device: str) -> Precision:
    return "fp32" if device == "cpu" else "bf16"
