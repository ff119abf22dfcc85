"""The bundled example: a small English-German translator and the project's own sentences for it.

Small enough to ship inside the package, so that every command can be tried without a download.
`LICENSE.txt` beside this file states where the model and the sentences come from.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from compressor.errors import EnvironmentProblem


def directory() -> Path:
    """The directory of the example's files.

    Raises:
        EnvironmentProblem: the package is imported from a zip file, where no directory exists.
    """
    package = files("compressor")
    if not isinstance(package, Path):
        raise EnvironmentProblem(
            "the bundled example needs an unpacked installation, but compressor is imported from "
            f"{package}; install the package with pip",
            id="example-in-archive",
        )
    return package / "example"


def model() -> Path:
    """The bundled translation checkpoint (a directory)."""
    return directory() / "tatoeba-en-de"


def calibration() -> Path:
    """Sentence pairs for scoring and repair; TSV with the header `en`, `de`."""
    return directory() / "calibration.tsv"


def test() -> Path:
    """Sentence pairs for measuring quality, disjoint from `calibration()`."""
    return directory() / "test.tsv"
