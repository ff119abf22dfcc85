"""How the values of a request are made from its flat options.

A value whose class is chosen has its `Part` in the annotation of its field, as in
`method: Annotated[ScoringMethod, one_of("method", METHODS, "taylor", help)]`. A condition is the
name of an option that must be given (`calibration`), or what it must say (`method=taylor`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from compressor.errors import UsageError, did_you_mean
from compressor.options.declare import (
    Declared,
    Options,
    as_flag,
    declared_by,
    extra_of,
    is_given,
    option,
    option_name,
)

Given = Mapping[str, Any]  # options by name
Conditions = tuple[str, ...]  # of which one must hold; none: always


def holds(conditions: Conditions, given: Given) -> bool:
    """Whether one of some options is given, and says what it must."""
    for condition in conditions:
        name, _, wanted = condition.partition("=")
        value = given.get(name)
        if wanted in str(value).split("+") if wanted else is_given(value):
            return True
    return not conditions


def made(kind: type[Options], given: Given) -> Any:
    """A class with its options; those that have no use keep their defaults."""
    return kind(**{x.field: given[x.name] for x in declared_by(kind) if holds(x.only_with, given)})


def options_of(value: Options) -> dict[str, Any]:
    """The options of a class by their names: the inverse of `made`."""
    values, kind = value.model_dump(), type(value)
    given = {option_name(field, info): values[field] for field, info in kind.model_fields.items()}
    return {x.name: given[x.name] for x in declared_by(kind) if holds(x.only_with, given)}


@dataclass(frozen=True)
class Part:
    """Classes with options, of which some are chosen.

    Args:
        members: each class with the conditions under which it is chosen.
        own: the option that chooses; None: one of the class's options does.
        many: the value is a list, in the order in which `own` names them.
        noun: what exactly one must be chosen of, for messages.
    """

    members: Sequence[tuple[Conditions, type[Options]]]
    own: Declared | None = None
    many: bool = False
    noun: str = ""

    def declared(self) -> list[Declared]:
        """All options, that of the choice first."""
        options = [] if self.own is None else [self.own]
        for conditions, kind in self.members:
            options += declared_by(kind, conditions)
        return options

    def value(self, given: Given) -> Any:
        """What is chosen, made from checked options."""
        chosen = [(x, kind) for x, kind in self.members if holds(x, given)]
        if self.noun and len(chosen) != 1:
            names = [name for names, _ in self.members for name in names]
            if not chosen:
                flags = " or ".join(map(as_flag, names))
                raise UsageError(f"there is no {self.noun}; add {flags}", id="option-missing")
            flags = " and ".join(as_flag(name) for name in names if is_given(given[name]))
            raise UsageError(
                f"{flags} exclude each other; give one {self.noun}",
                id="options-exclude-each-other",
            )
        values = [made(kind, given) for _, kind in chosen]
        if self.own is not None and self.many:
            order = str(given[self.own.name]).split("+")
            return sorted(values, key=lambda value: order.index(value.name))
        return values[0] if values else None


def switched(name: str, kind: type[Options], help: str) -> Part:
    """A class with options that `--no-NAME` leaves out: None."""
    return Part([((name,), kind)], _own(name, bool, True, help, kind.panel))


def selected(noun: str, kinds: Sequence[type[Options]]) -> Part:
    """One class of several: the one of which an option is given that `selects` it."""
    return Part([(tuple(_selectors(kind)), kind) for kind in kinds], noun=noun)


def one_of(name: str, members: Mapping[str, type[Options]], default: str | None, help: str) -> Part:
    """One class of a table, by its name; without a default, maybe none."""

    def check(text: str) -> str:
        _require_known(name, text, text, list(members))
        return text

    return _named(name, members, Annotated[str, AfterValidator(check)], default, help, many=False)


def some_of(name: str, members: Mapping[str, type[Options]], default: str, help: str) -> Part:
    """Several classes of a table, `a+b`, in the order that is given, or `none`."""

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
    own = _own(name, kind, default, help, chosen[0][1].panel)
    return Part(chosen, own, many)


def _own(name: str, kind: Any, default: Any, help: str, panel: str) -> Declared:
    """The option that chooses, at the top of the panel of what it chooses from."""
    info = FieldInfo.from_annotated_attribute(kind, option(default, help=help, first=True))
    return Declared(name, name, info, (), panel)


def _selectors(kind: type[Options]) -> list[str]:
    return [x.name for x in declared_by(kind) if extra_of(x.info)["selects"]]


def _require_known(option: str, text: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UsageError(
            f"{as_flag(option)} {text}: there is no {name!r}; choose from {', '.join(known)}"
            f"{did_you_mean(name, known)}",
            id="name-unknown",
        )
