"""The bundled examples: a small English-German translator and an intent classifier, with rows."""

from __future__ import annotations

from pathlib import Path


def directory() -> Path:
    """Where the models and rows are."""
    return Path(__file__).parent


def model() -> Path:
    """The bundled translator."""
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
