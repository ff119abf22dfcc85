"""How the values of a request are made from its flat options.

A value whose class is chosen has a `Part` in the annotation of its field, as in
`method: Annotated[ScoringMethod, one_of("method", METHODS, "taylor", help)]`. A condition is the
name of an option that must be given (`calibration`), or the value it must have (`method=taylor`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from compressor.errors import UsageError, did_you_mean
from compressor.options.declare import Declared, Options, as_flag, declared_by, is_given, option

Values = Mapping[str, Any]  # options by name
Conditions = tuple[str, ...]  # of which one must hold; none: always


def holds(conditions: Conditions, values: Values) -> bool:
    """Whether one of the conditions holds."""
    for condition in conditions:
        name, _, wanted = condition.partition("=")
        value = values.get(name)
        if wanted in str(value).split("+") if wanted else is_given(value):
            return True
    return not conditions


def options_of(value: Options) -> dict[str, Any]:
    """The options that a value was made of, by their names."""
    fields, declared = value.model_dump(), declared_by(type(value))
    values = {x.name: fields[x.field] for x in declared}
    return {x.name: values[x.name] for x in declared if holds(x.only_with, values)}


@dataclass(frozen=True)
class Part:
    """Classes with options, of which some are chosen.

    Args:
        members: each class with the conditions under which it is chosen.
        choosing: the option that chooses; None: one of the class's options does.
        many: the value is a list, in the order in which `choosing` names them.
        noun: what the classes are, for messages, if exactly one must be chosen.
    """

    members: Sequence[tuple[Conditions, type[Options]]]
    choosing: Declared | None = None
    many: bool = False
    noun: str = ""

    def declared(self) -> list[Declared]:
        """All options, that of the choice first."""
        options = [] if self.choosing is None else [self.choosing]
        for conditions, kind in self.members:
            options += declared_by(kind, conditions)
        return options

    def value(self, values: Values) -> Any:
        """The chosen classes with their options, made from checked options."""
        chosen = [(x, kind) for x, kind in self.members if holds(x, values)]
        if self.noun and len(chosen) != 1:
            names = [name for names, _ in self.members for name in names]
            if not chosen:
                flags = " or ".join(map(as_flag, names))
                raise UsageError(f"there is no {self.noun}; add {flags}", id="option-missing")
            flags = " and ".join(as_flag(name) for name in names if is_given(values[name]))
            raise UsageError(
                f"{flags} exclude each other; give one {self.noun}",
                id="options-exclude-each-other",
            )
        parts: list[Any] = []
        for _, kind in chosen:
            used = [x for x in declared_by(kind) if holds(x.only_with, values)]
            parts.append(kind(**{x.field: values[x.name] for x in used}))
        if self.choosing is not None and self.many:
            order = str(values[self.choosing.name]).split("+")
            return sorted(parts, key=lambda part: order.index(part.name))
        return parts[0] if parts else None


def switched(name: str, kind: type[Options], help: str) -> Part:
    """A class with options that `--no-NAME` leaves out: None."""
    return Part([((name,), kind)], _choosing(name, bool, True, help, kind.panel))


def selected(noun: str, kinds: Sequence[type[Options]]) -> Part:
    """One class of several: the one with a given option that `selects` it."""
    return Part(
        [(tuple(x.name for x in declared_by(kind) if x.selects), kind) for kind in kinds],
        noun=noun,
    )


def one_of(name: str, members: Mapping[str, type[Options]], default: str | None, help: str) -> Part:
    """One class of a table, by its name; without a default, maybe none."""

    def check(text: str) -> str:
        _require_known(name, text, text, list(members))
        return text

    return _named(name, members, Annotated[str, AfterValidator(check)], default, help, many=False)


def some_of(name: str, members: Mapping[str, type[Options]], default: str, help: str) -> Part:
    """Several classes of a table, `a+b`, in this order, or `none`."""

    def check(text: str) -> str:
        names = [part.strip() for part in text.split("+")]
        for one in names:
            _require_known(name, text, one, ["none", *members])
        if len(set(names)) < len(names) or ("none" in names and len(names) > 1):
            raise UsageError(
                f"{as_flag(name)} {text}: name each method once, and none only alone",
                id="name-twice",
            )
        return "+".join(names)

    return _named(name, members, Annotated[str, AfterValidator(check)], default, help, many=True)


def _named(
    name: str, members: Mapping[str, type[Options]], kind: Any, default: Any, help: str, many: bool
) -> Part:
    chosen = [((f"{name}={member}",), options) for member, options in members.items()]
    return Part(chosen, _choosing(name, kind, default, help, chosen[0][1].panel), many)


def _choosing(name: str, kind: Any, default: Any, help: str, panel: str) -> Declared:
    """The option that chooses, at the top of the panel of what it chooses from."""
    info = FieldInfo.from_annotated_attribute(kind, option(default, help=help, first=True))
    return Declared(name, name, info, (), panel)


def _require_known(option: str, text: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UsageError(
            f"{as_flag(option)} {text}: there is no {name!r}; choose from {', '.join(known)}"
            f"{did_you_mean(name, known)}",
            id="name-unknown",
        )
