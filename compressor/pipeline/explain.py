"""What is wrong with a request, as one sentence in the names of its flags and sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from compressor.errors import UsageError, did_you_mean
from compressor.pipeline.options import (
    Flag,
    Section,
    extra_of,
    flag_name,
    flags_of,
    shown,
    tag_of,
    variants,
)


def without_use(
    request: type[Section], values: Mapping[str, Any], flag: Flag, value: Any, missing: str
) -> str:
    text = f"{flag.name} {shown(value)}"
    if missing:
        return f"{text} needs {missing}; give that too, or leave it out"
    owners: dict[str, list[str]] = {}
    for place in flag.places:
        if place.section and "name" in place.variant.model_fields:
            owners.setdefault(place.section, []).append(tag_of(place.variant))
    parts = []
    for section, tags in owners.items():
        info = request.model_fields[section]
        own = flag_name(section, info) if extra_of(info).get("flag") else section
        chosen = [member for member in variants(info.annotation) if tag_of(member) in tags]
        selecting = selecting_flags(chosen)
        parts.append(" or ".join(selecting) if selecting else f"{own} {' or '.join(tags)}")
    if not parts:
        section = next(place.section for place in flag.places)
        switch = flag_name(section, request.model_fields[section])
        return f"{text} is of no use without {switch}; leave one of them out"
    return f"{text} is for {', or '.join(parts)}; choose that, or leave it out"


def selecting_flags(members: list[type[Section]]) -> list[str]:
    """Flags that choose one of some members of a union."""
    return [
        flag_name(name, declared)
        for member in members
        for name, declared in member.model_fields.items()
        if extra_of(declared).get("selects")
    ]


def explained(request: type[Section], error: ValidationError, source: str) -> UsageError:
    """The first problem of a request, as one sentence."""
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    loc = [part for part in first["loc"] if isinstance(part, str)]
    kind, value = first["type"], first.get("input")
    tags = {tag_of(m) for i in request.model_fields.values() for m in variants(i.annotation)
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
            selecting = selecting_flags(variants(info.annotation))
            name = " or ".join(selecting) or name
        return UsageError(f"{source} does not give {where}; add {name}", id="option-missing")
    if kind == "union_tag_invalid":
        known = [tag_of(m) for m in variants(request.model_fields[loc[0]].annotation)]
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
    tagged = [m for m in members if "name" in m.model_fields and tag_of(m) == loc[1]]
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
        tag_of(other)
        for other in variants(request.model_fields[section].annotation)
        if "name" in other.model_fields and name in other.model_fields
    ]
    hint = f"; {' and '.join(others)} have it" if others else did_you_mean(name, known)
    tag = f" {tag_of(member)}" if "name" in member.model_fields else ""
    options = f"; its options are {', '.join(known)}" if known else ""
    return f"{source}: {section}{tag} has no option {name!r}{hint}{options}"
