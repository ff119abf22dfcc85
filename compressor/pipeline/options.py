"""Options declared once: sections of typed fields, and the command line's flags made from them.

A request (a recipe, or what one command takes) is a pydantic model whose fields are sections. A
section is a plain one, one of several told apart by `name` (a union), a list of such, or one that
may be left out. Every field is declared with `option`: its type, default, bounds and help stand
there and nowhere else. `flags_of` lists the flags of a request; `assemble` puts given flags over a
recipe file over the defaults, and refuses flags that the chosen sections have no place for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from compressor.errors import UsageError, did_you_mean

Request = TypeVar("Request", bound="Section")


class Section(BaseModel):
    """Base of all sections: unknown options are errors, values never change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), validate_default=True
    )

    @model_validator(mode="after")
    def _needs_are_met(self) -> Section:
        for name, info in type(self).model_fields.items():
            needed = _extra(info).get("needs")
            if needed and getattr(self, name) != info.default and not _is_set(self, needed):
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
    splits: Any = None,
    metavar: str | None = None,
    **bounds: Any,
) -> Any:
    """A field of a section, with all that its flag and its help need.

    Args:
        default: left out for options that must be given.
        flag: its name on the command line, where that is not the field's own.
        short: a second name of one letter.
        needs: another field of the section, without which this one means nothing.
        selects: giving this flag chooses the variant of a union that has it.
        splits: of a list whose flag two sections share: which values belong here.
        bounds: as for `pydantic.Field` (`ge`, `gt`, `lt`, …).
    """
    extra = {"flag": flag, "short": short, "needs": needs, "selects": selects, "metavar": metavar}
    return Field(default, description=help, json_schema_extra={**extra, "splits": splits}, **bounds)


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
    metavar: str | None = None
    places: list[Place] = field(default_factory=list)

    @property
    def parameter(self) -> str:
        """Its name as a Python parameter."""
        return self.name.removeprefix("--").replace("-", "_")


def flag_name(name: str, info: FieldInfo) -> str:
    """`--gate-epochs` of a field."""
    return str(_extra(info).get("flag") or f"--{name.replace('_', '-')}")


def shown(value: Any) -> str:
    """A value as it would be written on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
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
        if _extra(info).get("flag"):  # chooses the variant, or switches the section off
            _add(flags, Place(name, request, name))
        for member in members:
            for own in member.model_fields:
                if own != "name":
                    _add(flags, Place(name, member, own))
    return flags


def _add(flags: dict[str, Flag], place: Place) -> None:
    info = place.info
    name = flag_name(place.name, info)
    extra = _extra(info)
    kind, is_list = _kind(info.annotation)
    if variants(info.annotation):
        switch = "name" not in variants(info.annotation)[0].model_fields and _is_optional(
            info.annotation
        )
        kind, is_list = (bool, False) if switch else (str, False)
    if name not in flags:
        flags[name] = Flag(
            name, _help(info), kind, is_list, extra.get("short"), extra.get("metavar")
        )
    flags[name].places.append(place)


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


def _is_optional(annotation: Any) -> bool:
    return NoneType in get_args(annotation)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list


def _extra(info: FieldInfo) -> dict[str, Any]:
    return dict(info.json_schema_extra) if isinstance(info.json_schema_extra, dict) else {}


def _is_set(section: Any, name: str) -> bool:
    value = section.get(name) if isinstance(section, Mapping) else getattr(section, name)
    return value not in (None, [], "none")


def assemble(
    request: type[Request],
    given: Mapping[str, Any],
    file: Mapping[str, Any] | None = None,
    source: str = "the command line",
) -> Request:
    """Flags over a recipe file over the defaults, as a checked request.

    Args:
        given: flag name -> value; None or an empty list for flags that were not given.
        file: the contents of a recipe file.
        source: how messages name where values come from.

    Raises:
        UsageError: an unknown option, a wrong value, or a flag that nothing chosen has a use for.
    """
    flags = flags_of(request)
    typed = {name: value for name, value in given.items() if value not in (None, [], ())}
    values = {name: _copied(value) for name, value in (file or {}).items()}
    for name, info in request.model_fields.items():
        members = variants(info.annotation)
        if not members:
            continue
        if _is_list(info.annotation):
            _choose_items(values, name, info, members, typed)
        elif "name" in members[0].model_fields:
            _choose_variant(values, name, info, members, typed)
        elif _is_optional(info.annotation):
            _switch(values, name, info, typed)
    for name, value in typed.items():
        _place(request, values, flags[name], value)
    try:
        return request.model_validate(values)
    except ValidationError as error:
        raise _explained(request, error, source) from error


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(part) for key, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else value


def _switch(values: dict[str, Any], name: str, info: FieldInfo, typed: Mapping[str, Any]) -> None:
    """A section that may be left out: `--no-X` leaves it out, `--X` takes it back in."""
    wanted = typed.get(flag_name(name, info))
    if wanted is False:
        values[name] = None
    elif wanted is True and values.get(name, info.default) is None:
        values[name] = {}


def _choose_variant(
    values: dict[str, Any],
    name: str,
    info: FieldInfo,
    members: list[type[Section]],
    typed: Mapping[str, Any],
) -> None:
    """Which member of a union a request has: by its own flag, by a flag that selects it, or as
    the file says. Another one than the file's keeps those of the file's options that it has."""
    chosen: dict[str, list[str]] = {}  # variant -> flags that select it
    own = flag_name(name, info)
    if _extra(info).get("flag") and own in typed:
        chosen[str(typed[own])] = [own]
    for member in members:
        for field_name, declared in member.model_fields.items():
            flag = flag_name(field_name, declared)
            if _extra(declared).get("selects") and _own_values(declared, typed.get(flag)):
                chosen.setdefault(_tag(member), []).append(flag)
    if len(chosen) > 1:
        written = " and ".join(found[0] for found in chosen.values())
        raise UsageError(
            f"{written} exclude each other; a run has one {name}", id="options-exclude-each-other"
        )
    if not chosen:
        return
    (tag,) = chosen
    before = values.get(name)
    known = next((set(m.model_fields) for m in members if _tag(m) == tag), set())
    kept: dict[str, Any] = {}
    if isinstance(before, Mapping):
        selecting = {
            n for m in members for n, f in m.model_fields.items() if _extra(f).get("selects")
        }
        kept = {k: v for k, v in before.items() if k in known - selecting}
    values[name] = {**kept, "name": tag}


def _choose_items(
    values: dict[str, Any],
    name: str,
    info: FieldInfo,
    members: list[type[Section]],
    typed: Mapping[str, Any],
) -> None:
    """Which items a list of sections has: `a+b` on the command line, `none` for an empty list."""
    text = typed.get(flag_name(name, info))
    before = values.get(name)
    if text is None:
        if before is None and not isinstance(info.default, list):
            return
        return
    tags = [part.strip() for part in str(text).split("+")]
    known = [_tag(member) for member in members]
    for tag in tags:
        if tag not in (*known, "none"):
            raise UsageError(
                f"{flag_name(name, info)} {text}: there is no {tag!r}{did_you_mean(tag, known)}; "
                f"there are none, {', '.join(known)}, and combinations as in {'+'.join(known)}",
                id="name-unknown",
            )
    if len(set(tags)) < len(tags) or ("none" in tags and len(tags) > 1):
        raise UsageError(
            f"{flag_name(name, info)} {text}: name each method once, and none only alone",
            id="name-twice",
        )
    old = {item.get("name"): item for item in before or [] if isinstance(item, Mapping)}
    values[name] = [dict(old.get(tag, {"name": tag})) for tag in tags if tag != "none"]


def _tag(member: type[Section]) -> str:
    return str(member.model_fields["name"].default)


def _own_values(info: FieldInfo, value: Any) -> Any:
    """Those values of a repeated flag that belong to this place; all, where it is not shared."""
    splits = _extra(info).get("splits")
    if splits is None or not isinstance(value, list):
        return value
    return [part for part in value if splits(part)]


def _place(request: type[Section], values: dict[str, Any], flag: Flag, value: Any) -> None:
    """Put a flag's value into every chosen section that has it."""
    used = 0
    missing = ""
    for place in flag.places:
        if place.variant is request and place.section:
            return  # chose the variant already
        for section in _chosen(request, values, place):
            own = _own_values(place.info, value)
            if isinstance(own, list) and not own:
                continue
            needed = _extra(place.info).get("needs")
            if needed and not _is_set(section, needed):
                missing = flag_name(needed, place.variant.model_fields[needed])
                continue
            section[place.name] = own
            used += len(own) if isinstance(own, list) else 1
    if used == 0 or (flag.is_list and used < len(value)):
        raise UsageError(_useless(request, values, flag, value, missing), id="option-without-use")


def _chosen(
    request: type[Section], values: dict[str, Any], place: Place
) -> Iterator[dict[str, Any]]:
    """The sections of a request, as it stands, that have a place's option."""
    if not place.section:
        yield values
        return
    info = request.model_fields[place.section]
    members = variants(info.annotation)
    if _is_list(info.annotation):
        if place.section not in values:
            values[place.section] = [
                _dumped(item) for item in info.get_default(call_default_factory=True)
            ]
        yield from (
            item for item in values[place.section] if item.get("name") == _tag(place.variant)
        )
        return
    if place.section in values and values[place.section] is None:
        return
    if "name" in members[0].model_fields:
        if place.section not in values and info.is_required():
            return
        if place.section not in values:
            if info.default is None:
                return
            values[place.section] = {"name": _default_tag(info)}
        section = values[place.section]
        if isinstance(section, dict) and section.get("name") == _tag(place.variant):
            yield section
        return
    section = values.setdefault(place.section, {})
    if isinstance(section, dict):
        yield section


def _dumped(item: Any) -> dict[str, Any]:
    return dict(item) if isinstance(item, Mapping) else item.model_dump()


def _default_tag(info: FieldInfo) -> str:
    default = info.get_default(call_default_factory=True)
    return str(default["name"] if isinstance(default, Mapping) else default.name)


def _useless(
    request: type[Section], values: Mapping[str, Any], flag: Flag, value: Any, missing: str
) -> str:
    text = f"{flag.name} {shown(value)}"
    if missing:
        return f"{text} needs {missing}; give that too, or leave it out"
    owners: dict[str, list[str]] = {}
    for place in flag.places:
        if place.section and "name" in place.variant.model_fields:
            owners.setdefault(place.section, []).append(_tag(place.variant))
    parts = []
    for section, tags in owners.items():
        info = request.model_fields[section]
        own = flag_name(section, info) if _extra(info).get("flag") else section
        chosen = [member for member in variants(info.annotation) if _tag(member) in tags]
        selecting = _selecting_flags(chosen)
        parts.append(" or ".join(selecting) if selecting else f"{own} {' or '.join(tags)}")
    if not parts:
        section = next(place.section for place in flag.places)
        switch = flag_name(section, request.model_fields[section])
        return f"{text} is of no use without {switch}; leave one of them out"
    return f"{text} is for {', or '.join(parts)}; choose that, or leave it out"


def _selecting_flags(members: list[type[Section]]) -> list[str]:
    """Flags that choose one of some members of a union."""
    return [
        flag_name(name, declared)
        for member in members
        for name, declared in member.model_fields.items()
        if _extra(declared).get("selects")
    ]


def _explained(request: type[Section], error: ValidationError, source: str) -> UsageError:
    """The first problem of a request, as one sentence."""
    first = error.errors()[0]
    loc = [part for part in first["loc"] if isinstance(part, str)]
    kind, value = first["type"], first.get("input")
    tags = {_tag(m) for i in request.model_fields.values() for m in variants(i.annotation)
            if "name" in m.model_fields}  # fmt: skip
    path = [part for number, part in enumerate(loc) if number == 0 or part not in tags]
    where = ".".join(path) or "the recipe"
    info, member = _declared(request, loc)
    flag = flag_name(path[-1], info) if info is not None else ""
    if kind == "extra_forbidden":
        return UsageError(_unknown(request, loc, source, member), id="option-unknown")
    if kind == "missing":
        name = flag if info is not None else where
        if info is not None and variants(info.annotation):
            selecting = _selecting_flags(variants(info.annotation))
            name = " or ".join(selecting) or name
        return UsageError(f"{source} does not give {where}; add {name}", id="option-missing")
    if kind == "union_tag_invalid":
        known = [_tag(m) for m in variants(request.model_fields[loc[0]].annotation)]
        name = str(value.get("name")) if isinstance(value, Mapping) else str(value)
        return UsageError(
            f"{source}: there is no {loc[0]} {name!r}{did_you_mean(name, known)}; there are "
            f"{', '.join(known)}",
            id="name-unknown",
        )
    hint = ""
    if kind == "literal_error" and info is not None:
        choices = [str(choice) for choice in _literals(info.annotation)]
        hint = did_you_mean(str(value), choices)
    named = f"{flag} ({where})" if flag and source != "the command line" else flag or where
    problem = str(first["msg"]).removeprefix("Value error, ")
    text = f"{source}: {named} {shown(value) if not isinstance(value, Mapping) else ''}".rstrip()
    return UsageError(f"{text}: {problem}{hint}", id="option-invalid")


def _literals(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [found for part in get_args(annotation) for found in _literals(part)]


def _declared(
    request: type[Section], loc: list[str]
) -> tuple[FieldInfo | None, type[Section] | None]:
    """The field that a location means, and the class of the section that it is in."""
    if not loc or loc[0] not in request.model_fields:
        return None, request
    info = request.model_fields[loc[0]]
    members = variants(info.annotation)
    if not members or len(loc) == 1:
        return info, request
    tagged = [m for m in members if "name" in m.model_fields and _tag(m) == loc[1]]
    member = (tagged or members)[0]
    return member.model_fields.get(loc[-1]), member


def _unknown(
    request: type[Section], loc: list[str], source: str, member: type[Section] | None
) -> str:
    name = loc[-1]
    if member is None or member is request:
        moved = next(
            (
                f"{place.section}.{place.name}"
                for flag in flags_of(request).values()
                for place in flag.places
                if flag.parameter == name and place.section
            ),
            None,
        )
        known = list(request.model_fields)
        hint = f"; write it as {moved}" if moved else did_you_mean(name, known)
        return f"{source} has no section {name!r}{hint}; sections are {', '.join(known)}"
    known = [own for own in member.model_fields if own != "name"]
    section = next(part for part in loc)
    others = [
        _tag(other)
        for other in variants(request.model_fields[section].annotation)
        if "name" in other.model_fields and name in other.model_fields
    ]
    hint = f"; {' and '.join(others)} have it" if others else did_you_mean(name, known)
    tag = f" {_tag(member)}" if "name" in member.model_fields else ""
    options = f"; its options are {', '.join(known)}" if known else ""
    return f"{source}: {section}{tag} has no option {name!r}{hint}{options}"
