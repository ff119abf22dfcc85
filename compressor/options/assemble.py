"""From flags and a recipe file to a checked request.

Flags win over the file, the file over the defaults. A flag goes to every chosen section that has
it; one that no chosen section has is refused, with what it is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from compressor.errors import UsageError, did_you_mean
from compressor.options.declare import (
    Flag,
    Place,
    Section,
    extra_of,
    flag_name,
    flags_of,
    is_list,
    is_optional,
    is_set,
    tag_of,
    variants,
)
from compressor.options.explain import COMMAND_LINE, explained, without_use

Request = TypeVar("Request", bound=Section)


def assemble(
    request: type[Request],
    given: Mapping[str, Any],
    file: Mapping[str, Any] | None = None,
    source: str = COMMAND_LINE,
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
    for name in given:
        if name not in flags:
            raise UsageError(f"there is no {name}{did_you_mean(name, flags)}", id="option-unknown")
    typed = {
        name: [value] if flags[name].is_list and not isinstance(value, list | tuple) else value
        for name, value in given.items()
        if value not in (None, [], ())
    }
    values = {name: _copied(value) for name, value in (file or {}).items()}
    for name, info in request.model_fields.items():
        members = variants(info.annotation)
        if not members:
            continue
        if is_list(info.annotation):
            _choose_items(values, name, info, members, typed)
        elif "name" in members[0].model_fields:
            _choose_variant(values, name, info, members, typed)
        elif is_optional(info.annotation):
            _switch(values, name, info, typed)
        elif info.is_required():
            values.setdefault(name, {})  # so that errors name the option that is missing in it
    # What others need comes first.
    for name in sorted(typed, key=lambda name: _needs_another(flags[name])):
        _place(request, values, flags[name], typed[name])
    try:
        return request.model_validate(values)
    except ValidationError as error:
        raise explained(request, error, source) from error


def _needs_another(flag: Flag) -> bool:
    return any(extra_of(place.info).get("needs") for place in flag.places)


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
    """Choose the member of a union: by its own flag, by a flag that selects it, or as in the file.

    Another one than the file's keeps those of the file's options that it has.
    """
    chosen: dict[str, list[str]] = {}  # variant -> flags that select it
    own = flag_name(name, info)
    if extra_of(info).get("flag") and own in typed:
        chosen[str(typed[own])] = [own]
    for member in members:
        for field_name, declared in member.model_fields.items():
            flag = flag_name(field_name, declared)
            if extra_of(declared).get("selects") and flag in typed:
                chosen.setdefault(tag_of(member), []).append(flag)
    if len(chosen) > 1:
        written = " and ".join(found[0] for found in chosen.values())
        raise UsageError(
            f"{written} exclude each other; a run has one {name}", id="options-exclude-each-other"
        )
    if not chosen:
        return
    (tag,) = chosen
    before = values.get(name)
    known = next((set(m.model_fields) for m in members if tag_of(m) == tag), set())
    kept: dict[str, Any] = {}
    if isinstance(before, Mapping):
        selecting = {
            n for m in members for n, f in m.model_fields.items() if extra_of(f).get("selects")
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
    if text is None:
        return
    tags = [part.strip() for part in str(text).split("+")]
    known = [tag_of(member) for member in members]
    for tag in tags:
        if tag not in (*known, "none"):
            raise UsageError(
                f"{flag_name(name, info)} {text}: there is no {tag!r}; choose from none, "
                f"{', '.join(known)}, or several as in {'+'.join(known)}{did_you_mean(tag, known)}",
                id="name-unknown",
            )
    if len(set(tags)) < len(tags) or ("none" in tags and len(tags) > 1):
        raise UsageError(
            f"{flag_name(name, info)} {text}: name each method once, and none only alone",
            id="name-twice",
        )
    old = {str(item.get("name")): item for item in _items(values.get(name))}
    values[name] = [dict(old.get(tag, {"name": tag})) for tag in tags if tag != "none"]


def _items(value: Any) -> list[dict[str, Any]]:
    """The sections in a list; what else a file may hold in its place is refused later."""
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []


def _place(request: type[Section], values: dict[str, Any], flag: Flag, value: Any) -> None:
    """Put a flag's value into every chosen section that has it."""
    used = False
    missing = ""
    for place in flag.places:
        if place.variant is request and place.section:
            return  # chose the variant already
        for section in _chosen(request, values, place):
            needed = extra_of(place.info).get("needs")
            if needed and not is_set(section, needed):
                missing = flag_name(needed, place.variant.model_fields[needed])
                continue
            section[place.name] = value
            used = True
    if not used:
        raise UsageError(without_use(request, flag, value, missing), id="option-without-use")


def _chosen(
    request: type[Section], values: dict[str, Any], place: Place
) -> Iterator[dict[str, Any]]:
    """The sections of a request, as it stands, that have a place's option."""
    if not place.section:
        yield values
        return
    info = request.model_fields[place.section]
    members = variants(info.annotation)
    if is_list(info.annotation):
        if place.section not in values:
            default = info.get_default(call_default_factory=True)
            values[place.section] = [_dumped(item) for item in default]
        items, tag = _items(values[place.section]), tag_of(place.variant)
        yield from (item for item in items if item.get("name") == tag)
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
        if isinstance(section, dict) and section.get("name") == tag_of(place.variant):
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
