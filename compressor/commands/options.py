"""Commands with flags made from a request's options, and the few flags that all commands share."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from compressor.commands.console import console
from compressor.commands.help import GENERAL, CommandHelp, GroupHelp
from compressor.errors import InputError
from compressor.options.assemble import Request, assemble, options_of_command
from compressor.options.declare import Declared, extra_of
from compressor.progress import warnings_as_messages


def _set(name: str) -> Callable[[bool], bool]:
    def store(value: bool) -> bool:
        setattr(console, name, value)
        return value

    return store


Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", callback=_set("quiet"), help="Only the result, no messages."),
]
Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", callback=_set("verbose"), help="Also how long steps took."),
]
Json = Annotated[
    bool, typer.Option("--json", callback=_set("as_json"), help="The result as one JSON object.")
]
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
    """A sub-command: a function, and the flags that its request is made of.

    Args:
        function: takes what its own signature declares; with a request, also `request`, and where
            it has a parameter `typed`, the options as they were typed, by name.
        json: whether it has `--json`.
        help: its description; None: the function's docstring.
        example: a command line, shown at the top of its help.
    """

    function: Callable[..., int]
    request: type[Request] | None
    json: bool = True
    help: str | None = None
    example: str | None = None

    def add_to(self, app: typer.Typer, name: str) -> None:
        """Register it under a name."""
        signature = dict(inspect.signature(self.function, eval_str=True).parameters)
        takes_request = signature.pop("request", None) is not None
        takes_typed = signature.pop("typed", None) is not None
        options = {} if self.request is None else options_of_command(self.request)
        shared = {"quiet": Quiet, "verbose": Verbose} | ({"as_json": Json} if self.json else {})

        @functools.wraps(self.function)
        def called(**values: Any) -> int:
            _require_utf8(values)
            typed = {name: values.pop(name) for name in options}
            values = {name: value for name, value in values.items() if name not in shared}
            if takes_request:
                assert self.request is not None
                values["request"] = assemble(self.request, typed)
            if takes_typed:
                values["typed"] = typed
            with warnings_as_messages(console):
                return self.function(**values)

        parameters = _ordered(signature, options, shared)
        called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters],
            return_annotation=int,
        )
        called.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
        app.command(name, cls=CommandHelp, help=self.help, epilog=self.example)(called)


def command(
    request: type[Request] | None = None, *, json: bool = True, example: str | None = None
) -> Callable[[Callable[..., int]], Command]:
    """Make a function a `Command`; arguments are its."""
    return lambda function: Command(function, request, json, example=example)


@dataclass(frozen=True)
class CommandGroup:
    """A sub-command with sub-commands of its own, by name."""

    help: str
    members: Mapping[str, Command]

    def add_to(self, app: typer.Typer, name: str) -> None:
        group = typer.Typer(cls=GroupHelp, help=self.help, invoke_without_command=True)
        group.callback()(show_help)
        for member, command in self.members.items():
            command.add_to(group, member)
        app.add_typer(group, name=name)


def show_help(context: typer.Context) -> None:
    """Print the help of a command that has commands, if none is named."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _require_utf8(values: Mapping[str, Any]) -> None:
    """Raise `InputError` for bytes that neither JSON nor the libraries below take in a path."""
    listed = (value if isinstance(value, list) else [value] for value in values.values())
    for value in itertools.chain.from_iterable(listed):
        try:
            str(value).encode()
        except UnicodeEncodeError as error:
            shown = str(value).encode("utf-8", "backslashreplace").decode().replace("\\udc", "\\x")
            raise InputError(
                f"{shown} is not UTF-8, and no name of a file that is read or written may be "
                "anything else; rename it",
                id="argument-not-utf8",
            ) from error


def _ordered(
    signature: Mapping[str, inspect.Parameter],
    options: Mapping[str, Declared],
    shared: Mapping[str, Any],
) -> list[inspect.Parameter]:
    """All parameters of a command by panel, which stands where the last of its options does."""
    generated = [_parameter(option) for option in options.values()]
    first = {name for name, x in options.items() if extra_of(x.info)["first"]} | set(signature)
    rank = {_panel(x): n for n, x in enumerate([*signature.values(), *generated])}
    rank[GENERAL] = len(rank) + len(signature) + len(generated)  # what all commands have comes last
    ordered = [*generated, *signature.values()]
    ordered += [_optional(name, annotation, False) for name, annotation in shared.items()]
    for parameter in ordered:  # who reads a file says that it cannot, as for any other reason
        for declared in getattr(parameter.annotation, "__metadata__", ()):
            declared.readable = False
    return sorted(ordered, key=lambda x: (rank[_panel(x)], x.name not in first))


def _parameter(option: Declared) -> inspect.Parameter:
    """An option as a parameter for Typer; None means that it was not given."""
    short = extra_of(option.info)["short"]
    negative = f"/--no-{option.flag.removeprefix('--')}" if option.kind is bool else ""
    names = [*([short] if short else []), option.flag + negative]
    declared = typer.Option(*names, help=option.help, rich_help_panel=option.panel or None)
    return _optional(option.name, Annotated[option.kind | None, declared], None)


def _panel(parameter: inspect.Parameter) -> str:
    (declared,) = parameter.annotation.__metadata__
    return declared.rich_help_panel or GENERAL


def _optional(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
