"""The bundled examples: a small English-German translator and an intent classifier, with rows.

Small enough to ship inside the package, so that every command can be tried without a download.
`LICENSE.txt` beside them states where the models and the rows come from.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from compressor.errors import EnvironmentProblem


def directory() -> Path:
    """The directory of the examples' files.

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
    """Sentence pairs for scoring and recovery; TSV with the header `en`, `de`."""
    return directory() / "calibration.tsv"


def test() -> Path:
    """Sentence pairs for measuring quality, disjoint from `calibration()`."""
    return directory() / "test.tsv"


def help_desk() -> tuple[Path, Path, Path]:
    """The bundled intent classifier, its calibration and its test rows (TSV: `text`, `label`)."""
    name = directory() / "help-desk"
    return name, directory() / "help-desk-calibration.tsv", directory() / "help-desk-test.tsv"
