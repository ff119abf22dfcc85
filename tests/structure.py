"""What the package consists of, counted from its sources.

    python -m tests.structure

prints the numbers, and their limits.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parents[1]
# Classes that describe what a run may keep, wherever they are defined.
BUDGETS = {"Counts", "SteppedCounts", "Macs", "Speedup", "MaxDrop", "Penalty"}
# Nothing may be larger.
LIMITS = {
    "files over 400 lines": 0,
    "`fmt: skip` outside of literal tables": 0,
    "assignments of three or more values at once": 0,
    "rooms at the top": 23,
    "loose modules at the top": 4,
    "`generates` read outside tasks/": 0,
    "isinstance on budgets": 0,
    "class names that stand more than once": 0,
}
MOST_ROOMS = 12  # that a room imports from


def python_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.py"))


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def code_lines(function: ast.FunctionDef) -> int:
    """Lines of a function without its docstring."""
    first = function.body[0] if ast.get_docstring(function) is not None else None
    docstring = 0 if first is None else (first.end_lineno or 0) - first.lineno + 1
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


class Package:
    """The modules of this checkout's package, read and parsed once."""

    def __init__(self) -> None:
        self.modules = {
            ".".join(path.relative_to(HERE).with_suffix("").parts).removesuffix(".__init__"): path
            for path in python_files(HERE / "compressor")
        }
        trees = {name: ast.parse(path.read_text("utf-8")) for name, path in self.modules.items()}
        # Module -> all nodes of its tree.
        self.nodes = {name: list(ast.walk(tree)) for name, tree in trees.items()}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Module -> the modules of the package that it imports, wherever in the file."""
        return {module: set(self._imports(module)) - {module} for module in self.modules}

    def _imports(self, module: str) -> Iterator[str]:
        """A string that names a module counts too, unless it names one of the same room: that is
        how a table lists the members of its room. Nor does a task's `exporter` count: a task says
        everything about itself, also what writes its graphs, which stands in a room above it."""
        is_package = self.modules[module].name == "__init__.py"
        parents = module.split(".") if is_package else module.split(".")[:-1]
        exporters = {
            id(node.value)
            for node in self.nodes[module]
            if room_of(module) == "tasks"
            and isinstance(node, ast.Assign)
            and [ast.unparse(target) for target in node.targets] == ["exporter"]
        }
        for node in self.nodes[module]:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
                start = ".".join(filter(None, (base, node.module)))
                names = [f"{start}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Constant) and id(node) not in exporters:
                name = str(node.value)
                if re.fullmatch(r"compressor(\.\w+)+(:\w+)?\.?", name):
                    names = [name.replace(":", ".").rstrip(".")]
                    names = [name for name in names if room_of(name) != room_of(module)]
            for name in names:
                if name.split(".")[0] == "compressor":
                    while name not in self.modules:  # it may go on with a name in the module
                        name = name.rpartition(".")[0]
                    yield name

    @cached_property
    def rooms(self) -> dict[str, set[str]]:
        """Room -> the other rooms that it imports from."""
        found: dict[str, set[str]] = {}
        for module, imported in self.imports.items():
            found.setdefault(room_of(module), set()).update(map(room_of, imported))
        return {room: others - {room, ""} for room, others in found.items()}

    @cached_property
    def compared_texts(self) -> list[tuple[str, ast.expr, set[str]]]:
        """Module, expression and texts of every comparison; constants count as their texts.

        But for the engine that every artifact is for, which is a role. Keys in brackets are not
        compared.
        """
        nodes = [(module, node) for module, nodes in self.nodes.items() for node in nodes]
        constants = {
            target.id: node.value.value
            for _, node in nodes
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and node.col_offset == 0
            for target in node.targets
            if isinstance(target, ast.Name) and target.id != "ONNXRUNTIME"
        }
        compared: list[tuple[str, ast.expr, set[str]]] = []
        for module, node in nodes:
            if not isinstance(node, ast.Compare | ast.MatchValue):
                continue
            expression = node.value if isinstance(node, ast.MatchValue) else node
            keys = {
                id(part)
                for x in ast.walk(expression)
                if isinstance(x, ast.Subscript)
                for part in ast.walk(x.slice)
            }
            parts = [x for x in ast.walk(expression) if id(x) not in keys]
            texts = {x.value for x in parts if isinstance(x, ast.Constant)}
            texts |= {constants.get(x.id) for x in parts if isinstance(x, ast.Name)}
            compared.append((module, expression, {x for x in texts if isinstance(x, str)}))
        return compared

    def counts(self) -> dict[str, int]:
        """What is counted."""
        nodes = [(room_of(module), x) for module, nodes in self.nodes.items() for x in nodes]
        classes = [(room, node.name) for room, node in nodes if isinstance(node, ast.ClassDef)]
        budgets = BUDGETS | {name for room, name in classes if room == "budgets"}
        rooms = {room_of(module) for module in self.modules} - {"", "__main__"}
        files, tests = list(self.modules.values()), python_files(HERE / "tests")
        loose = [x for x in rooms if HERE / "compressor" / f"{x}.py" in files]
        return {
            "files in compressor/": len(files),
            "files in tests/": len(tests),
            "files over 400 lines": sum(lines_of(path) > 400 for path in files),
            "`fmt: skip` outside of literal tables": sum(
                not is_table(node)
                for module, path in self.modules.items()
                for node in unformatted(path, self.nodes[module])
            ),
            "assignments of three or more values at once": sum(
                assigns_many(node) for _, node in nodes
            ),
            "rooms at the top": len(rooms),
            "loose modules at the top": len(loose),
            "`generates` read outside tasks/": sum(
                isinstance(x, ast.Attribute) and x.attr == "generates"
                for room, x in nodes
                if room != "tasks"
            ),
            "isinstance on budgets": sum(asks_for(x, budgets) for _, x in nodes),
            "class names that stand more than once": sum(
                count > 1 for count in Counter(name for _, name in classes).values()
            ),
        }


def asks_for(node: ast.AST, classes: set[str]) -> bool:
    """Whether it is `isinstance(…, CLASS)`, of plain names and last parts of dotted ones."""
    if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"):
        return False
    names = {getattr(x, "id", getattr(x, "attr", "")) for x in ast.walk(node.args[1])}
    return bool(names & classes)


def unformatted(path: Path, nodes: list[ast.AST]) -> Iterator[ast.AST | None]:
    """What each `fmt: skip` of a file exempts from formatting: the statement that ends there."""
    ending: dict[int, ast.AST] = {}
    for node in nodes:  # from the outside in, so that an inner statement replaces an outer one
        if isinstance(node, ast.stmt):
            ending[node.end_lineno or 0] = node
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and "fmt: skip" in token.string:
                yield ending.get(token.start[0])


def is_table(statement: ast.AST | None) -> bool:
    """Whether it is an assignment of a literal list, tuple, dictionary or set, or a call with one.

    A literal has as many values as its source has entries: nothing in it is computed by a
    comprehension or unpacked.
    """
    value = getattr(statement, "value", None)
    calls = [value] if isinstance(value, ast.Call) else []
    values = [value, *(x for call in calls for x in call.args)]
    values += [keyword.value for call in calls for keyword in call.keywords]
    return any(
        isinstance(x, ast.List | ast.Tuple | ast.Dict | ast.Set)
        and not any(isinstance(part, ast.Starred | ast.comprehension) for part in ast.walk(x))
        for x in values
    )


def assigns_many(node: ast.AST) -> bool:
    """Whether it is `a, b, c = x, y, z`; taking the result of one call apart is not."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.targets[0], ast.Tuple)
        and len(node.value.elts) > 2
    )


def room_of(module: str) -> str:
    """`model` for `compressor.model.surgery`; empty for `compressor` itself."""
    return ".".join(module.split(".")[1:2])


if __name__ == "__main__":
    package = Package()
    for what, count in package.counts().items():
        print(f"{what:48}{count:>7}", f"at most {LIMITS[what]}" if what in LIMITS else "")
    for room, imported in sorted(package.rooms.items()):
        name = f"rooms imported by {room or 'the front door'}"
        print(f"{name:48}{len(imported):>7}", f"at most {MOST_ROOMS}")
