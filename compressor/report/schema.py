"""The report's data: what `report.json` holds, and all that the renderers read.

Versioned by `SCHEMA_VERSION`; a file of another version is refused.

Units are in the field names; ratios are pruned over dense where larger is better for pruned.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from compressor.errors import InputError
from compressor.results import (
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
from compressor.storage.input_files import read_json, read_text
from compressor.storage.manifest import require_unchanged
from compressor.tasks import TASKS

SCHEMA_VERSION = "2.3"


def _known_task(name: str) -> str:
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}")
    return name


class Change(ResultModel):
    """One number of a model beside that of an earlier run's.

    Quality is the difference from dense, speed the ratio to dense of one interleaved run.
    """

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
    """All results of a run."""

    schema_version: str = SCHEMA_VERSION
    tool_version: str
    created: str  # ISO 8601, UTC
    command: str
    task: Annotated[str, AfterValidator(_known_task)]
    model: str
    revision: str | None
    model_type: str
    seed: Whole
    calibration: Source | None
    test: Source | None
    shared_rows: Whole = 0  # test rows whose texts are calibration rows too
    scoring: Ranking | None  # of the variants whose own `scoring` is None
    dense: Variant
    variants: list[Variant]
    throughput: Throughput | None
    hardware: dict[str, str]
    versions: dict[str, str]
    gate: list[Outcome] = Field(default_factory=list)
    search: SpeedSearch | QualitySearch | None = None
    source_text: Source | None = None  # its tokens are the ones that an encoder keeps
    target_text: Source | None = None  # its tokens are the ones that decoders score
    samples: list[Sample] = Field(default_factory=list)
    # From an earlier run, where `compress gate --baseline` compared the two.
    changes: list[Change] = Field(default_factory=list)

    @model_validator(mode="after")
    def _sublayers_are_known(self) -> Report:
        """Tables look up each model's units by the names of the dense model's sublayers."""
        names = (self.dense.heads.keys(), self.dense.neurons.keys())
        for model in (self.dense, *self.variants):
            total = (model.heads.keys(), model.neurons.keys())
            if not names == total == (model.kept.keys(), model.kept_neurons.keys()):
                raise ValueError(f"{model.name[:99]!r} has other sublayers than the dense model")
        return self

    def save(self, path: Path) -> None:
        """Write as indented JSON with full precision."""
        path.write_text(render_json(self), encoding="utf-8")


def render_json(report: Report) -> str:
    """The report as indented JSON; numbers keep their full precision."""
    return report.model_dump_json(indent=1) + "\n"


def load_report(path: Path, *, verify: bool = True) -> Report:
    """Read a `report.json`; `verify` it against the manifest beside it, if there is one.

    Raises:
        InputError: no such file, not what the manifest lists, not JSON, another schema version, or
            not a report.
    """
    if verify:
        require_unchanged(path.parent, [path.name], warn=False)  # reports often lie alone
    wanted = "give the report.json of a run"
    try:
        data = read_json(path)
    except OSError as error:
        raise InputError(
            f"cannot read report {path}: {error.strerror}; {wanted}", id="report-unreadable"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); {wanted}", id="report-not-json") from error
    version = str(data.get("schema_version", ""))[:40] if isinstance(data, dict) else ""
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has report schema {version or 'none'}, this version reads "
            f"{SCHEMA_VERSION}; write it again with `compress run`",
            id="report-version",
        )
    try:
        return Report.model_validate(data, context=FROM_FILE)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        reason = " ".join(first["msg"].removeprefix("Value error, ").split())[:300]
        what = f"{where}: {reason}" if where else reason
        raise InputError(
            f"{path} is not a valid report: {what}; {wanted}", id="report-invalid"
        ) from error


@dataclass(frozen=True)
class ReportFormat:
    """A format that reports are written in."""

    file: str
    render: Callable[[Report], str]
    start: str  # pattern of how its files begin; others are not replaced
    for_ci: bool = False  # whether `compress gate --ci` writes it

    def is_own_file(self, path: Path) -> bool:
        """Whether a file is of this format."""
        try:
            return re.match(self.start, read_text(path), re.DOTALL) is not None
        except (OSError, ValueError):
            return False


JSON = ReportFormat("report.json", render_json, r'\s*\{\s*"schema_version":')
