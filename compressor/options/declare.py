"""Options declared once: sections of typed fields, and the command line's flags made from them.

A request (a recipe, or what one command takes) is a pydantic model whose fields are sections. A
section is a plain one, one of several told apart by `name` (a union), a list of such, or one that
may be left out. Every field is declared with `option`: its type, default, bounds and help stand
there and nowhere else. `flags_of` lists the flags of a request; `assemble` puts given flags over a
recipe file over the defaults, and refuses flags that the chosen sections have no place for.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from compressor.errors import UsageError

Request = TypeVar("Request", bound="Section")


class Section(BaseModel):
    """Base of all sections: unknown options are errors, values never change.

    Args:
        panel: heading in `--help` of the options that the class itself declares.
    """

    panel: ClassVar[str] = ""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, values: Any) -> Any:
        """`yes` in a file is not 1, which pydantic would take it for."""
        for name, value in values.items() if isinstance(values, Mapping) else ():
            info = cls.model_fields.get(name)
            parts = value if isinstance(value, list) else [value]
            if info is None or not any(isinstance(part, bool) for part in parts):
                continue
            if _kind(info.annotation)[0] is not bool and not variants(info.annotation):
                raise UsageError(
                    f"{flag_name(name, info)} is {str(value).lower()}, which is neither a number "
                    "nor a text; give one",
                    id="option-not-a-number",
                )
        return values

    @model_validator(mode="after")
    def _needs_are_met(self) -> Section:
        for name, info in type(self).model_fields.items():
            needed = extra_of(info).get("needs")
            if needed and getattr(self, name) != info.default and not is_set(self, needed):
                other = flag_name(needed, type(self).model_fields[needed])
                raise UsageError(
                    f"{flag_name(name, info)} {shown(getattr(self, name))} needs {other}; give "
                    "that too, or leave it out",
                    id="option-needs-another",
                )
        return self


def option(
    default: Any = ...,
    *,
    help: str,
    flag: str | None = None,
    short: str | None = None,
    needs: str | None = None,
    selects: bool = False,
    panel: str | None = None,
    first: bool = False,
    **bounds: Any,
) -> Any:
    """A field of a section, with all that its flag and its help need.

    Args:
        default: left out for options that must be given.
        flag: its name on the command line, where that is not the field's own.
        short: a second name of one letter.
        needs: another field of the section, without which this one means nothing.
        selects: giving this flag chooses the variant of a union that has it.
        panel: heading in `--help`, where that is not its section's.
        first: it stands at the top of its panel, as those with `short` or `selects` do.
        bounds: as for `pydantic.Field` (`ge`, `gt`, `lt`, …).
    """
    extra: dict[str, Any] = {
        "flag": flag, "short": short, "needs": needs, "selects": selects, "panel": panel,
        "first": first or selects or short is not None,
    }  # fmt: skip
    return Field(default, description=help, json_schema_extra=extra, **bounds)


def split_commas(value: Any) -> list[Any]:
    """A list of numbers in the form of its option, `1,4,16`, as it may also stand in a file."""
    values = value if isinstance(value, list) else [value]
    return [part for x in values for part in (x.split(",") if isinstance(x, str) else [x])]


@dataclass(frozen=True)
class Place:
    """Where in a request the value of a flag goes.

    Args:
        section: field of the request that holds the section; empty for the request itself.
        variant: class that declares the option.
        name: of the option in that class.
    """

    section: str
    variant: type[Section]
    name: str

    @property
    def info(self) -> FieldInfo:
        return self.variant.model_fields[self.name]


@dataclass
class Flag:
    """One flag of a command line, and the places in a request that its value can go to."""

    name: str
    help: str
    kind: type
    is_list: bool
    short: str | None = None
    panel: str = ""
    first: bool = False
    places: list[Place] = field(default_factory=list)

    @property
    def parameter(self) -> str:
        """Its name as a Python parameter."""
        return self.name.removeprefix("--").replace("-", "_")


def flag_name(name: str, info: FieldInfo) -> str:
    """`--gate-epochs` of a field."""
    return str(extra_of(info).get("flag") or f"--{name.replace('_', '-')}")


def shown(value: Any) -> str:
    """A value as it would be written on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def variants(annotation: Any) -> list[type[Section]]:
    """The section classes in an annotation: one, those of a union, or those of a list's items."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [found for part in get_args(annotation) for found in variants(part)]


def flags_of(request: type[Section]) -> dict[str, Flag]:
    """All flags of a request, by name, in the order of its sections."""
    flags: dict[str, Flag] = {}
    for name, info in request.model_fields.items():
        members = variants(info.annotation)
        if not members:
            _add(flags, Place("", request, name))
            continue
        if extra_of(info).get("flag"):  # chooses the variant, or switches the section off
            _add(flags, Place(name, request, name))
        for member in members:
            for own in member.model_fields:
                if own != "name":
                    _add(flags, Place(name, member, own))
    return flags


def _add(flags: dict[str, Flag], place: Place) -> None:
    info = place.info
    name = flag_name(place.name, info)
    extra = extra_of(info)
    kind, is_list = _kind(info.annotation)
    if members := variants(info.annotation):
        switch = "name" not in members[0].model_fields and is_optional(info.annotation)
        kind, is_list = (bool, False) if switch else (str, False)
    if name not in flags:
        panel = extra.get("panel") or (members[0].panel if members else _declaring(place).panel)
        short, first = extra.get("short"), bool(extra.get("first"))
        flags[name] = Flag(name, _help(info), kind, is_list, short, panel, first)
    flags[name].places.append(place)


def _declaring(place: Place) -> type[Section]:
    """The class that an option is written in, which others inherit it from."""
    classes = (c for c in place.variant.__mro__ if issubclass(c, Section))
    return next(c for c in classes if place.name in inspect.get_annotations(c))


def _help(info: FieldInfo) -> str:
    """The option's help, with its default where that says something."""
    text = str(info.description)
    default = info.default
    if info.is_required() or default in (None, False, [], "") or isinstance(default, BaseModel):
        return text
    return text if "default" in text.lower() else f"{text} Default: {shown(default)}."


def _kind(annotation: Any) -> tuple[type, bool]:
    """The type that the command line parses, and whether the flag can be repeated."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(args[0])
    if origin is Literal:
        return str, False
    if origin is list:
        # Lists of numbers are written 1,4,16; lists of words repeat the flag.
        return (str, False) if args[0] is not str else (str, True)
    if origin in (Union, UnionType):
        kinds = {_kind(part) for part in args if part is not NoneType}
        return kinds.pop() if len(kinds) == 1 else (str, False)
    return (annotation, False) if annotation in (int, float, bool) else (str, False)


def is_optional(annotation: Any) -> bool:
    return NoneType in get_args(annotation)


def is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list


def extra_of(info: FieldInfo) -> dict[str, Any]:
    return dict(info.json_schema_extra) if isinstance(info.json_schema_extra, dict) else {}


def is_set(section: Any, name: str) -> bool:
    value = section.get(name) if isinstance(section, Mapping) else getattr(section, name)
    return value not in (None, [], "none")


def tag_of(member: type[Section]) -> str:
    return str(member.model_fields["name"].default)
