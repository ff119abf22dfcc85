"""Every option of `compress run`, in one typed value that can stand in a YAML file.

Flags win over the file, the file over the defaults; keys that are not options are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from compressor.budgets.counts import split_max_drop
from compressor.errors import InputError, UsageError
from compressor.export.precision_names import split_precisions

MINIMUM_ROWS = 8  # of calibration and of test data
# Options that say how far to go, beside the plain numbers of `max_drop`.
BUDGETS = ("keep", "remove", "speedup", "penalty")
# Options of throughput alone.
TIMING = ("batch_size", "lengths", "target_length", "bench_seconds", "threads")
Lengths = Literal["data"] | PositiveInt


class Recipe(BaseModel):
    """The resolved options of one run; `recipe.yaml` in an artifact is this, written out."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str
    task: Literal["translation", "classification"] | None = None
    revision: str | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False

    target_text: str | None = None
    calibration: str | None = None
    test: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    calibration_rows: int | None = Field(default=None, ge=MINIMUM_ROWS)
    test_rows: int | None = Field(default=None, ge=MINIMUM_ROWS)

    method: str = "second-order"
    per: Literal["token", "example"] = "token"
    normalize: Literal["layer", "none"] = "layer"
    ablate: Literal["loss", "metric"] = "loss"
    keep: list[str] = []
    remove: list[str] = []
    speedup: float | None = Field(default=None, gt=1, allow_inf_nan=False)
    at_batch: PositiveInt = 16
    floor: str = "1"
    steps: int = Field(default=1, ge=1)
    recover: str = "reconstruct"
    train_weights: Literal["none", "encoder", "all"] = "none"
    estimator: Literal["gumbel", "straight-through"] = "gumbel"
    penalty: float | None = Field(default=None, gt=0)
    gate_epochs: PositiveInt = 20
    gate_learning_rate: float | None = Field(default=None, gt=0)
    distill_epochs: PositiveInt = 5
    learning_rate: float | None = Field(default=None, gt=0)
    patience: PositiveInt = 2
    seed: int = Field(default=0, ge=0, lt=2**32)

    precision: list[str] = ["fp32"]
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_beams: int | None = Field(default=None, ge=1)
    resamples: int = Field(default=1000, ge=100)

    bench: bool = True
    batch_size: list[int] = [1, 4, 16, 64]
    lengths: Lengths = "data"
    target_length: int | None = Field(default=None, ge=1)
    bench_seconds: float = Field(default=3.0, gt=0)
    threads: int | None = Field(default=None, ge=1)

    max_drop: list[str] = []
    min_speedup: list[str] = []

    @field_validator("batch_size", mode="before")
    @classmethod
    def _batch_sizes(cls, value: Any) -> Any:
        """In a file also in the form of the option, `1,4,16`."""
        values = value if isinstance(value, list) else [value]
        parts = [part for x in values for part in (x.split(",") if isinstance(x, str) else [x])]
        return [int(x) if isinstance(x, str) and x.strip().isdecimal() else x for x in parts]

    @field_validator("precision", mode="before")
    @classmethod
    def _precision_names(cls, value: Any) -> list[str]:
        return split_precisions(value)

    @model_validator(mode="before")
    @classmethod
    def _trained_weights_are_not_re_solved(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("train_weights", "none") != "none":
            return {"recover": "none", **values}
        return values

    @property
    def drop_budgets(self) -> list[float]:
        """The plain numbers of `max_drop`: budgets, not rules."""
        return [float(text) for text in split_max_drop(self.max_drop)[0]]

    @property
    def drop_rules(self) -> list[str]:
        """The gate's rules in `max_drop`."""
        return split_max_drop(self.max_drop)[1]

    def to_yaml(self) -> str:
        """All options with their values, in the order of the class."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)


def build_recipe(flags: Mapping[str, Any], file: Path | None = None) -> Recipe:
    """Merge flags (None or empty = not given) over a recipe file over the defaults.

    Raises:
        InputError: the file cannot be read.
        UsageError: it is not a recipe: unknown key, wrong type, value out of range, or no model.
    """
    values = {} if file is None else _read(file)
    drops = _max_drop(flags, values)
    if _has_budget(flags):
        values = {name: value for name, value in values.items() if name not in BUDGETS}
    values |= {name: value for name, value in flags.items() if value not in (None, [], ())}
    values["max_drop"] = drops
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise UsageError(_explain(error, file)) from error
    if flags.get("at_batch") and recipe.speedup is None:
        raise UsageError(
            f"--at-batch {recipe.at_batch} belongs to --speedup; give both, or neither"
        )
    if flags.get("bench") is False:
        for name in TIMING:
            if flags.get(name):
                option = name.replace("_", "-")
                raise UsageError(f"--{option} is for throughput; drop it, or drop --no-bench")
    if any(size < 1 for size in recipe.batch_size) or not recipe.batch_size:
        raise UsageError(f"batch sizes must be positive numbers, not {recipe.batch_size}")
    return recipe


def _has_budget(flags: Mapping[str, Any]) -> bool:
    """Whether the command line says how far to go, which replaces what a file says of that."""
    numbers, _ = split_max_drop(flags.get("max_drop") or [])
    return bool(numbers or any(flags.get(name) for name in BUDGETS))


def _max_drop(flags: Mapping[str, Any], file: Mapping[str, Any]) -> list[str]:
    """Values of `max_drop`: flags win over the file, for budgets and for rules separately."""
    numbers, rules = split_max_drop(file.get("max_drop") or [])
    new_numbers, new_rules = split_max_drop(flags.get("max_drop") or [])
    kept = [] if _has_budget(flags) else numbers
    return [*(new_numbers or kept), *(new_rules or rules)]


def parse_lengths(text: str | None) -> Lengths | None:
    """`data`, or a number of tokens.

    Raises:
        UsageError: neither.
    """
    if text is None or text == "data":
        return text  # type: ignore[return-value]
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise UsageError(f"--lengths {text!r} is neither `data` nor a number of tokens")


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read recipe {file}: {error.strerror}; give --config another file"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"recipe {file} is not YAML: {reason}; write lines of the form `option: value`"
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"recipe {file} must consist of lines of the form `option: value`")
    for name in ("keep", "remove", "max_drop", "min_speedup"):
        if name in values and not isinstance(values[name], list):
            values[name] = [values[name]]
    for name in ("keep", "remove", "max_drop", "min_speedup"):
        if name in values:
            values[name] = [str(value) for value in values[name]]
    if "floor" in values:
        values["floor"] = str(values["floor"])
    return values


def _explain(error: ValidationError, file: Path | None) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "recipe"
    option = f"--{name.replace('_', '-')}"
    where = f"recipe {file}" if file is not None else "the command line"
    if first["type"] == "extra_forbidden":
        known = ", ".join(Recipe.model_fields)
        return f"{where} has the unknown option {name!r}; options are {known}"
    if first["type"] == "missing":
        return f"{where} does not say which {name} to use; give {option}"
    return f"{where}: {option} {first.get('input')!r}: {first['msg']}"
