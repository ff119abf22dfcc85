"""One hash of everything that the results of a run depend on, for caches of CI.

The model's revision, the data's contents, the recipe without its gate, the versions of packages and
the source of this one. The machine is not among them: speed-ups are ratios of one run, and a cache
that every machine missed would be none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import compressor
from compressor.model.location import checkpoint_files, revision_of
from compressor.request.recipe import Recipe
from compressor.storage.hashes import sha256_of, sha256_of_text
from compressor.tasks.parallel import parallel_files
from compressor.throughput.hardware import versions


def cache_key(recipe: Recipe) -> str:
    """64 hex digits.

    Raises:
        InputError: the model cannot be found.
        OSError: a data file cannot be read.
    """
    options = recipe.model_dump(
        mode="json", exclude={"card": True, "gate": True, "model": {"verify", "path", "revision"}}
    )
    # The contents of files stand for their paths, which differ between machines.
    for name in ("calibration", "test"):
        options["data"].pop(name)
    for name in ("source_text", "target_text"):
        options["export"].pop(name)
    for method, step in zip(recipe.recovery, options["recovery"], strict=True):
        for name in method.file_options:
            step.pop(name)
    facts = {
        "recipe": options,
        "model": _model(recipe),
        "data": {name: list(map(sha256_of, files)) for name, files in _data_files(recipe)},
        "versions": versions(),
        "source": _source(),
    }
    return sha256_of_text(json.dumps(facts, sort_keys=True))


def _model(recipe: Recipe) -> str:
    path = Path(recipe.model.path).expanduser()
    if not path.is_dir():
        return revision_of(recipe.model.path, recipe.model.revision)
    return " ".join(f"{file.name}:{sha256_of(file)}" for file in checkpoint_files(path))


def _data_files(recipe: Recipe) -> Iterator[tuple[str, list[Path]]]:
    """What each file is for, and where it is; parallel texts are two."""
    for name in ("calibration", "test"):
        spec = getattr(recipe.data, name)
        if spec is not None:
            yield name, [Path(path) for path in parallel_files(spec) or (spec,)]
    for name in ("source_text", "target_text"):
        text = getattr(recipe.export, name)
        if text is not None:
            yield name.replace("_", " "), [Path(text)]
    texts = [method.extra_text for method in recipe.recovery]
    yield "text to distill from", [text.path for text in texts if text is not None]
    starts = [method.earlier for method in recipe.recovery]
    yield "weights to start from", [x for start in starts if start for x in checkpoint_files(start)]


def _source() -> str:
    root = Path(compressor.__file__).parent
    files = sorted(root.rglob("*.py"))
    return sha256_of_text(
        "\n".join(f"{path.relative_to(root).as_posix()}:{sha256_of(path)}" for path in files)
    )
