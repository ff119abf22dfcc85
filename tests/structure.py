"""What the package consists of, counted from its sources.

    python -m tests.structure [DIRECTORY ...]

prints a table with a column per checkout; this one if none is named.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parents[1]
# Classes that describe what a run may keep, wherever they are defined.
BUDGETS = {"Counts", "SteppedCounts", "Macs", "Speedup", "MaxDrop", "Penalty"}
# Nothing may be larger.
LIMITS = {
    "lines in compressor/": 50_300,
    "lines in tests/": 33_000,
    "rooms at the top": 24,
    "loose modules at the top": 4,
    "`generates` read outside tasks/": 0,
    "isinstance on budgets": 0,
    "class names that stand more than once": 0,
}


def python_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.py"))


def lines_of(paths: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


class Package:
    """The modules of a checkout's package, read and parsed once.

    Args:
        checkout: directory that holds `compressor` and `tests`.
    """

    def __init__(self, checkout: Path = HERE) -> None:
        self.checkout, self.root = checkout, checkout / "compressor"
        self.modules = {
            ".".join(path.relative_to(checkout).with_suffix("").parts).removesuffix(
                ".__init__"
            ): path
            for path in python_files(self.root)
        }
        self.texts = {name: path.read_text("utf-8") for name, path in self.modules.items()}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Module -> the modules of the package that it imports, wherever in the file."""
        return {module: set(self._imports(module)) - {module} for module in self.modules}

    @cached_property
    def rooms(self) -> dict[str, list[str]]:
        """Room -> its modules; what stands at the top is no room."""
        rooms: dict[str, list[str]] = {}
        for module in self.modules:
            rooms.setdefault(room_of(module), []).append(module)
        return {name: found for name, found in rooms.items() if name not in ("", "__main__")}

    def _imports(self, module: str) -> Iterator[str]:
        """A string that names a module counts too, unless it names one of the same room: that is
        how a table lists the members of its room. Nor does a task's `exporter` count: a task says
        everything about itself, also what writes its graphs, which stands in a room above it."""
        is_package = self.modules[module].name == "__init__.py"
        parents = module.split(".") if is_package else module.split(".")[:-1]
        exporters = {
            id(node.value)
            for node in self.nodes[module]
            if room_of(module) == "tasks" and isinstance(node, ast.Assign)
            and [ast.unparse(target) for target in node.targets] == ["exporter"]
        }  # fmt: skip
        for node in self.nodes[module]:
            if id(node) in exporters:
                continue
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
            yield from (self._module_of(x) for x in names if x.split(".")[0] == "compressor")

    def _module_of(self, name: str) -> str:
        """The module of a dotted name, which may go on with a name in that module."""
        while name not in self.modules:
            name = name.rpartition(".")[0]
        return name

    @cached_property
    def nodes(self) -> dict[str, list[ast.AST]]:
        """Module -> all nodes of its tree."""
        return {module: list(ast.walk(tree)) for module, tree in self.trees.items()}

    def compared_texts(self) -> Iterator[tuple[str, ast.expr, set[str]]]:
        """Module, place and texts of every comparison; constants of modules count as their texts.

        But for the engine that every artifact is for, which is a role. Keys in brackets are not
        compared.
        """
        constants = {
            target.id: node.value.value
            for tree in self.trees.values() for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        for role in ("ONNXRUNTIME", "DEFAULT_ENGINE"):
            constants.pop(role, None)
        for module, nodes in self.nodes.items():
            for node in nodes:
                if isinstance(node, ast.Compare):
                    place: ast.expr = node
                elif isinstance(node, ast.MatchValue):
                    place = node.value
                else:
                    continue
                keys = {
                    id(part) for x in ast.walk(place) if isinstance(x, ast.Subscript)
                    for part in ast.walk(x.slice)
                }  # fmt: skip
                parts = [x for x in ast.walk(place) if id(x) not in keys]
                texts = {x.value for x in parts if isinstance(x, ast.Constant)}
                texts |= {constants.get(x.id) for x in parts if isinstance(x, ast.Name)}
                yield module, place, {text for text in texts if isinstance(text, str)}

    def count(self, counts: Callable[[ast.AST], bool], but_in: str = "") -> int:
        """Nodes for which a function is true."""
        return sum(
            counts(node)
            for module, nodes in self.nodes.items()
            for node in nodes
            if room_of(module) != but_in
        )

    def counts(self) -> dict[str, int]:
        """What the table shows."""
        tests, classes = python_files(self.checkout / "tests"), self._class_names()
        loose = [name for name in self.rooms if f"compressor/{name}.py" in self._files()]
        found: dict[str, int] = {
            "lines in compressor/": lines_of(list(self.modules.values())),
            "lines in tests/": lines_of(tests),
            "files in compressor/": len(self.modules),
            "files in tests/": len(tests),
            "rooms at the top": len(self.rooms),
            "loose modules at the top": len(loose),
            "`generates` read outside tasks/": self.count(is_generates, but_in="tasks"),
            "isinstance on budgets": self.count(self._asks_for_budget),
            "class names that stand more than once": sum(n > 1 for n in classes.values()),
        }
        return found

    def _files(self) -> set[str]:
        return {path.relative_to(self.checkout).as_posix() for path in self.modules.values()}

    def _class_names(self) -> Counter[str]:
        return Counter(
            node.name
            for nodes in self.nodes.values()
            for node in nodes
            if isinstance(node, ast.ClassDef)
        )

    @cached_property
    def _budgets(self) -> set[str]:
        trees = [self.trees[module] for module in self.rooms.get("budgets", [])]
        nodes = (node for tree in trees for node in ast.walk(tree))
        return BUDGETS | {node.name for node in nodes if isinstance(node, ast.ClassDef)}

    def _asks_for_budget(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "isinstance"
            and bool(names_in(node.args[1]) & self._budgets)
        )


def room_of(module: str) -> str:
    """`model` for `compressor.model.surgery`; empty for `compressor` itself."""
    return ".".join(module.split(".")[1:2])


def names_in(node: ast.AST | None) -> set[str]:
    """Plain names and last parts of dotted ones."""
    nodes = ast.walk(node) if node else ()
    return {x.id if isinstance(x, ast.Name) else x.attr for x in nodes
            if isinstance(x, ast.Name | ast.Attribute)}  # fmt: skip


def is_generates(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "generates"


def table(checkouts: list[Path]) -> str:
    found = [Package(checkout).counts() for checkout in checkouts]
    rows = list(dict.fromkeys(name for counts in found for name in counts))
    width = max(map(len, rows))
    head = " " * width + "".join(f"  {path.resolve().name:>12}" for path in checkouts)
    lines = [
        f"{row:{width}}" + "".join(f"  {counts.get(row, '–'):>12}" for counts in found)
        + (f"  at most {LIMITS[row]}" if row in LIMITS else "")
        for row in rows
    ]  # fmt: skip
    return "\n".join([head, *lines])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Counts of how the package is built.")
    parser.add_argument("directory", nargs="*", type=Path, default=[HERE])
    print(table(parser.parse_args().directory))
