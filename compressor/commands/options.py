"""Commands with flags made from a request's options, and the few flags that all commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.models import OptionInfo

from compressor.commands.console import console
from compressor.commands.help import GENERAL, CommandHelp, GroupHelp
from compressor.options.assemble import (
    Request,
    assemble,
    missing_options,
    options_of_command,
    require_given,
)
from compressor.options.declare import Declared, as_flag, extra_of
from compressor.progress import warnings_as_messages


def _set(name: str) -> Callable[[bool], bool]:
    def store(value: bool) -> bool:
        setattr(console, name, value)
        return value

    return store


_SHARED = {
    "quiet": typer.Option(
        "-q", "--quiet", callback=_set("quiet"), help="Only the result, no messages."
    ),
    "verbose": typer.Option(
        "-v", "--verbose", callback=_set("verbose"), help="Also how long steps took."
    ),
    "as_json": typer.Option(
        "--json", callback=_set("as_json"), help="The result as one JSON object."
    ),
}
_MODEL = "Model and output"
Output = Annotated[
    Path, typer.Option("-o", "--output", rich_help_panel=_MODEL, help="Directory to write to.")
]
Config = Annotated[
    Path | None,
    typer.Option("-c", "--config", rich_help_panel=_MODEL, help="YAML recipe; flags win over it."),
]


@dataclass(frozen=True)
class Command:
    """A sub-command: a function, and the flags that its request is made of."""

    # Takes what its own signature declares; of `request` and `typed` the request that its options
    # make, and the options as they were typed, by name.
    function: Callable[..., int]
    request: type[Request] | None
    json: bool = True  # whether it has `--json`
    help: str | None = None  # None: the function's docstring
    example: str | None = None  # a command line, shown at the top of its help

    def add_to(self, app: typer.Typer, name: str) -> None:
        """Register it under a name."""
        own = dict(inspect.signature(self.function, eval_str=True).parameters)
        takes_request = own.pop("request", None) is not None
        takes_typed = own.pop("typed", None) is not None
        options = {} if self.request is None else options_of_command(self.request)
        needed = [name for name, x in own.items() if _is_needed(x)]

        @functools.wraps(self.function)
        def called(**values: Any) -> int:
            typed = {name: values[name] for name in options}
            values = {name: values[name] for name in own}
            missing = [as_flag(name) for name in needed if values[name] is None]
            if self.request is not None and values.get("config") is None:
                missing = missing_options(self.request, typed, missing)
            require_given(missing)
            if takes_request and self.request is not None:
                values["request"] = assemble(self.request, typed)
            if takes_typed:
                values["typed"] = typed
            with warnings_as_messages(console):
                return self.function(**values)

        parameters = _parameters({**own, **{x: _optional(own[x]) for x in needed}}, options)
        if not self.json:
            parameters = [p for p in parameters if p.name != "as_json"]
        called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            parameters, return_annotation=int
        )
        called.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
        app.command(name, cls=CommandHelp, help=self.help, epilog=self.example)(called)


def command(
    request: type[Request] | None = None, *, example: str | None = None
) -> Callable[[Callable[..., int]], Command]:
    """Make a function a `Command`.

    Args:
        request: what its flags are made from; None for a command with flags of its own alone.
        example: a command line for the top of its help.
    """
    return lambda function: Command(function, request, example=example)


@dataclass(frozen=True)
class CommandGroup:
    """A sub-command with sub-commands of its own, by name."""

    help: str
    members: Mapping[str, Command]

    def add_to(self, app: typer.Typer, name: str) -> None:
        """Register it and its members under a name."""
        group = typer.Typer(cls=GroupHelp, help=self.help, invoke_without_command=True)
        group.callback()(show_help)
        for member, command in self.members.items():
            command.add_to(group, member)
        app.add_typer(group, name=name)


def show_help(context: typer.Context) -> None:
    """Print the help of a command that has commands, if none is named."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _parameters(
    own: Mapping[str, inspect.Parameter], options: Mapping[str, Declared]
) -> list[inspect.Parameter]:
    """All parameters of a command by panel, which stands where the last of its options does."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    generated = []
    for name, option in options.items():
        extra, negative = extra_of(option.info), ""
        if option.kind is bool:
            negative = f"/--no-{option.flag.removeprefix('--')}"
        names = [*([extra["short"]] if extra["short"] else []), option.flag + negative]
        flag = typer.Option(*names, help=option.help, rich_help_panel=option.panel or None)
        annotation: Any = Annotated[option.kind | None, flag]  # None: it was not given
        generated.append(inspect.Parameter(name, keyword, default=None, annotation=annotation))
    typed = [x.replace(kind=keyword) for x in own.values()]
    shared = [
        inspect.Parameter(name, keyword, default=False, annotation=Annotated[bool, flag])
        for name, flag in _SHARED.items()
    ]
    rank = {_flag(x).rich_help_panel or GENERAL: n for n, x in enumerate([*typed, *generated])}
    rank[GENERAL] = len(typed) + len(generated)  # what all commands have comes last
    first = {name for name, x in options.items() if extra_of(x.info)["first"]} | set(own)
    ordered = [*generated, *typed, *shared]
    for parameter in ordered:  # who reads a file says that it cannot, as for any other reason
        _flag(parameter).readable = False
    return sorted(
        ordered, key=lambda x: (rank[_flag(x).rich_help_panel or GENERAL], x.name not in first)
    )


def _is_needed(parameter: inspect.Parameter) -> bool:
    """Whether it is an option, not an argument, without a default."""
    return parameter.default is parameter.empty and isinstance(_flag(parameter), OptionInfo)


def _optional(parameter: inspect.Parameter) -> inspect.Parameter:
    """A needed option as one that Typer lets pass, so that all that are missing are told."""
    kind, *_ = get_args(parameter.annotation)
    info = copy(_flag(parameter))
    info.help = f"{info.help} [required]"
    return parameter.replace(default=None, annotation=Annotated[kind | None, info])


def _flag(parameter: inspect.Parameter) -> Any:
    """What Typer shows of a parameter."""
    (flag,) = parameter.annotation.__metadata__
    return flag
