"""The `compress` command; nothing heavy is imported before it is needed."""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module

import typer

from compressor.commands.console import console, leave_stdout
from compressor.commands.help import GroupHelp
from compressor.commands.options import show_help
from compressor.errors import CompressError, EnvironmentProblem, InputError, UsageError
from compressor.parallel import launch
from compressor.storage.disk import disk_problem
from compressor.storage.version import __version__

# In the order of the help, each with the file that it stands in.
COMMANDS = {
    "run": "run", "demo": "run", "inspect": "inspect", "score": "steps", "study": "study",
    "prune": "steps", "export": "steps", "evaluate": "artifacts", "bench": "artifacts",
    "report": "report", "gate": "report", "verify": "artifacts", "predict": "predict",
    "translate": "predict", "classify": "predict", "doctor": "inspect",
}  # fmt: skip
# Commands of which several processes at once would do the same work, and write the same files.
FOR_ONE = ("demo", "score", "study", "prune", "export", "evaluate", "bench")
RESUMABLE = ("run", "demo")
BUG = 70
INTERRUPTED = 130
# What libraries say where memory runs out.
_NO_MEMORY = re.compile(
    r"not enough memory|can.?t allocate memory|cannot allocate memory|failed to allocate memory"
    r"|failed to map segment|bad allocation|bad_alloc|CUDA out of memory|\(os error 12\)"
    r"|cannot enable executable stack|AllocateRawInternal",
    re.IGNORECASE,
)


def _version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


def _common(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    show_help(context)


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """The application with the called command; with all of them if none is called."""
    app = typer.Typer(
        name="compress",
        help="Remove the attention heads and feed-forward neurons a transformer does not need, "
        "export the smaller model to ONNX, and measure what that costs and gains.",
        cls=GroupHelp,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for name in [name for name in arguments[:1] if name in COMMANDS] or COMMANDS:
        module = import_module(f"compressor.commands.{COMMANDS[name]}")
        getattr(module, name).add_to(app, name)
    return app


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status (docs/usage.md has the table)."""
    # Known before parsing, so that a parsing error too is written in the form that was asked for.
    console.as_json = "--json" in arguments
    console.quiet = console.verbose = False
    console.unwritten = console.doing = ""
    console.silent = launch.rank() > 0
    launch.on_lost(lambda error: _report(error.args[0], error.exit_code, error.id))
    began = time.perf_counter()
    try:
        require_usable(arguments)
        status = application(arguments)(list(arguments), standalone_mode=False)
        if status == INTERRUPTED:  # Typer's own answer to Ctrl-C
            raise launch.EndedByLauncher if launch.is_ended() else KeyboardInterrupt
        console.detail(f"took {time.perf_counter() - began:.1f} s")
        status = status if isinstance(status, int) else 0
        if console.unwritten:
            return _fail(console.unwritten, status or InputError.exit_code, None, "result-lost")
        return status
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort) as stop:
        resumes = bool(arguments) and arguments[0] in RESUMABLE
        how = "goes on from what is saved" if resumes else "starts again"
        what = "interrupted"
        if isinstance(stop, launch.EndedByLauncher):
            what += " by the launcher, which ends all processes when one ends"
        return _fail(f"{what}; the same command {how}", INTERRUPTED, None, "interrupted")
    except (BrokenPipeError, SystemExit) as error:
        # The reader of stdout went away (`| head`), so nothing is left to write to it. Within a
        # command Typer catches that and calls sys.exit(1).
        if not isinstance(error.__context__ or error, BrokenPipeError):
            raise
        leave_stdout()
        return 0
    except Exception as error:  # noqa: BLE001 - the last line: an unknown error is a bug
        return _fail_with(error, arguments)


def _fail_with(error: Exception, arguments: Sequence[str]) -> int:
    if isinstance(error, typer.TyperException):
        message = f"{error.format_message()} (see --help)"
        return _fail(message, UsageError.exit_code, error, "command-line-invalid")
    if is_out_of_memory(error):
        doing = f" while {console.doing}" if console.doing else ""
        message = (
            f"memory ran out in `compress {next(iter(arguments), '')}`{doing}; use fewer or "
            "shorter rows, smaller batches or a smaller model, raise the limit (ulimit -v, the "
            "container's), or use a machine with more"
        )
        return _fail(message, EnvironmentProblem.exit_code, error, "out-of-memory")
    if isinstance(error, CompressError):
        return _fail(str(error), error.exit_code, error, error.id)
    path = (error.filename2 or error.filename) if isinstance(error, OSError) else None
    if isinstance(error, OSError) and path is not None:
        message = f"cannot read or write {path}: {error.strerror}"
        if isinstance(error, PermissionError):
            message += "; change its permissions, or run this as a user who may"
        return _fail(message, InputError.exit_code, error, "file-unusable")
    if problem := disk_problem(error):
        if isinstance(error, OSError) and sys.stdout is not None:
            leave_stdout()  # it may be what is full
        message = f"cannot write: {problem}; make room, and give the same command"
        return _fail(message, InputError.exit_code, error, "disk-refuses")
    kind = type(error).__name__
    message = f"bug: {kind}: {error}; please report it, with COMPRESS_DEBUG=1 for the traceback"
    return _fail(message, BUG, error, "bug")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error comes from a lack of memory: Python's, a library's, or the loader's."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or getattr(seen, "errno", None) == errno.ENOMEM:
            return True
        if _NO_MEMORY.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def require_usable(arguments: Sequence[str]) -> None:
    """Raise an error for a place or words that no command works with, or too many processes."""
    try:
        os.getcwd()
    except OSError as error:  # libraries would end the process without a word of ours
        raise EnvironmentProblem(
            f"the working directory cannot be used ({error.strerror}); change to another one",
            id="environment-unusable",
        ) from error
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{word!a} is not UTF-8, and no name of a file that is read or "
                "written may be anything else; rename it",
                id="argument-not-utf8",
            ) from error
    name = next(iter(arguments), "")
    if launch.processes() > 1 and name in FOR_ONE:
        raise UsageError(
            f"`compress {name}` runs in one process, and the launcher started "
            f"{launch.processes()} (WORLD_SIZE); call it without the launcher",
            id="command-for-one-process",
        )


def _fail(message: str, status: int, error: BaseException | None, id: str) -> int:
    if error is not None and os.environ.get("COMPRESS_DEBUG") == "1":
        traceback.print_exception(error)
    _report(message, status, id)
    return status


def _report(message: str, status: int, id: str) -> None:
    """Write why the command ends; of several processes one does."""
    if launch.is_first_to_report():
        console.silent = False
        console.error(f"rank {launch.rank()}: {message}" if launch.rank() else message, status, id)


def main() -> None:
    """Entry point of the console script."""
    # Open standard streams that the caller closed, or the next file would get their numbers.
    # `sys.stdout` stays None then, which `console` checks; messages go nowhere.
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    status = invoke(sys.argv[1:])
    gc.freeze()  # or Python ends with a search for garbage in all of PyTorch
    sys.exit(status)
