"""Whether a directory still holds what this tool wrote: `compress verify`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from compressor.export.verification import has_weights, verify_weights
from compressor.progress import SILENT, Progress
from compressor.steps.results import Check
from compressor.tasks.verification import (
    described,
    listed_artifacts,
    listed_files,
    open_graphs,
    require_as_listed,
)


@dataclass(frozen=True)
class Verified:
    """What was checked."""

    directory: str
    files: int  # listed, and as they were written
    unlisted: list[str] = field(default_factory=list)  # that nothing reads
    checks: list[Check] = field(default_factory=list)  # of graphs against weights, in float32
    opened: list[str] = field(default_factory=list)  # artifact and precision of all graphs


def verify_directory(directory: Path, progress: Progress = SILENT) -> Verified:
    """Check all files against the manifest, and graphs against their description and the weights.

    Raises:
        InputError: a file is missing, damaged, of another artifact, or not listed.
        VerificationError: the graphs do not answer as the weights do.
    """
    listed = listed_files(directory)
    unlisted = require_as_listed(directory, listed, progress)
    verified = Verified(str(directory), len(listed), unlisted)
    for artifact in listed_artifacts(directory, listed):
        graphs = described(artifact)
        if graphs is not None:
            verified.opened.extend(open_graphs(artifact, graphs, progress))
        if has_weights(artifact):
            progress.message(f"loading the checkpoint in {artifact} …")
            verified.checks.extend(verify_weights(artifact, graphs))
    return verified
