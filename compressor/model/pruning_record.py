"""`heads.json`: which units a pruned checkpoint has kept, and what led to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.model.sublayers import Mask

PRUNING_RECORD = "heads.json"


@dataclass(frozen=True)
class PruningRecord:
    """What `heads.json` says.

    Args:
        mask: the units that are left, from its `kept` and `heads`.
        contents: all of it: `model`, `method`, `scores`, `budget`, `seed`, …
    """

    mask: Mask
    contents: Mapping[str, Any]

    @property
    def dense_model(self) -> str | None:
        """The checkpoint that it was made from, as it was named then."""
        return self.contents.get("model")


def read_pruning_record(directory: Path) -> PruningRecord:
    """Read the `heads.json` of a pruned checkpoint.

    Raises:
        InputError: it is missing, or does not say which heads are left.
    """
    path = directory / PRUNING_RECORD
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
        kept, totals = contents["kept"], contents["heads"]
        if set(kept) != set(totals):
            raise ValueError("`kept` and `heads` must name the same layers")
        mask = Mask.from_json(kept, totals)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{path} does not say which heads are kept: {error}; prune the dense checkpoint again",
            id="heads-file-malformed",
        ) from error
    return PruningRecord(mask, contents)
