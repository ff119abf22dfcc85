"""What each command takes, composed of the classes that have the options.

Flags win over a recipe file, the file over the defaults. A recipe has the names of the flags:
`macs: 0.5` is `--macs 0.5`. `recipe.yaml` in an artifact is the resolved recipe, written out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml

from compressor.budgets import Counts
from compressor.budgets.competing import Prune
from compressor.errors import InputError, UsageError
from compressor.export.engine_names import ONNXRUNTIME
from compressor.importance import METHODS
from compressor.options.assemble import Asked, Chosen, Request, Values, assemble, options_of_command
from compressor.options.declare import option
from compressor.options.recipe import DEFAULT_METHOD, RECOVERY_HELP, Method, Recipe, Recovery
from compressor.options.refuse import CLASH, USELESS, refuse, require_rows
from compressor.options.sections import (
    DEVICE,
    SEED,
    TASK,
    VERIFY,
    Access,
    Benchmark,
    Builds,
    CalibrationData,
    Device,
    Evaluation,
    Export,
    Gate,
    ModelSection,
    TestData,
)
from compressor.report import DEFAULT_FORMATS, FORMATS
from compressor.storage.input_files import read_text
from compressor.tasks.texts import SOURCE, TARGET

MOST_RECIPE = 256 << 10  # bytes; recipes have about two KiB


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

    def check(self) -> None:
        """Raise `UsageError` if the method needs rows and none are given."""
        require_rows(self.method, [], self.data)


class PruneRequest(Request):
    """What `compress prune` takes."""

    model: ModelSection
    data: CalibrationData
    budget: Annotated[Counts, Chosen([Counts])]
    recovery: Recovery = option(
        "none", name="recover", first=True, help=f"{RECOVERY_HELP}Default here: none."
    )
    seed: int = SEED
    device: Device = DEVICE

    @property
    def only_budget(self) -> Counts:
        """How many units are kept."""
        return self.budget.each()[0]

    def check(self) -> None:
        """Raise `UsageError` for options that do not go together."""
        require_rows(None, self.recovery, self.data)
        refuse(
            self.data.calibration is not None and not self.recovery,
            USELESS,
            f"--calibration {self.data.calibration} is for the recovery; add --recover "
            "reconstruct, or leave it out",
        )
        refuse(
            len(self.budget.each()) != 1,
            "budget-twice",
            "say once how many units to keep, for example --keep 0.5",
        )


class ExportRequest(Request):
    """What `compress export` takes."""

    model: ModelSection
    data: CalibrationData
    export: Export
    layout: Literal["compress", "optimum", "ctranslate2"] = option(
        "compress",
        panel="Export",
        first=True,
        help="compress: OUTPUT/onnx for this tool's runtime; optimum: OUTPUT for the ONNX Runtime "
        "loaders of Hugging Face optimum (fp32, models of one graph); ctranslate2: OUTPUT for "
        "ctranslate2.Translator, in the one --precision that is given.",
    )
    device: Device = DEVICE

    def check(self) -> None:
        """Raise `UsageError` for options that do nothing for a layout of another program."""
        if self.layout == "compress":
            return
        export = self.export
        engines = None if export.engines == [ONNXRUNTIME] else ",".join(export.engines)
        # A smaller vocabulary is the checkpoint's; what decoders score is decided in our graphs.
        cuts = bool(export.source_text and export.target_text)
        for flag, value, id in (
            ("--engines", engines, CLASH),
            *(() if cuts else ((SOURCE, export.source_text, CLASH),)),
            *(() if cuts else ((TARGET, export.target_text, CLASH),)),
            ("--calibration", self.data.calibration, USELESS),
        ):
            refuse(
                value is not None,
                id,
                f"{flag} {value} does nothing with --layout {self.layout}; leave it out, or use "
                "--layout compress",
            )


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

    def check(self) -> None:
        """Raise `UsageError` for malformed rules."""
        self.gate.rules()


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


def make_score_requests(options: Mapping[str, Any]) -> list[ScoreRequest]:
    """One request for each method of `compress score`; options go to the methods with them."""
    methods = [options.get("method") or DEFAULT_METHOD, *(options.get("compare") or [])]
    options_of = {name: set(METHODS[name].model_fields) for name in methods if name in METHODS}
    requests = []
    for method in methods:
        others = set().union(*options_of.values()) - options_of.get(method, set())
        of_method = {name: value for name, value in options.items() if name not in others}
        requests.append(assemble(ScoreRequest, of_method | {"method": method}))
    return requests


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
