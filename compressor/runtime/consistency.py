"""The first opening of an artifact: its description and its files, checked against the manifest.

Later nothing is checked again: that graphs answer as the weights do is for `compress verify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compressor.errors import cannot_read
from compressor.runtime.artifact import (
    CTRANSLATE2_DIRECTORY,
    CTRANSLATE2_FILES,
    GRAPH_DIRECTORY,
    Artifact,
    read_artifact,
)
from compressor.runtime.engines.engine import Engine
from compressor.storage.manifest import GRAPHS_FILE, require_no_links_out, require_unchanged


def read_description(directory: Path, verify: bool) -> Artifact:
    """`read_artifact`; none of its files is a link to a place outside of the directory.

    Links of the Hugging Face hub's cache, from `snapshots` to `blobs`, may be.

    Args:
        verify: check `graphs.json` against the manifest first.

    Raises:
        InputError: not an artifact, `graphs.json` was changed, or a file lies outside.
    """
    description = f"{GRAPH_DIRECTORY}/{GRAPHS_FILE}"
    if verify:
        require_unchanged(directory, [description], warn=False)
    artifact = read_artifact(directory)
    names = {name for chosen in artifact.precisions for name in artifact.used_files(chosen)}
    # Weights lie beside their graph, in a file that `graphs.json` does not name.
    names |= {f"{name}_data" for name in names} | {description}
    names |= {f"{CTRANSLATE2_DIRECTORY}/{name}" for name in CTRANSLATE2_FILES}
    require_no_links_out(directory, sorted(names))
    return artifact


def require_files(
    directory: Path,
    artifact: Artifact,
    engine: type[Engine],
    precisions: Sequence[str] | None,
    *,
    verify: bool = True,
) -> None:
    """Check that what an engine opens can be read, and is what the directory's manifest lists.

    Args:
        precisions: whose files are checked; None: those of the engine's default one.
        verify: look at the manifest, too.

    Raises:
        InputError: a file cannot be read, is damaged or not listed.
        UsageError: the artifact has nothing that the engine could open.
    """
    chosen = precisions or [engine.default_precision(artifact)]
    files = [name for p in chosen for name in engine.files(directory, artifact, p)]
    for path in (directory / name for file in files for name in (file, f"{file}_data")):
        try:
            path.open("rb").close()  # engines say why they cannot, or end their process
        except FileNotFoundError:
            continue  # reported when it is opened; not every graph has external weights
        except OSError as error:
            raise cannot_read(path, error) from error
    if verify:
        require_unchanged(directory, files)
