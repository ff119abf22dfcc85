"""Every error of the package with its id, read from the sources without running them.

An error is made where one of the classes of `compressor.errors` is called, or a function or a class
that takes an `id` and makes the error of it (`malformed`, `_refuse`, `Table`, …). What an id is
follows from literals, also through names and conditions. `…` stands for values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from compressor import errors

VALUE = "…"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Text = dict[str, str]  # name -> what stands for it in a message
STATUSES = {
    name: kind.exit_code
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.CompressError)
}


@dataclass(frozen=True, order=True)
class Error:
    """One place where an error is made."""

    status: int
    id: str
    message: str


@dataclass
class _Scope:
    """Names of a function, or of a module, with all that is assigned to them."""

    node: Function | ast.Module
    outer: _Scope | None = None
    values: dict[str, list[ast.expr]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in _own(self.node):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._bind(node.target, node.value)
            elif isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple | ast.List):
                for value in node.iter.elts:
                    self._bind(node.target, value)
        for name, default in self.parameters.items():
            if default is not None:
                self.values.setdefault(name, []).append(default)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, of_part in zip(target.elts, value.elts, strict=True):
                self._bind(part, of_part)
        elif isinstance(target, ast.Name):
            self.values.setdefault(target.id, []).append(value)

    @cached_property
    def parameters(self) -> dict[str, ast.expr | None]:
        """Parameters in order, without `self`, each with its default."""
        if isinstance(self.node, ast.Module):
            return {}
        given = self.node.args
        first = [None] * (len(given.args) - len(given.defaults))
        named = dict(zip([x.arg for x in given.args], [*first, *given.defaults], strict=True))
        named |= dict(zip([x.arg for x in given.kwonlyargs], given.kw_defaults, strict=True))
        return {name: default for name, default in named.items() if name not in ("self", "cls")}

    def find(self, name: str) -> list[ast.expr]:
        if name in self.values or self.outer is None:
            return self.values.get(name, [])
        return [] if name in self.parameters else self.outer.find(name)


@dataclass(frozen=True)
class _Call:
    node: ast.Call
    scope: _Scope

    def arguments(self, parameters: Mapping[str, object]) -> dict[str, ast.expr]:
        named = dict(zip(parameters, self.node.args, strict=False))
        return named | {x.arg: x.value for x in self.node.keywords if x.arg is not None}


class Sources:
    """The sources of a package.

    Args:
        directory: of the package.
    """

    def __init__(self, directory: Path) -> None:
        self._calls: list[_Call] = []
        self._makers: dict[str, list[_Scope]] = {}  # functions that take an id, by their names
        self._constants: dict[str, list[ast.expr]] = {}  # of all modules
        self._calls_in: dict[int, list[_Call]] = {}
        for path in sorted(directory.rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            self._read(tree, _Scope(tree))

    def errors(self) -> set[Error]:
        """All errors that some line makes."""
        return {error for call in self._calls for error in self._made(call)}

    def _read(self, node: ast.AST, scope: _Scope, owner: str = "") -> None:
        if isinstance(scope.node, ast.Module) and scope.outer is None and node is scope.node:
            for name, values in scope.values.items():
                self._constants.setdefault(name, []).extend(values)
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, Function):
                inner = _Scope(child, scope)
                if "id" in inner.parameters:
                    name = owner if child.name == "__init__" else child.name
                    self._makers.setdefault(name, []).append(inner)
            elif isinstance(child, ast.Call):
                call = _Call(child, scope)
                self._calls.append(call)
                self._calls_in.setdefault(id(scope.node), []).append(call)
            self._read(child, inner, child.name if isinstance(child, ast.ClassDef) else owner)

    def _made(self, call: _Call) -> Iterator[Error]:
        """The errors of a call with an id that is known there."""
        name = _name(call.node.func)
        if name in STATUSES:
            given = call.arguments({"message": None})
            for id in self._ids(given.get("id"), call.scope):
                yield Error(STATUSES[name], id, self._text(given.get("message"), call.scope, {}))
            return
        for maker in self._makers.get(name, []):
            if name.startswith("_") and _root(maker) is not _root(call.scope):
                continue  # another module's
            given = call.arguments(maker.parameters)
            for id in self._ids(given.get("id", maker.parameters["id"]), call.scope):
                for status, message in self._outcomes(maker, given, call.scope):
                    yield Error(status, id, message)

    def _outcomes(
        self, maker: _Scope, given: Mapping[str, ast.expr], scope: _Scope, depth: int = 0
    ) -> Iterator[tuple[int, str]]:
        """Status and message of what a function makes of an id."""
        text = {name: self._text(value, scope, {}) for name, value in given.items()}
        if "status" in given:  # the command line's own
            for status in self._statuses(given["status"], scope):
                yield status, text["message"]
            return
        members = [maker, *self._methods_of(maker)]
        for member in members:
            for call in self._calls_in.get(id(member.node), []):
                name = _name(call.node.func)
                inner = call.arguments({"message": None})
                if name in given:  # a parameter is the class
                    name = _name(given[name])
                if name in STATUSES and _passes_id(inner.get("id")):
                    yield STATUSES[name], self._text(inner.get("message"), call.scope, text)
                for other in self._makers.get(name, []) if depth < 2 else []:
                    passed = call.arguments(other.parameters)
                    if _passes_id(passed.get("id")):
                        yield from self._outcomes(other, passed, call.scope, depth + 1)

    def _methods_of(self, maker: _Scope) -> list[_Scope]:
        """Where a class takes the id: its methods, which make the error."""
        if not isinstance(maker.node, Function) or maker.node.name != "__init__":
            return []
        return [
            call.scope
            for calls in self._calls_in.values()
            for call in calls[:1]
            if _root(call.scope) is _root(maker) and call.scope is not maker
        ]

    def _ids(self, node: ast.expr | None, scope: _Scope) -> set[str]:
        if isinstance(node, ast.Constant):
            return {str(node.value)}
        if isinstance(node, ast.IfExp):
            return self._ids(node.body, scope) | self._ids(node.orelse, scope)
        if isinstance(node, ast.JoinedStr):
            parts = (str(x.value) if isinstance(x, ast.Constant) else VALUE for x in node.values)
            return {"".join(parts)}
        if isinstance(node, ast.Name):
            found = scope.find(node.id)
            if not found and node.id.isupper():
                found = self._constants.get(node.id, [])
            return set().union(*(self._ids(value, scope) for value in found))
        return set()

    def _statuses(self, node: ast.expr, scope: _Scope) -> set[int]:
        found: set[object] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and _name(part.value) in STATUSES:
                found.add(STATUSES[_name(part.value)])
            elif isinstance(part, ast.Name):
                values = scope.find(part.id)
                found |= {x.value for x in values if isinstance(x, ast.Constant)}
        return {status for status in found if isinstance(status, int)}

    def _text(self, node: ast.expr | None, scope: _Scope, known: Text) -> str:
        """A message as it is written, with … for values."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part, scope, known) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._text(node.value, scope, known)
        if isinstance(node, ast.BinOp):  # of texts; else a number
            parts = (node.left, node.right)
            if any(isinstance(x, ast.Constant) and not isinstance(x.value, str) for x in parts):
                return VALUE
            return "".join(self._text(part, scope, known) for part in parts)
        if isinstance(node, ast.Attribute) and _name(node.value) == "self":
            return known.get(node.attr, VALUE)
        if isinstance(node, ast.Name):
            if node.id in known or node.id in scope.parameters:
                return known.get(node.id, VALUE)
            before = [x for x in scope.find(node.id) if x.lineno <= node.lineno]
            if len(before) == 1 or (before and node.id == "message"):
                value = before[-1]
                if isinstance(value, ast.Constant | ast.JoinedStr) and value is not node:
                    return self._text(value, scope, known)
        return VALUE


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function or a module, but not in the functions within."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function | ast.ClassDef):
            yield from _own(child)


def _name(node: ast.expr) -> str:
    """`function`, of `module.function` too."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _passes_id(node: ast.expr | None) -> bool:
    return (isinstance(node, ast.Name) and node.id == "id") or (
        isinstance(node, ast.Attribute) and node.attr == "id"
    )


def _root(scope: _Scope) -> _Scope:
    return scope if scope.outer is None else _root(scope.outer)
