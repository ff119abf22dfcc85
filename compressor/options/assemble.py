"""From flags and a recipe file to a checked request: one flat model of a command's options.

Flags win over the file, the file over the defaults. An option that has no effect on what is chosen
is an error. What a flag chooses leaves out the file's options for other choices: a written recipe
has all that the run before had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from compressor.errors import UsageError, did_you_mean
from compressor.options.declare import Declared, Options, as_flag, declare, is_given, shown
from compressor.options.parts import Part, Values, holds

COMMAND_LINE = "the command line"


class Request(Options):
    """Base of what a command asks for: values, each made from some of the command's options.

    A field is an option itself, a class with options, or what a `Part` in its annotation chooses.

    Args:
        options: all options with an effect, by name, as a recipe file has them.
    """

    model_config = ConfigDict(defer_build=True)

    options: Mapping[str, Any] = Field(default_factory=dict)

    @classmethod
    def defaults(cls, values: Values) -> dict[str, Any]:
        """Defaults that depend on other options."""
        return {}


Asked = TypeVar("Asked", bound=Request)


@cache
def parts_of(request: type[Request]) -> Mapping[str, Part | Declared]:
    """How each field of a request is made."""
    parts: dict[str, Part | Declared] = {}
    for field, info in request.model_fields.items():
        declared = [part for part in info.metadata if isinstance(part, Part)]
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Options) and not declared:
            declared = [Part([((), kind)])]
        if field != "options":
            parts[field] = declared[0] if declared else declare(request, field)
    return parts


@cache
def options_of_command(request: type[Request]) -> Mapping[str, Declared]:
    """All options of a request by name; one that several classes have goes with any of them."""
    options: dict[str, Declared] = {}
    for part in parts_of(request).values():
        declared = part.declared() if isinstance(part, Part) else [part]
        every = Counter(x.name for x in declared)
        for new in declared:
            if isinstance(part, Part) and part.noun and every[new.name] == len(part.members):
                new = replace(new, only_with=())  # whichever is chosen has it
            if new.name in options:
                known = options[new.name].only_with
                both = (*known, *new.only_with) if known and new.only_with else ()
                new = replace(options[new.name], only_with=tuple(dict.fromkeys(both)))
            options[new.name] = new
    return options


@cache
def flat_model(request: type[Request]) -> type[BaseModel]:
    """The model that checks all options of a request, each a field."""
    fields: dict[str, Any] = {}
    for name, declared in options_of_command(request).items():
        info = declared.info
        kind: Any = info.annotation
        if info.metadata:
            kind = Annotated[(kind, *info.metadata)]
        default = None if info.is_required() else info.default
        fields[name] = (kind, ...) if declared.required else (kind | None, default)
    config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    return create_model(request.__name__ + "Options", __config__=config, **fields)


def assemble(
    request: type[Asked],
    typed: Values,
    file: Values | None = None,
    source: str = COMMAND_LINE,
) -> Asked:
    """Options over a recipe file over the defaults, as a checked request.

    Args:
        typed: option -> value; None or an empty list for those that were left out.
        file: the contents of a recipe file.
        source: how messages name the file.

    Raises:
        UsageError: an unknown option, a wrong value, or one without effect.
    """
    options = options_of_command(request)
    flags, written = _stated(typed), _stated(file or {})
    values = {**written, **flags}
    selecting = {name for name, declared in options.items() if declared.selects}
    if selecting & flags.keys():
        values = {n: x for n, x in values.items() if n in flags or n not in selecting}
    useless_in_file = _useless(options, written)
    for name in _useless(options, values):
        if name not in flags and name not in useless_in_file:
            del values[name]
    values = {**request.defaults(values), **values}

    def origin(name: str) -> str:
        return COMMAND_LINE if name in flags else source

    _require_no_truth(options, values)
    try:
        checked = dict(flat_model(request).model_validate(values))
    except ValidationError as error:
        raise _first_problem(options, error, origin) from error
    for name in _useless(options, values):
        raise UsageError(
            f"{_prefix(origin(name))}{as_flag(name)} {shown(checked[name])} is for "
            f"{_choices(options[name].only_with)}; choose that, or leave it out",
            id="option-without-use",
        )
    fields = {
        field: part.value(checked) if isinstance(part, Part) else checked[part.name]
        for field, part in parts_of(request).items()
    }
    used = {
        name: value
        for name, value in checked.items()
        if holds(options[name].only_with, checked) and (is_given(value) or name not in selecting)
    }
    return request(**fields, options=used)


def _stated(values: Values) -> dict[str, Any]:
    """The values that are not empty, with paths as text."""
    stated = {name: value for name, value in values.items() if value not in (None, [], ())}
    return {name: str(x) if isinstance(x, Path) else x for name, x in stated.items()}


def _useless(options: Mapping[str, Declared], values: Values) -> list[str]:
    """Options that have no effect beside the others."""
    usual = {n: x.info.default for n, x in options.items() if not x.info.is_required()}
    known = {**usual, **values}
    return [n for n in values if n in options and not holds(options[n].only_with, known)]


def _choices(conditions: tuple[str, ...]) -> str:
    """`--method taylor or relevance, or --recover distill`."""
    parts = [condition.partition("=") for condition in conditions]
    grouped = groupby(parts, key=lambda part: part[0])
    texts = [(name, " or ".join(value for *_, value in values)) for name, values in grouped]
    return ", or ".join(f"{as_flag(name)} {values}".rstrip() for name, values in texts)


def _require_no_truth(options: Mapping[str, Declared], values: Values) -> None:
    """`yes` in a file is not 1, which pydantic would take it for."""
    for name, value in values.items():
        if name not in options or options[name].kind is bool:
            continue
        if any(isinstance(x, bool) for x in (value if isinstance(value, list) else [value])):
            raise UsageError(
                f"{as_flag(name)} is {str(value).lower()}, which is neither a number nor a text; "
                "give one",
                id="option-not-a-number",
            )


def _first_problem(
    options: Mapping[str, Declared], error: ValidationError, origin: Callable[[str], str]
) -> UsageError:
    """One problem, as a sentence; an unknown name explains best why another is missing."""
    first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    name = str(first["loc"][0])
    flag, source, value = as_flag(name), origin(name), first["input"]
    if name not in options:
        advice = did_you_mean(name, options) or "; `--help` lists them"
        return UsageError(f"{source} has {name!r}, which is no option{advice}", id="option-unknown")
    if first["type"] == "missing":
        return UsageError(f"{source} does not give {flag}; add it", id="option-missing")
    problems = [x for x in error.errors() if x["loc"][0] == name]
    problem = " or ".join(dict.fromkeys(x["msg"].removeprefix("Value error, ") for x in problems))
    if all(x["type"] == "literal_error" for x in problems):
        choices = [str(choice) for choice in _literals(options[name].info.annotation)]
        problem = f"choose from {', '.join(choices)}{did_you_mean(str(value), choices)}"
    return UsageError(f"{_prefix(source)}{flag} {shown(value)}: {problem}", id="option-invalid")


def _prefix(source: str) -> str:
    return "" if source == COMMAND_LINE else f"{source}: "


def _literals(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _literals(part)]
