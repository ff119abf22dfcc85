"""Commands with flags made from a request's sections, and the few flags that all commands share."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from compressor.commands.console import console
from compressor.errors import CompressWarning
from compressor.options.assemble import assemble
from compressor.options.declare import Flag, Section, flags_of


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
    bool,
    typer.Option("--json", callback=_set("as_json"), help="The result as one JSON object."),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Directory to write to.")]
Config = Annotated[
    Path | None, typer.Option("-c", "--config", help="YAML recipe; flags win over it.")
]
MeasuredPrecision = Annotated[
    list[str] | None,
    typer.Option(
        "--precision", help="Precisions to run, as in fp32,int8; each artifact's default if none."
    ),
]


def add_command(
    app: typer.Typer,
    name: str,
    function: Callable[..., int],
    request: type[Section] | None = None,
    *,
    json: bool = True,
    help: str | None = None,
) -> None:
    """Register a command.

    Args:
        function: takes what its own signature declares; with a request, also `request`, and where
            it has a parameter `flags`, the values that were typed by flag name.
        request: the options that flags are made of.
        json: whether it has `--json`.
        help: its description; None: the function's docstring.
    """
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    takes_request = parameters.pop("request", None) is not None
    takes_flags = parameters.pop("flags", None) is not None
    flags = {} if request is None else flags_of(request)
    generated = {flag.parameter: flag for flag in flags.values()}
    added = [*map(_parameter, generated.values()), *_shared(json)]
    ordered = [*parameters.values(), *added]
    ordered.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)

    @functools.wraps(function)
    def command(**values: Any) -> int:
        given = {flag.name: values.pop(key) for key, flag in generated.items()}
        for parameter in _shared(json):
            values.pop(parameter.name)
        if takes_request:
            assert request is not None
            values["request"] = assemble(request, given)
        if takes_flags:
            values["flags"] = given
        with _warnings_told():
            return function(**values)

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in ordered], return_annotation=int
    )
    command.__annotations__ = {p.name: p.annotation for p in ordered} | {"return": int}
    app.command(name, help=help)(command)


@contextmanager
def _warnings_told() -> Iterator[None]:
    """Tell our own warnings as messages, without the place in the code that they come from."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, CompressWarning):
            console.message(f"warning: {message}")
        else:
            usual(message, category, *rest, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", CompressWarning)
        warnings.showwarning = show
        yield


def _shared(json: bool) -> list[inspect.Parameter]:
    kinds = {"quiet": Quiet, "verbose": Verbose} | ({"as_json": Json} if json else {})
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation
        )
        for name, annotation in kinds.items()
    ]


def _parameter(flag: Flag) -> inspect.Parameter:
    """A flag as a parameter that Typer understands; None means that it was not given."""
    names = [flag.short] if flag.short else []
    if flag.kind is bool:
        names.append(f"{flag.name}/--no-{flag.parameter.replace('_', '-')}")
    else:
        names.append(flag.name)
    kind: Any = list[flag.kind] if flag.is_list else flag.kind  # type: ignore[name-defined]
    annotation = Annotated[kind | None, typer.Option(*names, help=flag.help)]
    return inspect.Parameter(
        flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
