"""Which package may import which, and how large it may be; lazy imports count like all others."""

from __future__ import annotations

import ast

import pytest

from tests.structure import LIMITS, Package, room_of

# From the bottom up. A room imports from itself and from the lines above its own.
ORDER = (
    ("errors",),
    ("progress", "options"),
    ("parallel",),
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
        {"tasks", "export", "evaluation", "throughput", "pipeline", "commands"},
    ),
}


@pytest.fixture(scope="module")
def package() -> Package:
    return Package()


def is_allowed(importer: str, imported: str) -> bool:
    if importer == imported:
        return True
    if importer in APART:
        return imported in APART[importer][0]
    if imported in APART:
        return importer in APART[imported][1]
    return RANK[imported] < RANK[importer]


def test_every_room_has_its_place_in_the_order(package):
    rooms = {room_of(module) for module in package.modules}
    assert rooms - {"", "__main__"} == RANK.keys() | APART.keys()


def test_no_import_points_upwards(package):
    """The front door, `compressor/__init__.py` and `__main__.py`, may import everything."""
    upwards = {
        f"{module} -> {imported}"
        for module, found in package.imports.items()
        for imported in found
        if room_of(module) not in ("", "__main__") and room_of(imported) != ""
        and not is_allowed(room_of(module), room_of(imported))
    }  # fmt: skip
    assert not upwards


def test_no_module_imports_itself_through_others(package):
    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            waiting += (new := package.imports[waiting.pop()] - seen)
            seen |= new
        return seen

    assert not {module for module in package.modules if module in reachable(module)}


def test_only_tasks_compares_names_of_tasks(package):
    """The runtime reads the name from a file and imports nothing of the rest."""
    names = {"translation", "classification"}
    comparing = {
        module
        for module, nodes in package.nodes.items()
        if room_of(module) not in ("tasks", "runtime")
        for compare in nodes
        if isinstance(compare, ast.Compare)
        and names & {x.value for x in ast.walk(compare) if isinstance(x, ast.Constant)}
    }
    assert not comparing


def test_the_package_stays_simple(package):
    counts = package.counts()
    assert {name: counts[name] for name, most in LIMITS.items() if counts[name] > most} == {}
