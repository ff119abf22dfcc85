"""Recipes written as the command line has them: `recipe(model="m", keep=["0.5"], steps=3)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compressor.request.recipe import Recipe, as_flags, build_recipe, make_request

request = make_request


def recipe(file: Path | None = None, **options: Any) -> Recipe:
    """The recipe of a command line with these options."""
    return build_recipe(as_flags(options), file)
