"""What the stages of a run share: the recipe and all that was loaded for it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from compressor.budgets.counts import Floors, Multiples
from compressor.budgets.path import UnitCosts
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Sublayer, Units, units_of
from compressor.pipeline.unit_costs import unit_costs
from compressor.progress import Progress
from compressor.recovery.text import Text
from compressor.request.plan import Plan
from compressor.request.recipe import Recipe
from compressor.results import Source
from compressor.storage.workspace import Workspace
from compressor.tasks import Batch, Example, Rows, Task


@dataclass(frozen=True)
class DataRows:
    """The rows of a run.

    Args:
        test: rows that quality and speed are measured on.
        shared: number of test rows whose texts are calibration rows too.
        search: rows that a search for a budget looks at, none of which are test rows.
    """

    calibration: Rows | None
    test: Rows | None
    shared: int = 0
    search: Rows | None = None

    @property
    def fitted(self) -> Rows:
        """The rows to score and check builds on: calibration rows, or others without those."""
        rows = self.calibration or self.search or self.test
        assert rows is not None
        return rows

    @property
    def timed(self) -> Rows:
        """The rows to time on: test rows, or calibration rows without those."""
        return self.test or self.fitted


def source_of(rows: Rows) -> Source:
    """Which rows they are, for reports."""
    return Source(files=rows.files, rows=len(rows.sources), sha256=rows.sha256)


@dataclass(frozen=True)
class Probe:
    """Ragged batches and texts on which every build is compared with what it must equal."""

    batches: Sequence[Batch]
    texts: Sequence[str]


@dataclass(frozen=True)
class Context:
    """All that the stages of a run share; nothing in it changes.

    Args:
        units: which units go: heads, neurons, or both.
        floors: least number of units in each sublayer of a kind.
        multiples: in which groups units go.
        examples: the rows to score and repair on, encoded.
        precisions: to export, float32 first.
        text: unlabelled, to distill from; None where none is given.
    """

    recipe: Recipe
    checkpoint: Checkpoint
    task: Task
    units: Set[Units]
    floors: Floors
    multiples: Multiples
    plans: Sequence[Plan]
    data: DataRows
    examples: Sequence[Example]
    probe: Probe
    device: str
    precisions: Sequence[str]
    workspace: Workspace
    progress: Progress
    text: Text | None = None

    @cached_property
    def costs(self) -> UnitCosts:
        """What units cost in multiply-adds at the lengths of the rows to score on."""
        return unit_costs(self.checkpoint, self.task, self.examples)

    @property
    def full(self) -> Mask:
        """The mask that keeps every unit."""
        return Mask.full(self.checkpoint.layers)

    @property
    def sublayers(self) -> list[Sublayer]:
        """The sublayers that may lose units."""
        return [x for x in self.checkpoint.layers if units_of(x.kind) in self.units]

    @property
    def counted(self) -> str:
        """`72 heads and 9,216 neurons`, the units to be scored, for messages."""
        names = sorted(self.units)
        return " and ".join(f"{self.full.total(name):,} {name}" for name in names)

    @property
    def test_count(self) -> int:
        """Number of test rows."""
        return 0 if self.data.test is None else len(self.data.test.sources)

    @property
    def search_count(self) -> int:
        """Number of rows that a search looks at."""
        return 0 if self.data.search is None else len(self.data.search.sources)

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
