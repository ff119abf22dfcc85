"""Facts about a model that are not measured, as the front matter of its model card has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import metadata_load

from compressor.storage.manifest import CARD


@dataclass(frozen=True)
class CardFacts:
    """Facts about a model that a hub shows, as its card names them."""

    license: str | None = None  # the hub's short name of it, `apache-2.0`
    license_name: str | None = None  # of the license `other`
    license_link: str | None = None
    language: tuple[str, ...] = ()  # codes, `de`
    base_model: tuple[str, ...] = ()  # hub ids of what it was made from


def read_card(directory: Path) -> CardFacts:
    """Read the facts in a checkpoint's card.

    Args:
        directory: The checkpoint's directory.

    Returns:
        The facts; none where there is no card, or one of another kind.
    """
    try:
        data = metadata_load(directory / CARD) or {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return CardFacts()
    link = _text(data.get("license_link"))
    return CardFacts(
        license=_text(data.get("license")),
        license_name=_text(data.get("license_name")),
        # Another one names a file that lies beside that card.
        license_link=link if link and link.startswith(("https://", "http://")) else None,
        language=_texts(data.get("language")),
        base_model=_texts(data.get("base_model")),
    )


def _text(value: Any) -> str | None:
    return value.strip() if isinstance(value, str) and value.strip() else None


def _texts(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    # YAML reads the code of Norwegian as the word no.
    named = ("no" if entry is False else _text(entry) for entry in values)
    return tuple(entry for entry in named if entry)
