"""From flags and a recipe file to a checked request: one flat model of a command's options.

Flags win over the file, the file over the defaults. An option that has no effect on what is chosen
is an error; but what a flag chooses leaves out the file's options for other choices, because a
written recipe has all that the run before had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from compressor.errors import UsageError, did_you_mean
from compressor.options.declare import Declared, Options, as_flag, declare, declared_by, shown
from compressor.storage.wrong_values import wanted

COMMAND_LINE = "the command line"
Values = Mapping[str, Any]  # options by name
Conditions = tuple[str, ...]  # of which one must hold; none: always


class Request(Options):
    """Base of what a command asks for: values, each made from some of the command's options.

    A field is an option itself, a class with options, or has a `Chosen` in its annotation.
    """

    model_config = ConfigDict(defer_build=True)

    # All options with an effect, by name, as a recipe file has them; files by whole paths.
    options: Mapping[str, Any] = Field(default_factory=dict)

    @classmethod
    def defaults(cls, values: Values) -> dict[str, Any]:
        """Defaults that depend on other options."""
        return {}

    @classmethod
    def needed(cls, values: Values) -> list[str]:
        """Further flags that a message about missing options names."""
        return []

    def check(self) -> None:
        """Raise `UsageError` for options that do not go together; `assemble` calls it."""


Asked = TypeVar("Asked", bound=Request)


@dataclass(frozen=True)
class Chosen:
    """The classes that the value of a field is chosen from.

    Args:
        members: a table, by whose names the field's option chooses; one class, which the field's
            option leaves out; or several, of which the one is taken that an option `selects`.
        many: the value is a list: the option has names in an order, `a+b`, or is `none`.
    """

    members: Mapping[str, type[Options]] | type[Options] | Sequence[type[Options]]
    many: bool = False


@dataclass(frozen=True)
class Part:
    """How a field is made: by an option, of the classes whose conditions hold."""

    option: Declared | None = None  # that chooses, or, without members, that the field is
    members: Sequence[tuple[Conditions, type[Options]]] = ()
    many: bool = False
    noun: str = ""  # what exactly one of the members is, which their own options choose

    def value(self, values: Values) -> Any:
        """The field's value, made from checked options."""
        if self.option is not None and not self.members:
            return values[self.option.name]
        chosen = [kind for conditions, kind in self.members if condition_met(conditions, values)]
        if self.noun and len(chosen) > 1:
            names = [name for conditions, _ in self.members for name in conditions]
            flags = " and ".join(as_flag(name) for name in names if _is_given(values[name]))
            raise UsageError(
                f"{flags} exclude each other; give one {self.noun}", id="options-exclude-each-other"
            )
        made: list[Any] = []
        for kind in chosen:
            used = [x for x in declared_by(kind) if condition_met(x.only_with, values)]
            made.append(kind(**{x.field: values[x.name] for x in used}))
        if self.many and self.option is not None:
            order = values[self.option.name].split("+")
            return sorted(made, key=lambda part: order.index(part.name))
        return made[0] if made else None


def _part(request: type[Request], field: str) -> Part:
    info = request.model_fields[field]
    kind, chosen = info.annotation, next((x for x in info.metadata if isinstance(x, Chosen)), None)
    if chosen is None:
        if isinstance(kind, type) and issubclass(kind, Options):
            return Part(members=[((), kind)])
        return Part(declare(request, field))
    members: list[tuple[Conditions, type[Options]]] = []
    if isinstance(chosen.members, Sequence):
        for kind in chosen.members:
            members.append((tuple(x.name for x in declared_by(kind) if x.selects), kind))
        return Part(members=members, noun=field)
    option = declare(request, field)
    annotation: Any = bool
    if isinstance(chosen.members, Mapping):
        members = [((f"{option.name}={x}",), kind) for x, kind in chosen.members.items()]
        annotation = Literal[tuple(chosen.members)]
        if chosen.many:
            annotation = Annotated[str, AfterValidator(_check_names(chosen.members))]
    else:
        members = [((option.name,), chosen.members)]
    panel = members[0][1].panel
    return Part(replace(option, annotation=annotation, panel=panel), members, chosen.many)


def _check_names(members: Mapping[str, Any]) -> Callable[[str], str]:
    def check(text: str) -> str:
        names = [name.strip() for name in text.split("+")]
        for name in names:
            if name not in ("none", *members):
                advice = did_you_mean(name, ["none", *members])
                joined = ", or several joined by +" if len(members) > 1 else ""
                raise ValueError(f"choose from none, {', '.join(members)}{joined}{advice}")
        if len(set(names)) < len(names) or ("none" in names and len(names) > 1):
            raise ValueError("name each method once, and none only alone")
        return "+".join(names)

    return check


@cache
def parts_of(request: type[Request]) -> Mapping[str, Part]:
    """How each field of a request is made."""
    return {x: _part(request, x) for x in request.model_fields if x != "options"}


@cache
def options_of_command(request: type[Request]) -> Mapping[str, Declared]:
    """All options of a request by name; one that several classes have goes with any of them."""
    options: dict[str, Declared] = {}
    for part in parts_of(request).values():
        declared = [] if part.option is None else [part.option]
        declared += [x for conditions, kind in part.members for x in declared_by(kind, conditions)]
        every = Counter(x.name for x in declared)
        for new in declared:
            if part.noun and every[new.name] == len(part.members):
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
    for name, option in options_of_command(request).items():
        is_required = option.info.is_required()
        if is_required and not option.only_with and not option.selects:
            fields[name] = (option.annotation, ...)
        else:
            fields[name] = (option.annotation | None, None if is_required else option.info.default)
    config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    return create_model(request.__name__ + "Options", __config__=config, **fields)


def assemble(
    request: type[Asked], typed: Values, file: Values | None = None, source: str = COMMAND_LINE
) -> Asked:
    """Make a checked request of options: flags win over a recipe file, the file over defaults.

    Args:
        request: the class of the request.
        typed: options that were typed, by name; None and empty lists count as not given.
        file: options of a recipe file, by name.
        source: how messages name the file.

    Returns:
        The request; its `options` are all that have an effect, by name.

    Raises:
        UsageError: an unknown option, a wrong value, one without effect, or options that do not go
            together.
    """
    options = options_of_command(request)
    flags, written = _stated(typed), _stated(file or {})
    values = {**written, **flags}
    selecting = {name for name, declared in options.items() if declared.selects}
    if selecting & flags.keys():
        values = {n: x for n, x in values.items() if n in flags or n not in selecting}
    without_effect_in_file = _without_effect(options, written)
    for name in _without_effect(options, values):
        if name not in flags and name not in without_effect_in_file:
            del values[name]
    values = {**request.defaults(values), **values}

    def origin(name: str) -> str:
        return COMMAND_LINE if name in flags else source

    for name, value in values.items():
        # `yes` in a file is not 1, which pydantic would take it for.
        flag = any(isinstance(x, bool) for x in (value if isinstance(value, list) else [value]))
        if flag and name in options and options[name].kind is not bool:
            raise UsageError(
                f"{_where(origin(name), name)} {shown(value)}: give a number or a text",
                id="option-invalid",
            )
    if values.keys() <= options.keys():  # else an unknown name explains best why one is missing
        require_given(missing_options(request, values), source)
    try:
        checked = dict(flat_model(request).model_validate(values))
    except ValidationError as error:
        raise _first_problem(options, error, origin) from error
    for name in _without_effect(options, values):
        raise UsageError(
            f"{_where(origin(name), name)} {shown(checked[name])} is for "
            f"{_choices(options[name].only_with)}; choose that, or leave it out",
            id="option-without-use",
        )
    fields = {field: part.value(checked) for field, part in parts_of(request).items()}
    used = {
        name: options[name].portable(value)
        for name, value in checked.items()
        if condition_met(options[name].only_with, checked)
        and (_is_given(value) or name not in selecting)
    }
    made = request(**fields, options=used)
    made.check()
    return made


def missing_options(
    request: type[Request], values: Values, others: Sequence[str] = ()
) -> list[str]:
    """The options that a request needs and is not given, as flags.

    For a choice, such as the budget, all flags that make it.

    Args:
        request: its class.
        values: options by name; None and empty lists count as not given.
        others: flags that are missing too, and no options of the request.
    """
    stated = _stated(values)
    required = [x for x in options_of_command(request).values() if x.info.is_required()]
    always = [x for x in required if not x.only_with and not x.selects]
    missing = [x.flag for x in always if x.name not in stated]
    for part in parts_of(request).values():
        names = dict.fromkeys(name for conditions, _ in part.members for name in conditions)
        if part.noun and not any(_is_given(stated.get(name)) for name in names):
            missing.append(f"a {part.noun} ({' or '.join(map(as_flag, names))})")
    missing += others
    return missing and missing + request.needed(stated)


def require_given(missing: Sequence[str], source: str = COMMAND_LINE) -> None:
    """Raise `UsageError` if something is missing, with all of it.

    Args:
        missing: flags, or other words for what is needed.
        source: where it is missing.
    """
    if missing:
        *first, last = missing
        names = f"{', '.join(first)} and {last}" if first else last
        raise UsageError(
            f"{source} does not give {names}; add {'them' if first else 'it'}", id="option-missing"
        )


def condition_met(conditions: Conditions, values: Values) -> bool:
    """Whether one of some conditions is met.

    Args:
        conditions: names of options that must be given (`calibration`), or have a value
            (`method=taylor`); none: always met.
        values: options by name.
    """
    for condition in conditions:
        name, _, wanted = condition.partition("=")
        value = values.get(name)
        if wanted in str(value).split("+") if wanted else _is_given(value):
            return True
    return not conditions


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value not in ([], "none")


def _stated(values: Values) -> dict[str, Any]:
    """The values that are not empty, with paths as text."""
    stated = {name: value for name, value in values.items() if value not in (None, [], ())}
    return {name: str(x) if isinstance(x, Path) else x for name, x in stated.items()}


def _without_effect(options: Mapping[str, Declared], values: Values) -> list[str]:
    """Options that have no effect beside the others."""
    usual = {n: x.info.default for n, x in options.items() if not x.info.is_required()}
    known = {**usual, **values}
    return [n for n in values if n in options and not condition_met(options[n].only_with, known)]


def _choices(conditions: Conditions) -> str:
    """`--method taylor or relevance, or --recover distill`."""
    parts = [condition.partition("=") for condition in conditions]
    grouped = groupby(parts, key=lambda part: part[0])
    texts = [(name, " or ".join(value for *_, value in values)) for name, values in grouped]
    return ", or ".join(f"{as_flag(name)} {values}".rstrip() for name, values in texts)


def _first_problem(
    options: Mapping[str, Declared], error: ValidationError, origin: Callable[[str], str]
) -> UsageError:
    """One problem, as a sentence; an unknown name explains best why another is missing."""
    first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    name = str(first["loc"][0])
    source, value = origin(name), first["input"]
    if name not in options:
        advice = did_you_mean(name, options) or "; `--help` lists them"
        return UsageError(f"{source} has {name!r}, which is no option{advice}", id="option-unknown")
    problems = [x for x in error.errors() if x["loc"][0] == name]
    problem = " or ".join(dict.fromkeys(map(wanted, problems))).replace(" or must be ", " or ")
    if all(x["type"] == "literal_error" for x in problems):
        choices = [str(choice) for choice in _literals(options[name].annotation)]
        problem = f"choose from {', '.join(choices)}{did_you_mean(str(value), choices)}"
    return UsageError(f"{_where(source, name)} {shown(value)}: {problem}", id="option-invalid")


def _where(source: str, name: str) -> str:
    return as_flag(name) if source == COMMAND_LINE else f"{source}: {as_flag(name)}"


def _literals(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _literals(part)]
