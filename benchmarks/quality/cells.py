"""One cell of the comparison: a method, a seed, a repair and a share of the heads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compressor.budgets.counts import parse_floors, select
from compressor.evaluation import compare
from compressor.export.metadata import max_source_tokens
from compressor.files import write_json
from compressor.importance import METHODS
from compressor.learned_masks import LEARNED, Learning, learn
from compressor.model.checkpoint import open_checkpoint
from compressor.model.restore_shape import restore_shape
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune
from compressor.pipeline.context import read_data, score_checkpoint_heads
from compressor.pipeline.recipe import Recipe
from compressor.progress import Progress
from compressor.recovery import Recovered, Recovery, parse_recovery, recover
from compressor.tasks import Batch, get_task

SHARES = (90, 80, 70, 60, 50, 40, 30, 20)  # percent of heads kept
REPAIRS = ("none", "reconstruct", "distill", "reconstruct+distill")
RANDOM = ("random", "hard-concrete", "subset")  # methods whose mask depends on the seed
SEEDS = (0, 1, 2)
METRIC = {"translation": "bleu", "classification": "accuracy"}
# Scores that are by default divided by their norm over the layer, also compared as they are.
PLAIN = {f"{method} (not normalized)": method for method in ("taylor", "fisher")}
CHOOSERS = (*METHODS, *PLAIN, *LEARNED)
STEPS = 4  # of the methods that are also tried in steps
IN_STEPS = ("second-order", "taylor")
EVALUATION_ROWS = 64  # rows per batch


@dataclass(frozen=True)
class Cell:
    """What is compared; `steps` above 1 repairs after each step."""

    method: str
    seed: int
    recover: str
    kept: int  # percent
    steps: int = 1

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(asdict(self).values())


def all_cells() -> Iterator[Cell]:
    """Every cell, cheap ones first, so that a table is worth looking at early."""
    for repair in REPAIRS:
        for method in CHOOSERS:
            for seed in SEEDS if method in RANDOM else SEEDS[:1]:
                for kept in SHARES:
                    yield Cell(method, seed, repair, kept)
        if repair != "none":
            for method in IN_STEPS:
                yield from (Cell(method, 0, repair, kept, STEPS) for kept in SHARES)


class Laboratory:
    """One model with its rows; scores and masks are computed once for many cells."""

    def __init__(self, recipe: Recipe, progress: Progress, work: Path) -> None:
        self.recipe, self.progress, self.work = recipe, progress, work
        self.checkpoint = open_checkpoint(recipe.model)
        self.model, self.layers = self.checkpoint.model, self.checkpoint.layers
        self.full = Mask.full(self.layers)
        self.floors = parse_floors(recipe.floor, self.full)
        self.task = get_task(self.checkpoint.entry.task)
        self.metric = METRIC[self.checkpoint.entry.task]
        calibration, test = read_data(recipe, self.checkpoint)
        assert calibration is not None
        assert test is not None
        limit = max_source_tokens(self.checkpoint)
        self.calibration, self.test = calibration, test
        tokenizer = self.checkpoint.tokenizer
        self.examples = self.task.encode(calibration, tokenizer, limit)
        rows = self.task.encode(test, tokenizer, limit)
        self.test_batches: list[Batch] = self.task.batches(
            rows, self.model, batch_tokens=None, batch_size=EVALUATION_ROWS
        )
        self._scores: dict[tuple[str, int], Scores] = {}
        self._choices: dict[tuple[Any, ...], tuple[Mask, nn.Module, float]] = {}
        self.dense_answers, self.dense_loss = self.evaluate(self.model)

    def run(self, cell: Cell) -> dict[str, Any]:
        """Quality of one cell on the test rows, with its paired interval against dense."""
        mask, model, choosing = self.choose(cell)
        began = time.perf_counter()
        pruned = prune(model, self.layers, mask)
        repaired = self.repair(cell.recover, pruned, cell.seed)
        repairing = time.perf_counter() - began
        answers, loss = self.evaluate(repaired.model)
        (found,) = (
            c
            for c in compare(self.test.task, self.dense_answers, answers, self.test.targets)
            if c.metric == self.metric
        )
        return {
            **asdict(cell),
            "heads": mask.count(),
            "counts": list(mask.counts().values()),
            "mask": mask.to_json(),
            "quality": found.pruned,
            "dense": found.dense,
            "interval": found.interval,
            "loss": loss,
            "seconds_choosing": round(choosing, 1),
            "seconds_repairing": round(repairing, 1),
            "repair": repaired.text,
        }

    def choose(self, cell: Cell) -> tuple[Mask, nn.Module, float]:
        """The mask, the weights it is cut from, and the seconds that finding it took."""
        key = cell.method, cell.seed, cell.kept
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
        total = self.full.total()
        keep = int(total * cell.kept / 100 + 0.5)
        if cell.method in LEARNED:
            return self._learned(cell, keep), self.model
        mask, model, scores = self.full, self.model, self.scores(cell)
        for step in range(1, cell.steps + 1):
            target = total - round((total - keep) * step / cell.steps)
            if step > 1:
                pruned = prune(model, self.layers, mask)
                repaired = self.repair(cell.recover, pruned, cell.seed).model
                model = restore_shape(self.model, repaired, self.layers, mask)
                scores = self._score(cell, mask, model)
            mask = select(scores, mask, {"all": target}, self.floors)
        return mask, model

    def _learned(self, cell: Cell, keep: int) -> Mask:
        learned = learn(
            cell.method,
            Learning(
                model=self.model,
                layers=self.layers,
                examples=self.examples,
                task=self.task,
                keep={"all": keep},
                floors=self.floors,
                epochs=self.recipe.gate_epochs,
                seed=cell.seed,
                report=self.progress.message,
            ),
        )
        return learned.mask

    def remember(self, rows: list[dict[str, Any]]) -> None:
        """Take learned masks, minutes each, from finished cells of the same method and share."""
        for row in rows:
            if row["method"] in LEARNED and "mask" in row:
                mask = Mask.from_json(row["mask"], self.full.counts())
                key = row["method"], row["seed"], row["kept"]
                self._choices[key] = mask, self.model, row["seconds_choosing"]

    def scores(self, cell: Cell) -> Scores:
        """Scores of all heads of the dense model."""
        key = cell.method, cell.seed
        path = self.work / f"scores-{cell.method.replace(' ', '-')}-{cell.seed}.json"
        if key not in self._scores and path.exists():
            self._scores[key] = Scores.from_json(json.loads(path.read_text(encoding="utf-8")))
        if key not in self._scores:
            self._scores[key] = self._score(cell, self.full, self.model)
            write_json(path, self._scores[key].to_json())
        return self._scores[key]

    def _score(self, cell: Cell, mask: Mask, model: nn.Module) -> Scores:
        options: dict[str, Any] = {"method": cell.method, "seed": cell.seed}
        if cell.method in PLAIN:
            options |= {"method": PLAIN[cell.method], "normalize": "none"}
        recipe = self.recipe.model_copy(update=options)
        return score_checkpoint_heads(
            recipe, self.checkpoint, self.examples, mask, "cpu", self.progress, model=model
        )

    def repair(self, how: str, pruned: nn.Module, seed: int) -> Recovered:
        options = {
            "epochs": self.recipe.distill_epochs,
            "learning_rate": self.task.learning_rate,
            "patience": self.recipe.patience,
        }
        job = Recovery(
            dense=self.model,
            pruned=pruned,
            layers=self.layers,
            task=self.task,
            examples=self.examples,
            seed=seed,
        )
        methods = parse_recovery(how)
        return recover({m: options if m == "distill" else {} for m in methods}, job)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> tuple[list[str], float]:
        """Answers to the test rows in their order, and the loss per term in nats."""
        model.eval()
        answers, loss, terms = [""] * len(self.test.sources), 0.0, 0
        for batch in self.test_batches:
            loss += float(self.task.loss(model, batch))
            terms += self.task.loss_terms(batch)
            found = self.task.predict(model, batch, self.checkpoint.tokenizer)
            for row, answer in zip(batch.rows, found, strict=True):
                answers[row] = answer
        return answers, loss / terms


def fill(
    laboratory: Laboratory, path: Path, wanted: Callable[[Cell], bool], progress: Progress
) -> list[dict[str, Any]]:
    """Compute the wanted cells that `path` does not hold yet; each is appended at once."""
    done = read(path)
    known = {Cell(**{k: row[k] for k in Cell.__dataclass_fields__}).key for row in done}
    missing = [cell for cell in all_cells() if wanted(cell) and cell.key not in known]
    laboratory.remember(done)
    for number, cell in enumerate(missing, 1):
        row = laboratory.run(cell)
        if any(other["dense"] != row["dense"] for other in done):
            raise SystemExit(f"{path} is of another model or other test rows: move it away first.")
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        done.append(row)
        steps = f" in {cell.steps} steps" if cell.steps > 1 else ""
        progress.message(
            f"{number}/{len(missing)} {cell.method}{steps}, seed {cell.seed}, {cell.recover}, "
            f"{cell.kept} %: {row['quality']:.2f} (dense {row['dense']:.2f})"
        )
    return done


def read(path: Path) -> list[dict[str, Any]]:
    """The cells that are there; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
