"""What several studies in one directory compute alike: scores, and answers of the dense model.

The first study that needs it leaves it in `OUT/.compress`, under everything that it depends on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from compressor.progress import Progress
from compressor.storage.files import write_json
from compressor.storage.hashes import sha256_of_text


def shared(
    directory: Path,
    kind: str,
    key: Mapping[str, Any],
    compute: Callable[[], Any],
    check: Any,
    progress: Progress,
) -> Any:
    """The JSON value of a computation, from another study if one has made it.

    Args:
        directory: that the studies share.
        kind: what it is, as `scores`.
        key: everything that the value depends on, as JSON.
        check: the type that the value must have; what is damaged is computed again.
    """
    # Sorted, so that the same key always gives the same name.
    text = json.dumps(key, sort_keys=True)
    # A part of the hash is enough for a name, since the key in the file is compared too.
    path = directory / f"{kind}-{sha256_of_text(text)[:32]}.json"
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            # As JSON has it, where tuples are lists.
            if found["key"] == json.loads(text):
                value = TypeAdapter(check).validate_python(found["value"])
                progress.message(f"  {kind}: those of another study in {directory.parent}")
                return value
        # A damaged file costs the computation, not the study.
        except (ValueError, KeyError, TypeError):
            progress.message(f"{path} cannot be read; it is made again")
    value = compute()
    write_json(path, {"key": json.loads(text), "value": value})
    return value
