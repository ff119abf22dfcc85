"""Recipes written as the command line has them: `recipe(model="m", keep=["0.5"], steps=3)`."""

from __future__ import annotations

from compressor.request.recipe import make_recipe, make_request

recipe, request = make_recipe, make_request
