"""What a run is asked for: the sections of a recipe, and the requests of single commands.

Flags win over a recipe file, the file over the defaults. `recipe.yaml` in an artifact is the
resolved recipe, written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import Field, field_validator, model_validator

from compressor.budgets import AnyBudget, Counts
from compressor.budgets.base import Prune
from compressor.errors import InputError, UsageError
from compressor.options.assemble import Request, assemble
from compressor.options.declare import Section, option
from compressor.request.methods import (
    DEFAULT_METHOD,
    METHOD_HELP,
    METHOD_OR_MASK_HELP,
    RECOVER_HELP,
    AnyMethod,
    AnyRecovery,
    AnyScoring,
)
from compressor.request.sections import (
    DEVICE,
    SEED,
    TASK,
    VERIFY,
    Access,
    Benchmark,
    CalibrationData,
    Card,
    Data,
    Device,
    Evaluation,
    Export,
    Gate,
    ModelSection,
    TestData,
)
from compressor.storage.input_files import read_text

MOST_RECIPE = 256 << 10  # bytes; PyYAML takes seconds for more, and recipes have about one KiB
MOST_DEPTH = 50
_NAMED = Field(discriminator="name")


def _each_once(repairs: list[Any]) -> list[Any]:
    """Raise UsageError for a recipe that has a repair twice, as the command line does."""
    names = [repair.name for repair in repairs]
    if len(set(names)) < len(names):
        text = f"recovery {' + '.join(names)}: name each method once"
        raise UsageError(text, id="recovery-twice")
    return repairs


class Recipe(Section):
    """The resolved options of one run: a section for each stage."""

    model: ModelSection
    data: Data = Data()
    method: AnyMethod = option(DEFAULT_METHOD, flag="--method", help=METHOD_OR_MASK_HELP)
    budget: Annotated[AnyBudget, _NAMED]
    recovery: list[AnyRecovery] = option(
        [{"name": "reconstruct"}],
        first=True,
        flag="--recover",
        help=RECOVER_HELP + " Default: reconstruct.",
    )
    export: Export = Export()
    evaluation: Evaluation = Evaluation()
    throughput: Benchmark | None = option(
        Benchmark(), flag="--bench", help="Measure throughput, or not."
    )
    card: Card = Card()
    gate: Gate = Gate()
    seed: int = SEED
    device: Device = DEVICE

    _once = field_validator("recovery")(_each_once)

    @model_validator(mode="before")
    @classmethod
    def _trained_weights_are_not_solved_again(cls, values: Any) -> Any:
        """No repair by default: reconstruction would undo what training did."""
        method = values.get("method") if isinstance(values, Mapping) else None
        if isinstance(method, Mapping) and method.get("train_weights", "none") != "none":
            return {"recovery": [], **values}
        return values

    def to_yaml(self) -> str:
        """All options with their values, in the order of the sections."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)


class ScoreRequest(Section):
    """What `compress score` takes."""

    panel: ClassVar[str] = "Method"

    model: ModelSection
    data: CalibrationData = CalibrationData()
    method: AnyScoring = option(DEFAULT_METHOD, flag="--method", help=METHOD_HELP)
    prune: Prune = option("heads", help="Units to score: heads, neurons or both.")
    seed: int = SEED
    device: Device = DEVICE


class PruneRequest(Section):
    """What `compress prune` takes: the scores are there already."""

    model: ModelSection
    data: CalibrationData = CalibrationData()
    budget: Annotated[Counts, _NAMED]
    recovery: list[AnyRecovery] = option(
        [], first=True, flag="--recover", help=RECOVER_HELP + " Default here: none."
    )
    seed: int = SEED
    device: Device = DEVICE

    _once = field_validator("recovery")(_each_once)


class ExportRequest(Section):
    """What `compress export` takes."""

    model: ModelSection
    data: CalibrationData = CalibrationData()
    export: Export = Export()
    device: Device = DEVICE


class EvaluateRequest(Section):
    """What `compress evaluate` takes, beside the artifacts."""

    data: TestData
    evaluation: Evaluation = Evaluation()
    seed: int = SEED
    device: Device = DEVICE
    verify: bool = VERIFY


class BenchRequest(Section):
    """What `compress bench` takes, beside the artifacts."""

    data: TestData
    throughput: Benchmark = Benchmark()
    device: Device = DEVICE
    verify: bool = VERIFY


class InspectRequest(Section):
    """What `compress inspect` takes, beside the checkpoint."""

    access: Access = Access()
    task: str | None = TASK


class GateRequest(Section):
    """What `compress gate` takes, beside the report."""

    gate: Gate = Gate()
    verify: bool = VERIFY


def build_recipe(flags: Mapping[str, Any], file: Path | None = None) -> Recipe:
    """Flags over a recipe file over the defaults.

    Args:
        flags: flag name (`--keep`) -> value; None or an empty list where it was not given.

    Raises:
        InputError: the file cannot be read.
        UsageError: it is not a recipe, or something in it or on the command line is wrong.
    """
    if file is None:
        return assemble(Recipe, flags)
    return assemble(Recipe, flags, _read(file), f"recipe {file}")


def build_gate(flags: Mapping[str, Any], file: Path | None = None) -> GateRequest:
    """What `compress gate` is asked for: flags over the section `gate` of a recipe.

    Raises:
        InputError, UsageError: as `build_recipe`; other sections are not looked at.
    """
    if file is None:
        return assemble(GateRequest, flags)
    section = _read(file).get("gate", {})
    return assemble(GateRequest, flags, {"gate": section}, f"recipe {file}")


def make_recipe(**options: Any) -> Recipe:
    """A recipe by the names of its flags: `make_recipe(model="m", keep=["0.5"], seed=3)`.

    Raises:
        UsageError: see `build_recipe`.
    """
    return make_request(Recipe, **options)


def make_request(kind: type[Request], **options: Any) -> Request:
    """What a command takes, by the names of its flags: `make_request(ExportRequest, model="m")`.

    Raises:
        UsageError: see `build_recipe`.
    """
    return assemble(kind, as_flags(options))


def as_flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of their flags: `gate_epochs` is `--gate-epochs`."""
    return {f"--{name.replace('_', '-')}": value for name, value in options.items()}


class _Bounded(yaml.SafeLoader):
    """Refuses what takes much longer to read than to write.

    A few lines of aliases (`*name`) of aliases stand for more than any memory holds, and the time
    for nested brackets grows with the square of their depth.
    """

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level > MOST_DEPTH:
            raise RecursionError
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        if len(self.indents) > MOST_DEPTH:
            raise RecursionError
        return bool(super().add_indent(column))

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, f"aliases (*{event.anchor}) are not supported", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        value.encode()  # an escape may stand for half of a surrogate pair, which is not text
        return value


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.load(read_text(file, MOST_RECIPE), _Bounded)
    except OSError as error:
        raise InputError(
            f"cannot read recipe {file}: {error.strerror}; give --config another file",
            id="recipe-unreadable",
        ) from error
    except RecursionError as error:
        raise UsageError(
            f"recipe {file} is nested too deeply; write sections of lines `option: value`",
            id="recipe-too-deep",
        ) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"recipe {file} is not YAML: {reason}; write sections of lines `option: value`",
            id="recipe-not-yaml",
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(
            f"recipe {file} must consist of sections of lines `option: value`", id="recipe-not-yaml"
        )
    return values
