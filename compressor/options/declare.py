"""Options, declared once as typed fields of the classes that use them.

An option has one name: `--gate-epochs` on the command line is `gate_epochs` in a recipe file and
from Python. `compressor.options.assemble` joins the fields of a command's classes to one model.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


class Options(BaseModel):
    """Base of all classes that have options; values never change."""

    panel: ClassVar[str] = ""  # heading in `--help` of the options that the class itself declares

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def option(
    default: Any = ...,
    *,
    help: str,
    name: str | None = None,
    short: str | None = None,
    only_with: str | None = None,
    selects: bool = False,
    panel: str | None = None,
    first: bool = False,
    files: bool = False,
    **bounds: Any,
) -> Any:
    """A field with all that its flag and its help need.

    Args:
        default: its value where it is not given; `...` for an option that must be.
        help: what `--help` and docs/options.md say of it.
        name: of the option, where it differs from the field's.
        short: a second flag of one letter.
        only_with: what must be given for this one to have an effect (`calibration`), or have a
            value (`drop_layers=search`).
        selects: giving it chooses its class among several (`assemble.Chosen`).
        panel: heading in `--help`, where it differs from its class's.
        first: it stands at the top of its panel, as those with `short` or `selects` do.
        files: its value is a path, or two with a comma between them.
        bounds: as for `pydantic.Field` (`ge`, `gt`, `lt`, …).
    """
    extra: dict[str, Any] = {
        "name": name,
        "short": short,
        "only_with": only_with,
        "selects": selects,
        "panel": panel,
        "first": first or selects or short is not None,
        "files": files,
    }
    return Field(default, description=help, json_schema_extra=extra, **bounds)


@dataclass(frozen=True)
class Declared:
    """One option of a command."""

    name: str
    field: str  # of the class that has it
    annotation: Any  # what checks its value
    info: FieldInfo
    only_with: tuple[str, ...]  # conditions of which one must hold (`assemble.condition_met`)
    panel: str  # heading in `--help`

    @property
    def selects(self) -> bool:
        """Whether giving it chooses its class among several."""
        return bool(extra_of(self.info)["selects"])

    def portable(self, value: Any) -> Any:
        """A value that means the same from every directory: files that are there by whole paths."""
        return whole_paths(value) if self.files and isinstance(value, str) else value

    @property
    def files(self) -> bool:
        """Whether its value names files."""
        return bool(extra_of(self.info)["files"])

    @property
    def flag(self) -> str:
        """Its name on the command line: `--gate-epochs`."""
        return as_flag(self.name)

    @property
    def help(self) -> str:
        """Its help, with its default where that says something."""
        text, default = str(self.info.description), self.info.default
        if self.info.is_required() and not (self.only_with or self.selects):
            return f"{text} [required]"
        says_nothing = default is None or default is False or default in ([], "")
        if self.info.is_required() or says_nothing or "default" in text.lower():
            return text
        return f"{text} Default: {shown(default)}."

    @property
    def kind(self) -> Any:
        """The type that the command line parses; a flag for a list of words can be repeated."""
        return _kind(self.annotation)


def declared_by(kind: type[Options], only_with: tuple[str, ...] = ()) -> list[Declared]:
    """All options of a class, which is chosen under conditions, or always."""
    return [declare(kind, field, only_with) for field in kind.model_fields]


def declare(kind: type[Options], field: str, only_with: tuple[str, ...] = ()) -> Declared:
    """The option of a field of a class; see `declared_by`."""
    info = kind.model_fields[field]
    extra = extra_of(info)
    if extra["only_with"]:
        only_with = (extra["only_with"],)
    # A field may be inherited: its panel is that of the class it is written in.
    classes = (c for c in kind.__mro__ if issubclass(c, Options))
    panel = next(c.panel for c in classes if field in inspect.get_annotations(c))
    annotation: Any = info.annotation
    if info.metadata:
        annotation = Annotated[(annotation, *info.metadata)]
    name, conditions = extra["name"] or field, () if extra["selects"] else only_with
    return Declared(name, field, annotation, info, conditions, extra["panel"] or panel)


def whole_paths(text: str) -> str:
    """A path, or two with a comma between them, as absolute ones; other texts as they are."""
    pairs = [(text[:at], text[at + 1 :]) for at, x in enumerate(text) if x == ","]
    for paths in [(text,), *pairs]:
        if all(map(os.path.exists, paths)):
            return ",".join(map(os.path.abspath, paths))
    return text


def as_flag(name: str) -> str:
    """The flag of an option: `--gate-epochs` for `gate_epochs`."""
    return f"--{name.replace('_', '-')}"


def shown(value: Any) -> str:
    """A value as it would be written on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def split_commas(value: Any) -> list[Any]:
    """A list in the form of its option, `1,4,16`, as it may also stand in a file."""
    values = value if isinstance(value, list) else [value]
    return [part for x in values for part in (x.split(",") if isinstance(x, str) else [x])]


def extra_of(info: FieldInfo) -> dict[str, Any]:
    """What `option` noted beside pydantic's own facts."""
    assert isinstance(info.json_schema_extra, dict)
    return info.json_schema_extra


def _kind(annotation: Any) -> Any:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(args[0])
    if origin is list:
        # Lists of numbers are written 1,4,16; lists of words repeat the flag.
        return list[str] if _kind(args[0]) is str else str
    if origin in (Union, UnionType):
        kinds = {_kind(part) for part in args if part is not NoneType}
        return kinds.pop() if len(kinds) == 1 else str
    return annotation if origin is not Literal and annotation in (int, float, bool, Path) else str
