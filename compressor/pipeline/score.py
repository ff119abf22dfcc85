"""Scores of units by one method over the calibration rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compressor import parallel
from compressor.evaluation import main_metric, require_sight
from compressor.importance import ScoringJob, ScoringMethod, UnitMethod, score_units
from compressor.model.checkpoint import Checkpoint
from compressor.model.depth import skipped
from compressor.model.sublayers import Mask, Scores, Sublayer, units_of
from compressor.parallel.launch import counted
from compressor.pipeline.inputs import Fitted
from compressor.pipeline.stages import stage
from compressor.progress import Progress
from compressor.storage.workspace import Workspace
from compressor.tasks import TASKS

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Scorer:
    """A method with the sublayers that it scores and the rows that it looks at."""

    method: UnitMethod
    checkpoint: Checkpoint
    sublayers: Sequence[Sublayer]
    fitted: Fitted
    seed: int
    device: str
    progress: Progress

    def __str__(self) -> str:
        """`72 heads and 9,216 neurons with second-order`, for messages."""
        full = Mask.full(self.sublayers)
        names = sorted({units_of(kind) for kind in full.kinds()})
        counted = " and ".join(f"{full.total(name):,} {name}" for name in names)
        return f"{counted} with {self.method.name}"

    def score(self, mask: Mask | None = None, model: nn.Module | None = None) -> Scores:
        """Scores of all units.

        Args:
            mask: units that are still there; the others are gated to zero and score zero. Layers
                that it drops are skipped; their units have no scores.
            model: one of the checkpoint's shape, to be scored in its place.
        """
        layers = self.checkpoint.layers
        mask = mask or Mask.full(layers)
        model = model or self.checkpoint.model
        task = TASKS[self.checkpoint.task]
        rows = self.fitted.rows
        assert isinstance(self.method, ScoringMethod)
        scoring = ScoringJob(
            model=model.to(self.device),
            layers=[x for x in self.sublayers if x.layer not in mask.dropped],
            mask=mask,
            batches=task.batches(parallel.shard(self.fitted.examples), model)
            if self.method.needs_rows
            else [],
            task=task,
            tokenizer=self.checkpoint.tokenizer,
            metric=None if rows is None else lambda answers: main_metric(rows, answers),
            require_sight=lambda asked, answers: self._require_sight(mask, asked, answers),
            seed=self.seed,
            device=self.device,
            progress=counted(lambda done, total: self.progress.update("scoring", done, total)),
            report=self.progress.message,
        )
        try:
            with skipped(model, layers, mask):
                return parallel.agree(score_units(self.method, scoring))
        finally:
            model.to("cpu")

    def _require_sight(self, mask: Mask, asked: str, answers: Sequence[str]) -> None:
        """Raise `InputError` where the metric sees nothing in the dense model's answers."""
        if self.fitted.rows is not None and mask.count() == mask.total():
            require_sight(self.fitted.rows, answers, asked)


@stage("scores")
def score(workspace: Workspace, scorer: Scorer, start: Mask) -> Scores:
    """Scores of the dense model's units; every budget starts from them.

    Args:
        start: which layers are dropped before.
    """
    return scorer.score(start)
