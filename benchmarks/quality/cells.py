"""One cell of the comparison: a method, a seed, a recovery, and how much of the model is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compressor.budgets.removal_path import removal_path
from compressor.budgets.units import parse_floors
from compressor.budgets.units import select as select_units
from compressor.evaluation import compare_rows
from compressor.importance import METHODS
from compressor.importance.scoring import score
from compressor.learned_masks import LEARNED, LearningJob, learn
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask, Scores, Sublayer, units_of
from compressor.model.surgery import prune, restore_shape
from compressor.options import sections
from compressor.options.inputs import read as read_rows
from compressor.options.inputs import reading
from compressor.progress import Progress
from compressor.recovery import RECOVERIES, Recovered
from compressor.recovery.planning import RecoveryPlan, recover
from compressor.steps.context import Context
from compressor.storage.files import write_json
from compressor.tasks import TASKS, Batch, Predictor
from compressor.tasks.opened import ModelAndRows, encode
from compressor.throughput.inspection import unit_costs

SHARES = (90, 80, 70, 60, 50, 40, 30, 20)  # percent of heads kept
RECOVERED_BY = ("none", "reconstruct", "distill", "reconstruct+distill")
RANDOM = ("random", "hard-concrete", "subset")  # methods whose mask depends on the seed
SEEDS = (0, 1, 2)
# By default these scores are divided by their norm over the layer; compared without that too.
PLAIN = {f"{method} (not normalized)": method for method in ("taylor", "fisher")}
CHOOSERS = (*METHODS, *PLAIN, *LEARNED)
MACS = (90, 80, 70, 60, 50, 40, 30, 20, 15)  # percent of the multiply-adds kept
MACS_OF_OTHERS = (80, 60, 50, 40, 30)  # where second-order is not the method
MACS_METHODS = ("taylor", "fisher", "magnitude", "random", "hard-concrete")
STEPS = 4  # for the methods that are also run in steps
IN_STEPS = ("second-order", "taylor")
EVALUATION_ROWS = 64  # rows per batch
GATE_EPOCHS = 10  # about 300 steps, as many as hard-concrete needs (docs/gates.md)
DISTILL_EPOCHS = 5


@dataclass(frozen=True)
class Cell:
    """One setting; with `steps` above 1 the model recovers after each step."""

    method: str
    seed: int
    recover: str
    kept: int  # percent
    steps: int = 1
    of: str = "heads"  # what is kept of: the heads, or the multiply-adds of the model
    prune: str = "heads"  # which units go: heads, neurons or both

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(asdict(self).values())


def all_cells() -> Iterator[Cell]:
    """Every cell, cheap ones first, so that the tables are useful early."""
    for recovery in ("reconstruct", "none"):
        for units in ("both", "neurons", "heads"):
            for share in MACS:
                yield Cell("second-order", 0, recovery, share, 1, "macs", units)
    for method in MACS_METHODS:
        for seed in SEEDS if method in RANDOM else SEEDS[:1]:
            for share in MACS_OF_OTHERS:
                yield Cell(method, seed, "reconstruct", share, 1, "macs", "both")
    for steps, recovery in ((STEPS, "reconstruct"), (1, "reconstruct+distill"), (1, "distill")):
        for share in MACS_OF_OTHERS:
            yield Cell("second-order", 0, recovery, share, steps, "macs", "both")
    for recovery in RECOVERED_BY:
        for method in CHOOSERS:
            for seed in SEEDS if method in RANDOM else SEEDS[:1]:
                yield from (Cell(method, seed, recovery, kept) for kept in SHARES)
        if recovery != "none":
            for method in IN_STEPS:
                yield from (Cell(method, 0, recovery, kept, STEPS) for kept in SHARES)


class Experiment:
    """One model with its rows; scores and masks are computed once and used for many cells.

    Args:
        work: directory of the scores, which later runs reuse.
    """

    def __init__(
        self,
        model: str,
        data: sections.Data,
        progress: Progress,
        work: Path,
        *,
        gate_epochs: int = GATE_EPOCHS,
        distill_epochs: int = DISTILL_EPOCHS,
    ) -> None:
        self.progress, self.work = progress, work
        self.gate_epochs, self.distill_epochs = gate_epochs, distill_epochs
        self.checkpoint = open_checkpoint(model)
        self.model, self.layers = self.checkpoint.model, self.checkpoint.layers
        self.full = Mask.full(self.layers)
        self.floors = {"heads": parse_floors("1", self.full), "macs": parse_floors("0", self.full)}
        self.task = TASKS[self.checkpoint.task]
        rows = read_rows(data, self.checkpoint, reading(data, self.checkpoint))
        assert rows.calibration is not None
        assert rows.test is not None
        self.test = rows.test
        self.examples = encode(rows.calibration, self.checkpoint, self.task)
        self.opened = ModelAndRows(self.checkpoint, self.examples, rows.calibration)
        test = encode(self.test, self.checkpoint, self.task)
        self.test_batches: list[Batch] = self.task.batches(
            test, self.model, batch_tokens=None, batch_size=EVALUATION_ROWS
        )
        self._scores: dict[tuple[str, int, str], Scores] = {}
        self.costs = unit_costs(self.checkpoint, self.task, self.examples)
        self._choices: dict[tuple[Any, ...], tuple[Mask, nn.Module, float]] = {}
        self.dense_answers, self.dense_loss = self.evaluate(self.model)

    def run(self, cell: Cell) -> dict[str, Any]:
        """Quality of one cell on the test rows, with its paired interval against dense."""
        mask, model, choosing = self.choose(cell)
        began = time.perf_counter()
        pruned = prune(model, self.layers, mask)
        recovered = self.recovered(cell.recover, pruned, mask, cell.seed)
        recovering = time.perf_counter() - began
        answers, loss = self.evaluate(recovered.model)
        comparisons = compare_rows(self.test, self.dense_answers, answers)
        (found,) = (x for x in comparisons if x.metric == self.task.main_metric)
        return {
            **asdict(cell),
            "heads": mask.count("heads"),
            "neurons": mask.count("neurons"),
            "macs": self.costs.share(mask),
            "counts": list(mask.counts().values()),
            # Masks that took minutes to learn are used again; the others follow from the scores.
            **({"mask": mask.to_json()} if cell.method in LEARNED else {}),
            "quality": found.pruned,
            "dense": found.dense,
            "interval": found.interval,
            "loss": loss,
            "seconds_choosing": round(choosing, 1),
            # Names of the lines that are stored.
            "seconds_repairing": round(recovering, 1),
            "repair": recovered.text,
        }

    def choose(self, cell: Cell) -> tuple[Mask, nn.Module, float]:
        """The mask, the weights it is cut from, and the seconds that finding it took."""
        key = cell.method, cell.seed, cell.kept, cell.of, cell.prune
        if cell.steps == 1 and key in self._choices:
            return self._choices[key]
        began = time.perf_counter()
        mask, model = self._choose(cell)
        seconds = time.perf_counter() - began
        if cell.steps == 1:
            if cell.method not in LEARNED:
                seconds = self.scores(cell).cost["seconds"]
            self._choices[key] = mask, model, seconds
        return mask, model, seconds

    def _choose(self, cell: Cell) -> tuple[Mask, nn.Module]:
        if cell.method in LEARNED:
            return self._learned(cell), self.model
        mask, model, scores = self.full, self.model, self.scores(cell)
        for step in range(1, cell.steps + 1):
            if step > 1:
                pruned = prune(model, self.layers, mask)
                recovered = self.recovered(cell.recover, pruned, mask, cell.seed).model
                model = restore_shape(self.model, recovered, self.layers, mask)
                scores = self._score(cell, mask, model)
            mask = self._cut(cell, scores, mask, step / cell.steps)
        return mask, model

    def _cut(self, cell: Cell, scores: Scores, mask: Mask, part: float) -> Mask:
        """The mask after a part of the way from the dense model to what the cell keeps."""
        floors = self.floors[cell.of]
        if cell.of == "macs":
            path = removal_path(scores, mask, floors, self.costs)
            share = 1 - (1 - cell.kept / 100) * part
            return path.mask(path.position_at(share))
        total = self.full.total("heads")
        gone = total - int(total * cell.kept / 100 + 0.5)
        return select_units(scores, mask, {"heads": total - round(gone * part)}, floors)

    def possible(self, cell: Cell) -> bool:
        """Whether so little can be left of the model."""
        return cell.of == "heads" or self._without(cell.prune) <= cell.kept / 100

    def _sublayers(self, prune: str) -> list[Sublayer]:
        return [x for x in self.layers if prune in ("both", units_of(x.kind))]

    def _without(self, prune: str) -> float:
        """The share of the multiply-adds that is left without any units of a kind."""
        layers = self._sublayers(prune)
        mask = self.full.without((x.name, unit) for x in layers for unit in range(x.units))
        return self.costs.share(mask)

    def _learned(self, cell: Cell) -> Mask:
        pools, share = ["heads"], cell.kept / 100
        if cell.of == "macs":  # the same share of heads and of neurons
            rest = self._without("both")
            pools, share = ["heads", "neurons"], (share - rest) / (1 - rest)
        keep = {pool: int(self.full.total(pool) * share + 0.5) for pool in pools}
        job = LearningJob(
            model=self.model,
            layers=self._sublayers(cell.prune),
            examples=self.examples,
            task=self.task,
            keep=keep,
            floors=self.floors[cell.of],
            seed=cell.seed,
            report=self.progress.message,
        )
        learned = learn(LEARNED[cell.method](epochs=self.gate_epochs), job)
        return Mask({**self.full.keep, **learned.mask.keep})

    def reuse_learned_masks(self, rows: list[dict[str, Any]]) -> None:
        """Reuse the learned masks of finished cells: learning one takes minutes."""
        for row in rows:
            if row["method"] in LEARNED and "mask" in row:
                totals = {name: self.full.counts()[name] for name in row["mask"]}
                mask = Mask({**self.full.keep, **Mask.from_json(row["mask"], totals).keep})
                cell = cell_of(row)
                key = cell.method, cell.seed, cell.kept, cell.of, cell.prune
                self._choices[key] = mask, self.model, row["seconds_choosing"]

    def scores(self, cell: Cell) -> Scores:
        """Scores of all units of the dense model that may go."""
        key = cell.method, cell.seed, cell.prune
        name = f"scores-{cell.method.replace(' ', '-')}-{cell.seed}-{cell.prune}.json"
        path = self.work / name
        if key not in self._scores and path.exists():
            self._scores[key] = Scores.from_json(json.loads(path.read_text(encoding="utf-8")))
        if key not in self._scores:
            self._scores[key] = self._score(cell, self.full, self.model)
            write_json(path, self._scores[key].to_json())
        return self._scores[key]

    def _score(self, cell: Cell, mask: Mask, model: nn.Module) -> Scores:
        options = {"normalize": "none"} if cell.method in PLAIN else {}
        method: Any = METHODS[PLAIN.get(cell.method, cell.method)](**options)
        sublayers, context = self._sublayers(cell.prune), self._context(cell.seed)
        return score(mask, method, sublayers, opened=self.opened, context=context, model=model)

    def _context(self, seed: int) -> Context:
        return Context(seed=seed, progress=self.progress)

    def recovered(self, how: str, pruned: nn.Module, mask: Mask, seed: int) -> Recovered:
        epochs: dict[str, Any] = {"distill": {"epochs": self.distill_epochs}}
        names = [] if how == "none" else how.split("+")
        steps: list[Any] = [RECOVERIES[name](**epochs.get(name, {})) for name in names]
        plan, context = RecoveryPlan(steps), self._context(seed)
        return recover(plan, pruned, mask, opened=self.opened, context=context)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> tuple[list[str], float]:
        """Answers to the test rows in their order, and the loss per term in nats."""
        model.eval()
        assert isinstance(self.task, Predictor)  # as all tasks of the cells are
        answers, loss, terms = [""] * len(self.test.sources), 0.0, 0
        for batch in self.test_batches:
            loss += float(self.task.loss(model, batch))
            terms += self.task.loss_terms(batch)
            found = self.task.predict(model, batch, self.checkpoint.tokenizer)
            for row, answer in zip(batch.rows, found, strict=True):
                answers[row] = answer
        return answers, loss / terms


def fill(
    experiment: Experiment, path: Path, wanted: Callable[[Cell], bool], progress: Progress
) -> list[dict[str, Any]]:
    """Compute the wanted cells that `path` lacks; each is appended as soon as it is finished."""
    done = read(path)
    known = {cell_of(row).key for row in done}
    cells = (cell for cell in all_cells() if wanted(cell) and cell.key not in known)
    missing = [cell for cell in cells if experiment.possible(cell)]
    experiment.reuse_learned_masks(done)
    for number, cell in enumerate(missing, 1):
        row = experiment.run(cell)
        if any(other["dense"] != row["dense"] for other in done):
            raise SystemExit(f"{path} is of another model or other test rows: move it away first.")
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        done.append(row)
        steps = f" in {cell.steps} steps" if cell.steps > 1 else ""
        left = f"{cell.prune} to {cell.kept} % of the {cell.of}"
        progress.message(
            f"{number}/{len(missing)} {cell.method}{steps}, seed {cell.seed}, {cell.recover}, "
            f"{left}: {row['quality']:.2f} (dense {row['dense']:.2f})"
        )
    return done


def cell_of(row: dict[str, Any]) -> Cell:
    """The cell of a finished line; lines of heads alone do not say so."""
    return Cell(**{name: row[name] for name in Cell.__dataclass_fields__ if name in row})


def read(path: Path) -> list[dict[str, Any]]:
    """The finished cells in `path`; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
