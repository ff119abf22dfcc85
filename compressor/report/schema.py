"""The report's data: what `report.json` holds. `view.py` is what follows from it and is shown.

Units are in the field names; ratios are pruned over dense where larger is better for pruned.
Intervals of differences are the bootstrap's; what is shown and judged is `facts.interval_of`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from compressor.errors import InputError
from compressor.model.sublayers import TOKEN_UNITS, layer_of
from compressor.steps.results import (
    FROM_FILE,
    Interval,
    Number,
    Outcome,
    QualitySearch,
    Ranking,
    ResultModel,
    Source,
    SpeedSearch,
    Throughput,
    Variant,
    Whole,
)
from compressor.storage.input_files import cannot_read, read_json
from compressor.storage.manifest import require_unchanged
from compressor.storage.wrong_values import wanted
from compressor.tasks import TASKS

SCHEMA_VERSION = "2.3"


class Change(ResultModel):
    """A number beside an earlier run's: the difference from dense, or of speed the ratio to it."""

    variant: str
    what: str
    before: Number
    after: Number
    interval: Interval | None = None  # 95 %, of after - before, or of their ratio
    judgment: Literal["worse", "better", "same", "unknown"]  # of exact numbers, without a test
    note: str = ""


class Sample(ResultModel):
    """A test row that the report shows; each model's answer to it is in its `samples`."""

    texts: list[str]  # one, or both of a pair
    reference: str


class Report(ResultModel):
    """All results of a run, as it writes them, reads them back and returns them.

    Attributes:
        dense: The model as given, in float32.
        variants: The smaller models, each in all precisions and engines, and dense in others.
        throughput: All timings; None where nothing was timed.
        gate: The outcome of every rule for every delivered variant.
        search: How a budget of speed or quality was met; None for others.
        changes: What changed since an earlier run, if `compress gate --baseline` compared the two.
    """

    schema_version: str = SCHEMA_VERSION
    tool_version: str
    created: str  # ISO 8601, UTC
    command: str
    task: str
    model: str
    revision: str | None
    model_type: str
    seed: Whole
    calibration: Source | None
    test: Source | None
    notes: list[str] = Field(default_factory=list)  # how the checkpoint's files were read
    shared_rows: Whole = 0  # test rows whose texts are calibration rows too
    scoring: Ranking | None  # of the variants whose own `scoring` is None
    dense: Variant
    variants: list[Variant]
    throughput: Throughput | None
    hardware: dict[str, str]
    versions: dict[str, str]
    gate: list[Outcome] = Field(default_factory=list)
    search: SpeedSearch | QualitySearch | None = None
    # Its tokens are the ones that an encoder keeps; an encoder-decoder also those of target_text.
    source_text: Source | None = None
    target_text: Source | None = None  # its tokens are the ones that decoders score
    samples: list[Sample] = Field(default_factory=list)
    # From an earlier run, where `compress gate --baseline` compared the two.
    changes: list[Change] = Field(default_factory=list)

    @model_validator(mode="after")
    def _can_be_shown(self) -> Report:
        """Tables look up each model's units by the names of the dense model's sublayers."""
        if self.task not in TASKS:
            raise ValueError(f"there is no task {self.task!r}")
        names = (self.dense.heads.keys(), self.dense.neurons.keys())
        for model in (self.dense, *self.variants):
            total = (model.heads.keys(), model.neurons.keys())
            if not names == total == (model.kept.keys(), model.kept_neurons.keys()):
                raise ValueError(f"{model.name[:99]!r} has other sublayers than the dense model")
            layers = {layer_of(name) for name in model.heads if name.startswith("encoder_self.")}
            hand_on = max(0, len(layers.difference(model.dropped_layers)) - 1)
            tenths = model.handed_on
            known = set(tenths).issubset(range(TOKEN_UNITS + 1))
            if tenths and not (known and len(tenths) == hand_on):
                raise ValueError(
                    f"{model.name[:99]!r} does not say of {hand_on} layers how many tenths of the "
                    "tokens they hand on"
                )
        return self

    def save(self, path: Path) -> None:
        """Write the report as a `report.json`."""
        path.write_text(render_json(self), encoding="utf-8")


def render_json(report: Report) -> str:
    """The report as indented JSON; numbers keep their full precision."""
    return report.model_dump_json(indent=1) + "\n"


def load_report(path: Path, *, verify: bool = True) -> Report:
    """Read a `report.json`.

    Args:
        path: The file.
        verify: Whether to check it against the manifest beside it, if there is one.

    Returns:
        The report.

    Raises:
        InputError: not what the manifest lists, of another schema version, or not a report.
    """
    if verify:
        require_unchanged(path.parent, [path.name], warn=False)  # reports often lie alone
    try:
        data = read_json(path)
        version = str(data.get("schema_version", ""))[:40] if isinstance(data, dict) else ""
        if version != SCHEMA_VERSION:
            raise InputError(
                f"{path} has report schema {version or 'none'}, this version reads "
                f"{SCHEMA_VERSION}; write it again with `compress run`",
                id="report-version",
            )
        return Report.model_validate(data, context=FROM_FILE)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}; check the path", id="file-missing") from error
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            where = ".".join(str(part)[:40] for part in first["loc"])
            reason = f"{where}: {wanted(first)}"
        raise InputError(
            f"{path} is not a valid report: {reason}; give the report.json of a run",
            id="report-invalid",
        ) from error
