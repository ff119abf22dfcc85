"""`compress cache-key`: a hash of all that a run depends on, for caches of CI."""

from __future__ import annotations

from typing import Any

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.request.recipe import Recipe, build_recipe


@o.command(Recipe)
def cache_key(flags: dict[str, Any], config: o.Config = None) -> int:
    """Print a hash of what a run with these options depends on; the rules are not part of it."""
    from compressor.request import cache_key as pipeline

    key = pipeline.cache_key(build_recipe(flags, config))
    console.result(key, {"key": key})
    return 0
