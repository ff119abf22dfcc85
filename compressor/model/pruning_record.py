"""`units.json`: which units a pruned checkpoint has kept, and how they were chosen."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from compressor.errors import InputError
from compressor.model.architecture import NEURONS
from compressor.model.sublayers import Mask
from compressor.storage.input_files import read_json

PRUNING_RECORD = "units.json"


@dataclass(frozen=True)
class PruningRecord:
    """The contents of `units.json`.

    Args:
        mask: the units that are left, from its `kept`, `units` and `dropped_layers`; of the dense
            model's sublayers.
        contents: all of it: `model`, `method`, `scores`, `budget`, `seed`, …
    """

    mask: Mask
    contents: Mapping[str, Any]

    @property
    def dense_model(self) -> str | None:
        """The checkpoint that it was made from, as it was named then."""
        return self.contents.get("model")

    @property
    def task(self) -> str | None:
        """The task it was pruned for."""
        return self.contents.get("task")


class _Schema(BaseModel, strict=True):
    """The part of the file that is read here."""

    version: Literal[2] = Field(2, alias="schema")
    kept: dict[str, list[int]]
    units: dict[str, Annotated[int, Field(ge=1, le=NEURONS)]]
    dropped_layers: list[str] = []
    task: str | None = None


def render_pruning_record(contents: Mapping[str, Any]) -> str:
    """The text of the file: indented, with each list of numbers in one line."""

    def in_one_line(numbers: re.Match[str]) -> str:
        return f"[{', '.join(map(str.strip, numbers[1].split(',')))}]"

    text = json.dumps(contents, indent=1, ensure_ascii=False)
    # A text never holds a line break, so only indented lists match.
    return re.sub(r"\[\n([\s\d.,e+-]+)\]", in_one_line, text) + "\n"


def read_pruning_record(directory: Path) -> PruningRecord:
    """Read the `units.json` of a pruned checkpoint.

    Raises:
        InputError: it is missing, or does not say which units are left.
    """
    path = directory / PRUNING_RECORD
    try:
        contents = read_json(path)
        _Schema.model_validate(contents)
        mask = recorded_mask(contents)
    except (OSError, ValueError, LookupError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise InputError(
            f"{path} does not say which units are kept: {reason:.300}; prune the dense checkpoint "
            "again",
            id="units-file-malformed",
        ) from error
    return PruningRecord(mask, contents)


def recorded_mask(contents: Mapping[str, Any]) -> Mask:
    """The units that are left by the contents of the file."""
    mask = Mask.from_json(contents["kept"], contents["units"])
    return Mask(mask.keep, frozenset(contents.get("dropped_layers", ())))
