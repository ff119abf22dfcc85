"""What is wrong with a request, as one sentence in the names of its flags and sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from compressor.errors import UsageError, did_you_mean
from compressor.options.declare import (
    Flag,
    Section,
    extra_of,
    flag_name,
    flags_of,
    shown,
    tag_of,
    variants,
)

# How messages name flags as the source of values.
COMMAND_LINE = "the command line"


def without_use(request: type[Section], flag: Flag, value: Any, missing: str) -> str:
    """Why a flag that no chosen section has is refused, and what it is for.

    Args:
        missing: flag of another option without which this one means nothing; empty for none.
    """
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
    """The first problem of a request, as one sentence.

    Args:
        source: where its values come from, for example `recipe r.yaml`.
    """
    # An unknown name explains best why another one is missing.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    loc = [part for part in first["loc"] if isinstance(part, str)]
    info, member = _declared(request, loc)
    if first["type"] == "extra_forbidden":
        return UsageError(_unknown(request, loc, source, member), id="option-unknown")
    if first["type"] == "union_tag_invalid":
        return UsageError(_unknown_name(request, loc[0], first, source), id="name-unknown")
    path = ".".join(_without_tags(request, loc)) or "the recipe"
    flag = "" if info is None else flag_name(loc[-1], info)
    if first["type"] == "missing":
        members = [] if info is None else variants(info.annotation)
        wanted = " or ".join(selecting_flags(members)) or flag or path
        return UsageError(f"{source} does not give {path}; add {wanted}", id="option-missing")
    named = f"{flag} ({path})" if flag and source != COMMAND_LINE else flag or path
    value = first.get("input")
    text = f"{source}: {named}" + ("" if isinstance(value, Mapping) else f" {shown(value)}")
    if first["type"] == "literal_error" and info is not None:
        choices = [str(choice) for choice in _literals(info.annotation)]
        problem = f"choose from {', '.join(choices)}{did_you_mean(str(value), choices)}"
    else:
        problem = str(first["msg"]).removeprefix("Value error, ")
    return UsageError(f"{text}: {problem}", id="option-invalid")


def _without_tags(request: type[Section], loc: list[str]) -> list[str]:
    """A location without the names of the union members that pydantic puts into it."""
    tags = {
        tag_of(member)
        for info in request.model_fields.values()
        for member in variants(info.annotation)
        if "name" in member.model_fields
    }
    return [part for number, part in enumerate(loc) if number == 0 or part not in tags]


def _unknown_name(request: type[Section], section: str, found: Any, source: str) -> str:
    value = found.get("input")
    name = str(value.get("name")) if isinstance(value, Mapping) else str(value)
    known = [tag_of(member) for member in variants(request.model_fields[section].annotation)]
    return (
        f"{source}: there is no {section} {name!r}; choose from {', '.join(known)}"
        f"{did_you_mean(name, known)}"
    )


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
        return f"{source} has no section {name!r}; sections are {', '.join(known)}{hint}"
    known = [own for own in member.model_fields if own != "name"]
    section = next(part for part in loc)
    others = [
        tag_of(other)
        for other in variants(request.model_fields[section].annotation)
        if "name" in other.model_fields and name in other.model_fields
    ]
    hint = f"; {' and '.join(others)} have it" if others else did_you_mean(name, known)
    named = f" {tag_of(member)}" if "name" in member.model_fields else ""
    options = f"; its options are {', '.join(known)}" if known else ""
    return f"{source}: {section}{named} has no option {name!r}{options}{hint}"
