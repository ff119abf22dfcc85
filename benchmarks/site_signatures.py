"""An extension of Griffe: signatures show the values of defaults, not the names of constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe


class Values(griffe.Extension):
    """Replaces defaults that are names of strings and numbers by what these are."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through all functions of a package, once it is loaded."""
        for function in _functions(pkg):
            for parameter in function.parameters:
                if isinstance(parameter.default, griffe.ExprName):
                    parameter.default = _value(parameter.default, pkg) or parameter.default


def _functions(owner: Any) -> Iterator[griffe.Function]:
    for member in owner.members.values():
        if member.is_alias:
            continue
        if member.is_function:
            yield member
        elif member.is_module or member.is_class:
            yield from _functions(member)


def _value(name: griffe.ExprName, package: griffe.Module) -> str | None:
    """What a constant of the package is assigned, where that is a literal; else None."""
    path = name.canonical_path
    while path.startswith(f"{package.path}."):
        found = package.modules_collection[path]
        if found.is_alias:
            path = found.target_path
            continue
        value = str(found.value) if found.is_attribute else ""
        return value if value[:1] in "'\"0123456789" and value else None
    return None
