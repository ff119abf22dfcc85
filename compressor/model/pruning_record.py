"""`units.json`: which units a pruned checkpoint has kept, and what led to them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.model.bounds import NEURONS
from compressor.model.sublayers import Mask
from compressor.storage.input_files import read_json

PRUNING_RECORD = "units.json"
PRUNING_SCHEMA = 2


@dataclass(frozen=True)
class PruningRecord:
    """What `units.json` says.

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
        """What it was pruned for."""
        return self.contents.get("task")


def render_pruning_record(contents: Mapping[str, Any]) -> str:
    """The text of the file: indented, with each list of numbers in one line."""
    text = json.dumps(contents, indent=1, ensure_ascii=False)
    # A text never holds a line break, so only indented lists match.
    in_one_line = re.sub(r"\[\n[\s\d.,e+-]+\]", lambda match: _joined(match.group()), text)
    return in_one_line + "\n"


def _joined(numbers: str) -> str:
    return re.sub(r",\s+", ", ", re.sub(r"\[\s+|\s+\]", lambda x: x.group().strip(), numbers))


def read_pruning_record(directory: Path) -> PruningRecord:
    """Read the `units.json` of a pruned checkpoint.

    Raises:
        InputError: it is missing, or does not say which units are left.
    """
    path = directory / PRUNING_RECORD
    try:
        contents = read_json(path)
        if contents.get("schema", PRUNING_SCHEMA) != PRUNING_SCHEMA:
            schema = str(contents["schema"])[:40]
            raise ValueError(f"it has schema {schema}, this version reads {PRUNING_SCHEMA}")
        kept, totals = contents["kept"], contents["units"]
        if not (isinstance(kept, dict) and isinstance(totals, dict)) or set(kept) != set(totals):
            raise ValueError("`kept` and `units` must name the same sublayers")
        for name, total in totals.items():
            _require_units(name, kept[name], total)
        if not isinstance(contents.get("task"), str | None):
            raise ValueError("`task` is not a name")
        mask = recorded_mask(contents)
        _require_layers(mask)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)[:300]
        raise InputError(
            f"{path} does not say which units are kept: {reason}; prune the dense checkpoint again",
            id="units-file-malformed",
        ) from error
    return PruningRecord(mask, contents)


def recorded_mask(contents: Mapping[str, Any]) -> Mask:
    """The units that are left by the contents of the file."""
    mask = Mask.from_json(contents["kept"], contents["units"])
    return Mask(mask.keep, frozenset(contents.get("dropped_layers", ())))


def _require_layers(mask: Mask) -> None:
    """Raise ValueError unless dropped layers are the model's, without units, and not all of them.

    Every stack must keep one.
    """
    left = set(mask.layers()) - mask.dropped
    if not mask.dropped <= set(mask.layers()):
        raise ValueError("`dropped_layers` names layers that the model does not have")
    if mask.without_layers(mask.dropped).keep != mask.keep:
        raise ValueError("`dropped_layers` names layers that have kept units")
    if {x.partition(".")[0] for x in mask.layers()} != {x.partition(".")[0] for x in left}:
        raise ValueError("`dropped_layers` names all layers of a stack")


def _require_units(name: str, kept: Any, total: Any) -> None:
    """Raise ValueError unless `kept` are distinct numbers below `total`."""
    if type(total) is not int or not 1 <= total <= NEURONS:
        raise ValueError(f"{name} cannot have {str(total)[:40]} units")
    numbers = isinstance(kept, list) and all(type(unit) is int for unit in kept)
    if not numbers or len(set(kept)) < len(kept) or not set(kept) <= set(range(total)):
        raise ValueError(f"the kept units of {name} are not different numbers below {total}")
