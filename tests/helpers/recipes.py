"""Recipes written as the command line has them: `recipe(model="m", keep=["0.5"], steps=3)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from compressor.options.assemble import assemble
from compressor.options.declare import Section
from compressor.request.recipe import Recipe, as_flags, build_recipe

Request = TypeVar("Request", bound=Section)


def recipe(file: Path | None = None, **options: Any) -> Recipe:
    """The recipe of a command line with these options."""
    return build_recipe(as_flags(options), file)


def request(kind: type[Request], **options: Any) -> Request:
    """What a command gets that was given these options."""
    return assemble(kind, as_flags(options))
