"""How a pruned checkpoint says which units it has kept: `units.json`, by which `compress` goes.

By its configuration transformers opens it, with a copy of `modeling_pruned.py` beside the weights.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from compressor.errors import InputError
from compressor.model import modeling_kept, modeling_pruned, modeling_selection, modeling_tokens
from compressor.model.architecture import NEURONS
from compressor.model.architectures import architecture_of
from compressor.model.one_token import one_token_paths
from compressor.model.reading import malformed, read_object
from compressor.model.stored_configuration import needs_own_class
from compressor.model.sublayers import Mask, kind_of, units_of
from compressor.model.token_selection import hands_on_fewer, selection_paths

PRUNING_RECORD = "units.json"
KEPT_UNITS, READ_TOKEN = "kept_units", "read_token"
MODELING = Path(modeling_pruned.__file__)
# Which transformers needs.
_MODELING = (modeling_pruned, modeling_tokens, modeling_kept, modeling_selection)
MODELING_FILES = tuple(Path(str(module.__file__)) for module in _MODELING)


@dataclass(frozen=True)
class PruningRecord:
    """The contents of `units.json`.

    Args:
        mask: of the dense model's sublayers.
        contents: all of the file: `model`, `method`, `scores`, `budget`, `seed`, …
    """

    mask: Mask
    contents: Mapping[str, Any]


class _Schema(BaseModel, strict=True):
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
    path, id = directory / PRUNING_RECORD, "units-file-malformed"
    contents = read_object(path, id)
    try:
        _Schema.model_validate(contents)
        return PruningRecord(recorded_mask(contents), contents)
    except (ValueError, LookupError) as error:
        raise malformed(path, " ".join(str(error).split())[:300], id) from error


def find_pruning_record(directory: Path, config: Any) -> PruningRecord | None:
    """Read `units.json`, if there is one.

    Args:
        directory: of the checkpoint.
        config: of the model.

    Returns:
        Its contents; None for a dense checkpoint.

    Raises:
        InputError: it is malformed, or missing where the configuration is a pruned model's.
    """
    if (directory / PRUNING_RECORD).exists():
        return read_pruning_record(directory)
    if getattr(config, KEPT_UNITS, None):
        raise InputError(
            f"{directory} has a pruned model, and no {PRUNING_RECORD} that says which units are "
            f"kept; copy {PRUNING_RECORD} from the artifact that it was made from",
            id="units-file-missing",
        )
    return None


def recorded_mask(contents: Mapping[str, Any]) -> Mask:
    """The mask in the contents of `units.json`, of the dense model's sublayers."""
    mask = Mask.from_json(contents["kept"], contents["units"])
    for name, kept in mask.to_json().items():
        if units_of(name) == "tokens" and kept != list(range(len(kept))):
            raise ValueError(f"{name} keeps {kept}, and not the most significant tokens")
    return Mask(mask.keep, frozenset(contents.get("dropped_layers", ())))


def pruned_config(model: Any, mask: Mask) -> Any:
    """A copy of a model's configuration, for the model with the units that a mask keeps.

    Where it keeps all, the model is an ordinary one, and needs no code beside it.

    Args:
        model: of the dense shape.
        mask: of its sublayers.
    """
    entry, pruned = architecture_of(model), copy.deepcopy(model.config)
    name = modeling_pruned.pruned_class(type(model).__name__).__name__
    # An ordinary model needs no code beside it.
    if all(map(all, mask.keep.values())) and not needs_own_class(pruned, entry):
        pruned.architectures = [name.removeprefix("Pruned")]
        return pruned
    pruned.architectures = [name]
    pruned.auto_map = {entry.auto_class: f"{MODELING.stem}.{name}"}
    pruned.kept_units = []
    for paths in entry.sublayers:
        counts = {name: n for name, n in mask.counts().items() if kind_of(name) == paths.kind}
        kept = [counts[f"{paths.kind}.{index}"] for index in range(len(counts))]
        pruned.kept_units.append(entry.full_paths(paths) | {"kept": kept})
    # Without a head the states of all tokens are what callers of transformers ask for.
    last, tenths = one_token_paths(model), mask.handed_on()
    if last is not None and hands_on_fewer(tenths):
        pruned.read_token = selection_paths(model, tenths)
    elif last is not None and entry.head.ending:
        pruned.read_token = last
    return pruned


def without_code(config: Any) -> None:
    """Drop from a configuration, in place, what makes transformers run the code beside it."""
    for name in ("auto_map", KEPT_UNITS, READ_TOKEN):
        vars(config).pop(name, None)
