"""Which package may import which, and how large it may be; lazy imports count like all others."""

from __future__ import annotations

import ast

import pytest

from compressor.budgets import BUDGETS, Budget
from compressor.evaluation import METRICS
from compressor.importance import METHODS
from compressor.learned_masks import LEARNED
from compressor.model.architecture import ENCODER_HEADS
from compressor.model.architectures import ARCHITECTURES
from compressor.options.declare import extra_of
from compressor.recovery import RECOVERIES
from compressor.report import FORMATS
from compressor.runtime.engines import ENGINES
from compressor.tasks import TASKS
from tests.structure import (
    LIMITS,
    MOST_ROOMS,
    Package,
    assigns_many,
    code_lines,
    is_table,
    room_of,
    unformatted,
)

# From the bottom up. A room imports from itself and from the lines above its own. Classes of all
# rooms have options, so what declares one stands below them, and the requests that are composed of
# these classes above.
ORDER = (
    "errors example", "progress options.declare options.bounds options.table", "parallel",
    "storage", "steps.results", "model", "steps", "tasks", "evaluation", "importance", "training",
    "budgets", "recovery", "learned_masks", "export", "throughput", "report", "options selection",
    "pipeline", "study", "commands",
)  # fmt: skip
RANK = {place: rank for rank, places in enumerate(ORDER) for place in places.split()}
# Outside this order: the room, what it imports, and which rooms import it.
APART = {
    "runtime": (
        {"errors", "storage"},
        {"tasks", "evaluation", "recovery", "export", "throughput", "commands"},
    )
}


def chosen_by(budget: type[Budget]) -> list[str]:
    """The options that choose a budget; it has no other name."""
    return [name for name, info in budget.model_fields.items() if extra_of(info)["selects"]]


# The names in each table, and the rooms that know its members. The runtime reads the name of a task
# from a file, and imports nothing of the rest.
TABLES = {
    "tasks": (TASKS, "tasks", "runtime"),
    "architectures": (ARCHITECTURES, "model"),
    "heads": (ENCODER_HEADS, "model"),
    "engines": (ENGINES, "runtime"),
    "metrics": (METRICS, "evaluation"),
    "methods": (METHODS, "importance"),
    "learned masks": (LEARNED, "learned_masks"),
    "recoveries": (RECOVERIES, "recovery"),
    "budgets": ([name for budget in BUDGETS for name in chosen_by(budget)], "budgets"),
    "report formats": (FORMATS, "report"),
}


@pytest.fixture(scope="module")
def package() -> Package:
    return Package()


def rank_of(module: str) -> int:
    """The line of `ORDER` with a module, or with its room."""
    return RANK.get(module.removeprefix("compressor."), RANK[room_of(module)])


def is_allowed(importer: str, imported: str) -> bool:
    """Whether a module may import another one."""
    room, other = room_of(importer), room_of(imported)
    if room in APART:
        return other == room or other in APART[room][0]
    if other in APART:
        return room in APART[other][1]
    same_place = room == other and rank_of(imported) == rank_of(importer)
    return same_place or rank_of(imported) < rank_of(importer)


def test_every_room_has_its_place_in_the_order(package):
    rooms = {room_of(module) for module in package.modules}
    places = {place.partition(".")[0] for place in RANK} | APART.keys()
    assert rooms - {"", "__main__"} == places


def test_no_import_points_upwards(package):
    """The front door, `compressor/__init__.py` and `__main__.py`, may import everything."""
    upwards = {
        f"{module} -> {imported}"
        for module, found in package.imports.items()
        for imported in found
        if room_of(module) not in ("", "__main__")
        and room_of(imported) != ""
        and not is_allowed(module, imported)
    }
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


@pytest.mark.parametrize("table", TABLES)
def test_no_other_room_compares_names_of_a_table(package, table):
    """What has to be known about a member stands with it, so nobody asks which one something is."""
    names, rooms = set(TABLES[table][0]), TABLES[table][1:]
    assert {
        f"{module}:{place.lineno} {ast.unparse(place)}"
        for module, place, compared in package.compared_texts
        if room_of(module) not in rooms and names & compared
    } == set()


def test_functions_have_at_most_60_lines_beside_their_docstrings(package):
    assert {
        f"{module}.{node.name}: {lines}"
        for module, nodes in package.nodes.items()
        for node in nodes
        if isinstance(node, ast.FunctionDef) and (lines := code_lines(node)) > 60
    } == set()


def test_a_room_imports_few_others(package):
    assert {
        room: len(imported)
        for room, imported in package.rooms.items()
        if len(imported) > MOST_ROOMS
    } == {}


def test_the_package_stays_simple(package):
    counts = package.counts()
    assert {name: counts[name] for name, most in LIMITS.items() if counts[name] > most} == {}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("names = ('a', 'b')", True),
        ("self.size: dict = {'a': 1}", True),
        ("table('x', [1, 2])", True),
        ("run(values={1, 2})", True),
        ("run(first, second=2)", False),
        ("rows = [x for x in values]", False),
        ("rows = [*values]", False),
        ("if yes:\n    return Row(a, b)", False),
    ],
)
def test_only_literals_count_as_tables(statement, expected, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(f"{statement}  # fmt: skip\nother = [1]\n", "utf-8")
    (found,) = unformatted(path, list(ast.walk(ast.parse(path.read_text("utf-8")))))
    assert is_table(found) == expected


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("a, b, c = 1, 2, 3", True),
        ("a, (b, c), d = 1, two, 3", True),
        ("a, b = 1, 2", False),
        ("a, b, c = three()", False),
        ("a = 1, 2, 3", False),
    ],
)
def test_three_values_at_once_are_too_many(statement, expected):
    assert assigns_many(ast.parse(statement).body[0]) == expected
