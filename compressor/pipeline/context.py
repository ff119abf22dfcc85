"""What the stages of a run share: the recipe and all that was loaded for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compressor.budgets.counts import Floors
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask
from compressor.pipeline.plan import Plan
from compressor.pipeline.recipe import Recipe
from compressor.pipeline.workspace import Workspace
from compressor.progress import Progress
from compressor.tasks import Batch, Example, Rows, Task


@dataclass(frozen=True)
class DataRows:
    """The rows of a run.

    Args:
        shared: number of test rows whose texts are calibration rows too.
    """

    calibration: Rows | None
    test: Rows | None
    shared: int = 0

    @property
    def fitted(self) -> Rows:
        """The rows to score and check builds on: calibration rows, or test rows without those."""
        rows = self.calibration or self.test
        assert rows is not None
        return rows

    @property
    def timed(self) -> Rows:
        """The rows to time on: test rows, or calibration rows without those."""
        return self.test or self.fitted


@dataclass(frozen=True)
class Probe:
    """Ragged batches and texts on which every build is compared with what it must equal."""

    batches: Sequence[Batch]
    texts: Sequence[str]


@dataclass(frozen=True)
class Context:
    """All that the stages of a run share; nothing in it changes.

    Args:
        floors: least number of units in each sublayer of a kind.
        examples: the rows to score and repair on, encoded.
        precisions: to export, float32 first.
    """

    recipe: Recipe
    checkpoint: Checkpoint
    task: Task
    floors: Floors
    plans: Sequence[Plan]
    data: DataRows
    examples: Sequence[Example]
    probe: Probe
    device: str
    precisions: Sequence[str]
    workspace: Workspace
    progress: Progress

    @property
    def full(self) -> Mask:
        """The mask that keeps every unit."""
        return Mask.full(self.checkpoint.layers)

    @property
    def units(self) -> int:
        """Number of units of the dense model."""
        return self.full.total()

    @property
    def test_count(self) -> int:
        """Number of test rows."""
        return 0 if self.data.test is None else len(self.data.test.sources)

    @property
    def batch_sizes(self) -> str:
        """Batch sizes to time, for messages."""
        settings = self.recipe.throughput
        return "" if settings is None else ", ".join(map(str, settings.batch_size))

    @property
    def repairing(self) -> str:
        """The repair after the cut, for messages."""
        names = "+".join(step.name for step in self.recipe.recovery)
        return f", repairing ({names})" if names else ""
