"""Commands with flags made from a request's sections, and the few flags that all commands share."""

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
from compressor.options.assemble import assemble
from compressor.options.declare import Flag, Section, flags_of
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
    typer.Option("-v", "--verbose", callback=_set("verbose"), help="Also how long stages took."),
]
Json = Annotated[
    bool, typer.Option("--json", callback=_set("as_json"), help="The result as one JSON object.")
]
_MODEL, _MEASUREMENT = "Model and output", "Measurement"
Output = Annotated[
    Path, typer.Option("-o", "--output", rich_help_panel=_MODEL, help="Directory to write to.")
]
Config = Annotated[
    Path | None,
    typer.Option("-c", "--config", rich_help_panel=_MODEL, help="YAML recipe; flags win over it."),
]
MeasuredPrecision = Annotated[
    list[str] | None,
    typer.Option(
        "--precision",
        rich_help_panel=_MEASUREMENT,
        help="Precisions to run, as in fp32,int8; each artifact's default if none.",
    ),
]

MeasuredEngines = Annotated[
    str,
    typer.Option(
        "--engine",
        rich_help_panel=_MEASUREMENT,
        help="Libraries to run artifacts in, as in onnxruntime,openvino; each computes in those of "
        "--precision that it has.",
    ),
]


@dataclass(frozen=True)
class Command:
    """A sub-command: a function, and the flags that its request is made of.

    Args:
        function: takes what its own signature declares; with a request, also `request`, and where
            it has a parameter `flags`, the values that were typed by flag name.
        json: whether it has `--json`.
        help: its description; None: the function's docstring.
        example: a command line, shown at the top of its help.
    """

    function: Callable[..., int]
    request: type[Section] | None
    json: bool = True
    help: str | None = None
    example: str | None = None

    def add_to(self, app: typer.Typer, name: str) -> None:
        """Register it under a name."""
        parameters = dict(inspect.signature(self.function, eval_str=True).parameters)
        takes_request = parameters.pop("request", None) is not None
        takes_flags = parameters.pop("flags", None) is not None
        flags = {} if self.request is None else flags_of(self.request)
        generated = {flag.parameter: flag for flag in flags.values()}
        shared = {"quiet": Quiet, "verbose": Verbose} | ({"as_json": Json} if self.json else {})
        first = {flag.parameter for flag in generated.values() if flag.first} | set(parameters)
        ordered = [
            *map(_parameter, generated.values()),
            *parameters.values(),
            *(_optional(key, annotation, False) for key, annotation in shared.items()),
        ]
        for parameter in ordered:  # who reads a file says that it cannot, as for any other reason
            for declared in getattr(parameter.annotation, "__metadata__", ()):
                declared.readable = False
        # A panel stands where the last of its sections does; what is shared by all comes last.
        own = [*parameters.values(), *map(_parameter, generated.values())]
        place = {_panel(x): number for number, x in enumerate(own)} | {GENERAL: len(own)}
        ordered.sort(key=lambda x: (place[_panel(x)], x.name not in first))

        @functools.wraps(self.function)
        def called(**values: Any) -> int:
            _require_utf8(values)
            given = {flag.name: values.pop(key) for key, flag in generated.items()}
            for key in shared:
                values.pop(key)
            if takes_request:
                assert self.request is not None
                values["request"] = assemble(self.request, given)
            if takes_flags:
                values["flags"] = given
            with warnings_as_messages(console):
                return self.function(**values)

        called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in ordered], return_annotation=int
        )
        called.__annotations__ = {p.name: p.annotation for p in ordered} | {"return": int}
        app.command(name, cls=CommandHelp, help=self.help, epilog=self.example)(called)


def command(
    request: type[Section] | None = None, *, json: bool = True, example: str | None = None
) -> Callable[[Callable[..., int]], Command]:
    """Make a function a `Command`; arguments are its."""
    return lambda function: Command(function, request, json, example=example)


@dataclass(frozen=True)
class CommandGroup:
    """A sub-command with sub-commands of its own, by name."""

    help: str
    members: Mapping[str, Command]

    def add_to(self, app: typer.Typer, name: str) -> None:
        """Register all of them under a name."""
        group = typer.Typer(cls=GroupHelp, help=self.help, invoke_without_command=True)
        group.callback()(show_help)
        for member, command in self.members.items():
            command.add_to(group, member)
        app.add_typer(group, name=name)


def show_help(context: typer.Context) -> None:
    """What a command that has commands does when none is named."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _require_utf8(values: Mapping[str, Any]) -> None:
    """Refuse bytes that are not UTF-8, which neither JSON nor the libraries below take in a path.

    Raises:
        InputError: an argument has such bytes.
    """
    listed = (value if isinstance(value, list) else [value] for value in values.values())
    for value in itertools.chain.from_iterable(listed):
        text = str(value)
        shown = text.encode("utf-8", "backslashreplace").decode().replace("\\udc", "\\x")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{shown} is not UTF-8, and no name of a file that is read or written may be "
                "anything else; rename it",
                id="argument-not-utf8",
            ) from error


def _parameter(flag: Flag) -> inspect.Parameter:
    """A flag as a parameter that Typer understands; None means that it was not given."""
    names = [flag.short] if flag.short else []
    if flag.kind is bool:
        names.append(f"{flag.name}/--no-{flag.parameter.replace('_', '-')}")
    else:
        names.append(flag.name)
    kind: Any = list[flag.kind] if flag.is_list else flag.kind  # type: ignore[name-defined]
    panel = flag.panel or None
    annotation = Annotated[kind | None, typer.Option(*names, help=flag.help, rich_help_panel=panel)]
    return _optional(flag.parameter, annotation, None)


def _panel(parameter: inspect.Parameter) -> str:
    (declared,) = parameter.annotation.__metadata__
    return declared.rich_help_panel or GENERAL


def _optional(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
