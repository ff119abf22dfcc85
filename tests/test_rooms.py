"""Which package may import which, read from the sources; lazy imports count like all others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "compressor"

# From the bottom up. A room imports from itself and from the lines above its own.
ORDER = (
    ("errors",),
    ("progress", "options"),
    ("storage",),
    ("results",),
    ("model",),
    ("tasks",),
    ("importance",),
    ("training",),
    ("budgets",),
    ("learned_masks", "recovery"),
    ("export",),
    ("evaluation", "throughput"),
    ("report",),
    ("request",),
    ("pipeline",),
    ("study",),
    ("commands",),
)
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
# Outside this order: the room, what it imports, and which rooms import it.
APART = {
    "runtime": (
        {"errors", "storage"},
        {"export", "evaluation", "throughput", "pipeline", "commands"},
    ),
    "example": ({"errors"}, {"pipeline", "study", "commands"}),
}

MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def room_of(module: str) -> str:
    """`model` for `compressor.model.surgery`; empty for `compressor` itself."""
    return ".".join(module.split(".")[1:2])


def module_of(name: str) -> str:
    """The module of a dotted name, which may go on with a name in that module."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def imports(module: str) -> Iterator[str]:
    """The modules of the package that a module imports, wherever in the file.

    A string that names a module counts too, unless it names one of the same room: that is how a
    table lists the members of its room.
    """
    is_package = MODULES[module].name == "__init__.py"
    parents = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            start = ".".join(filter(None, (base, node.module)))
            names = [f"{start}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and re.fullmatch(
            r"compressor(\.\w+)+(:\w+)?\.?", str(node.value)
        ):
            names = [str(node.value).replace(":", ".").rstrip(".")]
            names = [name for name in names if room_of(name) != room_of(module)]
        else:
            continue
        yield from (module_of(name) for name in names if name.split(".")[0] == "compressor")


IMPORTS = {module: set(imports(module)) - {module} for module in MODULES}


def is_allowed(importer: str, imported: str) -> bool:
    if importer == imported:
        return True
    if importer in APART:
        return imported in APART[importer][0]
    if imported in APART:
        return importer in APART[imported][1]
    return RANK[imported] < RANK[importer]


def test_every_room_has_its_place_in_the_order():
    rooms = {room_of(module) for module in MODULES}
    assert rooms - {"", "__main__"} == RANK.keys() | APART.keys()


def test_no_import_points_upwards():
    """The front door, `compressor/__init__.py` and `__main__.py`, may import everything."""
    upwards = {
        f"{module} -> {imported}"
        for module, found in IMPORTS.items()
        for imported in found
        if room_of(module) not in ("", "__main__") and room_of(imported) != ""
        and not is_allowed(room_of(module), room_of(imported))
    }  # fmt: skip
    assert not upwards


def test_no_module_imports_itself_through_others():
    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            waiting += (new := IMPORTS[waiting.pop()] - seen)
            seen |= new
        return seen

    assert not {module for module in MODULES if module in reachable(module)}


def test_only_tasks_compares_names_of_tasks():
    """The runtime reads the name from a file and imports nothing of the rest."""
    names = {"translation", "classification"}
    comparing = {
        module
        for module, tree in TREES.items()
        if room_of(module) not in ("tasks", "runtime")
        for compare in ast.walk(tree)
        if isinstance(compare, ast.Compare)
        and names & {x.value for x in ast.walk(compare) if isinstance(x, ast.Constant)}
    }
    assert not comparing
