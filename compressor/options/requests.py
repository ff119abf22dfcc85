"""What each command takes, composed of the classes that have the options.

Flags win over a recipe file, the file over the defaults. A recipe has the names of the flags:
`macs: 0.5` is `--macs 0.5`. `recipe.yaml` in an artifact is the resolved recipe, written out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import yaml

from compressor.budgets import BUDGETS, Budget, Counts
from compressor.budgets.competing import Prune
from compressor.errors import InputError, UsageError
from compressor.importance import METHODS, ScoringMethod, UnitMethod
from compressor.learned_masks import LEARNED
from compressor.options.assemble import (
    Asked,
    Chosen,
    Request,
    Values,
    assemble,
    options_of,
    options_of_command,
)
from compressor.options.declare import option
from compressor.options.sections import (
    DEVICE,
    SEED,
    TASK,
    VERIFY,
    Access,
    Benchmark,
    Builds,
    CalibrationData,
    Card,
    Data,
    Device,
    Evaluation,
    Export,
    Gate,
    ModelSection,
    RunEvaluation,
    RunExport,
    TestData,
)
from compressor.recovery import RECOVERIES, RecoveryMethod
from compressor.report import DEFAULT_FORMATS, FORMATS
from compressor.storage.input_files import read_text
from compressor.tasks import Task

MOST_RECIPE = 256 << 10  # bytes; recipes have about two KiB
DEFAULT_METHOD = "second-order"
Method = Annotated[ScoringMethod, Chosen(METHODS)]
Recovery = Annotated[list[RecoveryMethod], Chosen(RECOVERIES, many=True)]
_RECOVERIES = (
    "Recovery after pruning: reconstruct (least squares), none, distill (train on the dense "
    "model's predictions), or reconstruct+distill. "
)


class Recipe(Request):
    """What `compress run` takes."""

    model: ModelSection
    data: Data
    method: Annotated[UnitMethod, Chosen({**METHODS, **LEARNED})] = option(
        DEFAULT_METHOD,
        first=True,
        help=f"How to find the units to keep. Scores: {', '.join(METHODS)}. Learned masks: "
        f"{', '.join(LEARNED)}. Default: {DEFAULT_METHOD}.",
    )
    budget: Annotated[Budget, Chosen(BUDGETS)]
    recovery: Recovery = option(
        "reconstruct", name="recover", first=True, help=f"{_RECOVERIES}Default: reconstruct."
    )
    export: RunExport
    evaluation: RunEvaluation
    throughput: Annotated[Benchmark | None, Chosen(Benchmark)] = option(
        True, name="bench", first=True, help="Measure throughput, or not."
    )
    card: Card
    gate: Gate
    seed: int = SEED
    device: Device = DEVICE

    @classmethod
    def defaults(cls, values: Values) -> dict[str, Any]:
        """Do not reconstruct weights that are trained with a learned mask."""
        # Reconstruction would undo what training did to weights.
        return {} if values.get("train_weights", "none") == "none" else {"recover": "none"}

    @classmethod
    def needed(cls, values: Values) -> list[str]:
        """Rows: the usual method and recovery need them, and builds are checked on them."""
        given = values.get("calibration") or values.get("test")
        usual = not values.keys() & {"method", "recover"}
        return [] if values.get("calibration") or (given and not usual) else ["--calibration"]

    def with_recovery(self, steps: Sequence[RecoveryMethod]) -> Self:
        """A copy with other options of the recovery."""
        options = dict(self.options)
        for step in steps:
            options |= options_of(step)
        return self.model_copy(update={"recovery": steps, "options": options})

    def resolved(self, device: str, task: Task, *, tokens: bool) -> Self:
        """A copy with what device and model decide, so that it says what was done.

        Args:
            device: to compute on.
            task: of the model.
            tokens: whether layers of the model may hand on fewer tokens than they get.
        """
        options = {**self.options, "device": self.device}  # which a launcher may have set
        # Graphs that choose tokens have no fused form for CUDA.
        tokens = tokens and self.method.scores_tokens and device == "cpu"
        budget = self.budget.with_default_units(tokens)
        if budget != self.budget:
            options |= options_of(budget)
        made = self.model_copy(update={"budget": budget, "options": options})
        return made.with_recovery([x.on_device(device).for_task(task) for x in self.recovery])

    def options_that_count(self) -> dict[str, Any]:
        """The options that change results; see `options_by_file_names`."""
        free = {*Card.model_fields, *Gate.model_fields, "verify"}
        options = self.options_by_file_names().items()
        return {name: value for name, value in options if name not in free}

    def options_by_file_names(self) -> dict[str, Any]:
        """The options, with files by their names: their contents count, not where they lie."""
        declared = options_of_command(type(self))
        return {
            name: os.path.basename(value) if value and declared[name].files else value
            for name, value in self.options.items()
        }

    def to_yaml(self, budget: Budget | None = None) -> str:
        """All options as a recipe file, of the run or of the artifact of one of its budgets."""
        options = {**self.options, **({} if budget is None else options_of(budget))}
        return yaml.safe_dump(options, sort_keys=False, allow_unicode=True)


class ScoreRequest(Request):
    """What `compress score` takes."""

    panel: ClassVar[str] = "Method"

    model: ModelSection
    data: CalibrationData
    method: Method = option(
        DEFAULT_METHOD,
        first=True,
        help=f"How to score units: {', '.join(METHODS)}. Default: {DEFAULT_METHOD}.",
    )
    compare: list[str] = option(
        [], first=True, help="Other methods to compare with; repeat for several."
    )
    prune: Prune = option(
        "heads", help="Units to score: heads, neurons, both (heads and neurons), tokens or all."
    )
    seed: int = SEED
    device: Device = DEVICE

    @classmethod
    def needed(cls, values: Values) -> list[str]:
        """Rows, which the usual method needs."""
        return [] if values.keys() & {"calibration", "method"} else ["--calibration"]


class PruneRequest(Request):
    """What `compress prune` takes."""

    model: ModelSection
    data: CalibrationData
    budget: Annotated[Counts, Chosen([Counts])]
    recovery: Recovery = option(
        "none", name="recover", first=True, help=f"{_RECOVERIES}Default here: none."
    )
    seed: int = SEED
    device: Device = DEVICE


class ExportRequest(Request):
    """What `compress export` takes."""

    model: ModelSection
    data: CalibrationData
    export: Export
    layout: str = option(
        "compress",
        panel="Export",
        first=True,
        help="compress: OUTPUT/onnx for this tool's runtime; optimum: OUTPUT for the ONNX Runtime "
        "loaders of Hugging Face optimum (fp32, models of one graph); ctranslate2: OUTPUT for "
        "ctranslate2.Translator, in the one --precision that is given.",
    )
    device: Device = DEVICE


class EvaluateRequest(Request):
    """What `compress evaluate` takes."""

    data: TestData
    builds: Builds
    evaluation: Evaluation
    seed: int = SEED
    device: Device = DEVICE
    verify: bool = VERIFY


class BenchRequest(Request):
    """What `compress bench` takes."""

    data: TestData
    builds: Builds
    throughput: Benchmark
    device: Device = DEVICE
    verify: bool = VERIFY


class InspectRequest(Request):
    """What `compress inspect` takes."""

    access: Access
    task: str | None = TASK


class GateRequest(Request):
    """What `compress gate` takes."""

    gate: Gate
    baseline: Path | None = option(
        None,
        help="report.json of an earlier run; a significant loss of quality since is a failure.",
    )
    junit: Path | None = option(None, help="Also write the outcomes as JUnit XML.")
    ci: Path | None = option(
        None,
        help="Also write what CI shows to this directory: step summary, comment, JUnit, badge, "
        "benchmarks, outputs.",
    )
    verify: bool = VERIFY


class ReportRequest(Request):
    """What `compress report` takes."""

    format: list[str] = option(
        list(DEFAULT_FORMATS), help=f"{', '.join(FORMATS)}; default: {', '.join(DEFAULT_FORMATS)}."
    )
    plots: bool = option(False, help="Also write the plots as PNG and SVG files.")
    verify: bool = option(True, help="Check the report against the manifest.json beside it first.")


def make_recipe(file: Path | None = None, **options: Any) -> Recipe:
    """Make a recipe: `make_recipe(model="m", calibration="rows.tsv", macs=0.5)`.

    Args:
        file: a recipe file, over which the options win.
        options: by the names of their flags.

    Raises:
        InputError: the file cannot be read.
        UsageError: it is no recipe, or an option in it or beside it is wrong.
    """
    if file is None:
        return assemble(Recipe, options)
    return assemble(Recipe, options, _read(file), f"recipe {file}")


def make_request(kind: type[Asked], **options: Any) -> Asked:
    """Make what another command takes: `make_request(ExportRequest, model="m")`.

    Args:
        kind: the class of the request.
        options: by the names of their flags.

    Raises:
        UsageError: an option is wrong, or one is missing.
    """
    return assemble(kind, options)


def make_gate(file: Path | None = None, **options: Any) -> GateRequest:
    """Make the rules of a gate.

    Args:
        file: a recipe file, of which the rules are taken and other options are ignored.
        options: by the names of their flags; they win over the file.

    Raises:
        InputError: the file cannot be read.
        UsageError: it is no recipe, or an option in it or beside it is wrong.
    """
    if file is None:
        return assemble(GateRequest, options)
    written = _read(file)
    names = Gate.model_fields.keys() | written.keys() - options_of_command(Recipe).keys()
    rules = {name: value for name, value in written.items() if name in names}
    return assemble(GateRequest, options, rules, f"recipe {file}")


def _read(file: Path) -> dict[str, Any]:
    """The options in a recipe file."""
    lines = "write lines `option: value` with the names of the flags, as in `macs: 0.5`"
    try:
        text = read_text(file, MOST_RECIPE)
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                # A few of them stand for more than any memory holds.
                raise ValueError("aliases are not supported")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > 2:
                raise RecursionError
        values = yaml.safe_load(text) or {}
        json.dumps(values, ensure_ascii=False, default=str).encode()  # or half a surrogate pair
    except OSError as error:
        raise InputError(
            f"cannot read recipe {file}: {error.strerror}; give --config another file",
            id="recipe-unreadable",
        ) from error
    except RecursionError as error:
        raise UsageError(f"recipe {file} has sections; {lines}", id="recipe-nested") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"recipe {file} is not YAML: {reason}; {lines}", id="recipe-not-yaml"
        ) from error
    if not isinstance(values, dict):
        raise UsageError(f"recipe {file} has no options; {lines}", id="recipe-not-yaml")
    return values
