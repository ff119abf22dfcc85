"""Commands and names on all pages: commands parse with their programs' options, names exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import pages as benchmark_pages
from compressor.commands import COMMANDS
from compressor.commands.options import Command, CommandGroup
from compressor.errors import CompressError
from compressor.options.requests import make_gate, make_recipe, make_score_requests
from tests.test_docs import PAGES, ROOT, commands_in, flags_of_commands

# Beside the pages: what runs commands elsewhere. Shell variables stand in them.
SCRIPTS = [
    ROOT / "action.yml",
    *ROOT.glob("examples/**/*.yml"),
    *ROOT.glob("examples/**/*.sh"),
    *ROOT.glob("examples/**/*.ipynb"),
]
PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
# Checks of the options of commands that make their requests themselves.
CHECKS: dict[str, Callable[[dict[str, Any], Any], object]] = {
    "run": lambda typed, config: config or make_recipe(None, **typed),
    "score": lambda typed, config: make_score_requests(typed),
    "gate": lambda typed, config: config or make_gate(None, **typed),
}


@cache
def application() -> typer.Typer:
    """The program with commands that check their options and do nothing."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    for name, file in COMMANDS.items():
        member = getattr(import_module(f"compressor.commands.{file}"), name)
        if isinstance(member, CommandGroup):
            members = {x: _idle(x, command) for x, command in member.members.items()}
            replace(member, members=members).add_to(app, name)
        else:
            _idle(name, member).add_to(app, name)
    return app


def _idle(name: str, command: Command) -> Command:
    @wraps(command.function)
    def check(**values: Any) -> int:
        if name in CHECKS:
            CHECKS[name](values["typed"], values.get("config"))
        return 0

    return replace(command, function=check)


def problem_of(command: str) -> str:
    """Why the program would not take a command line; empty if it would."""
    try:
        done = CliRunner().invoke(application(), shlex.split(command)[1:], catch_exceptions=False)
    except CompressError as error:
        return f"{command}: {error}"
    return "" if done.exit_code == 0 else f"{command}: {done.output}"


@PAGE
def test_commands_parse(page: Path):
    """As a whole; those with `…` for what is left out have at least options that exist."""
    commands = commands_in(page.read_text(encoding="utf-8"))
    whole = [command for command in commands if "…" not in command and "$" not in command]
    assert list(filter(None, map(problem_of, whole))) == []


def test_a_wrong_command_does_not_parse():
    assert problem_of("compress run -m m --macs 0.5 --calibration c -o out") == ""
    for wrong in (
        "compress run -m m --macs 0.5 -o out", "compress run -m m --macs 2 --calibration c -o out",
        "compress embed out", "compress predict out --top-q 3",
    ):  # fmt: skip
        assert problem_of(wrong), wrong


@pytest.mark.parametrize(
    "file", [*PAGES, *SCRIPTS], ids=lambda file: file.relative_to(ROOT).as_posix()
)
def test_options_that_are_named_exist(file: Path):
    """In inline code, in scripts, and where a command is only begun."""
    text = file.read_text(encoding="utf-8")
    known = {flag for flags in flags_of_commands().values() for flag in flags}
    known |= set(re.findall(r'add_argument\(\s*"(--[-\w]+)"', _benchmarks()))
    known |= {f"--no-{flag.removeprefix('--')}" for flag in known}
    if file in SCRIPTS:
        begun = re.findall(r"\bcompress (?:run|gate) [^\n]*(?:\\\n[^\n]*)*", text)
    else:
        begun = re.findall(r"`(--?[a-z][^`\n]*)`|`(compress [^`]*)`", text)
    flag = re.compile(r"(?<![\w-])--[a-z][-\w]*\w(?![-\w])")  # not `--no-`
    named = {name for part in begun for name in flag.findall(str(part))}
    assert named - known - OTHERS == set()


# Of other programs: pip, git, make, accelerate, torchrun, pytest, examples, …
OTHERS = {
    "--no-deps", "--force-reinstall", "--strict", "--config_file", "--cases", "--workers", "--seed",
    "--nproc-per-node", "--help", "--json", "--version",
}  # fmt: skip


@cache
def _benchmarks() -> str:
    files = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/**/*.py")]
    return "".join(file.read_text(encoding="utf-8") for file in files)


class Parsed(Exception):
    """Raised in place of what a script does with its arguments."""


def scripts_in(text: str) -> Iterator[list[str]]:
    """Modules of benchmarks with their arguments, in code of both kinds."""
    inline = re.findall(r"`python -m\s+(benchmarks\.[^`]*)`", text)
    blocks = re.findall(r"^ {4,}python -m (benchmarks\..*)", re.sub(r"\\\n\s*", "", text), re.M)
    for line in [*inline, *blocks]:
        yield shlex.split(" ".join(line.split()))


@pytest.mark.slow
@PAGE
def test_benchmarks_parse(page: Path, monkeypatch: pytest.MonkeyPatch):
    parse = benchmark_pages.Arguments.parse_args
    text = page.read_text(encoding="utf-8")
    for name, *arguments in scripts_in(text):
        is_package = (ROOT / name.replace(".", "/")).is_dir()
        module = import_module(f"{name}.__main__" if is_package else name)
        if not hasattr(module, "main") or "hide_avx512" in name:  # it takes no options
            assert not arguments or "hide_avx512" in name
            continue

        def only_parse(parser: Any, *, given: list[str] = arguments) -> None:
            parse(parser, given)
            raise Parsed

        monkeypatch.setattr(benchmark_pages.Arguments, "parse_args", only_parse)
        with pytest.raises(Parsed):
            module.main()


@PAGE
def test_files_and_names_exist(page: Path):
    """In inline code: paths of the repository, and names with dots below its packages."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    codes = {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)}
    paths = {
        code for code in codes
        if re.fullmatch(r"(?:compressor|benchmarks|tests|docs|examples|runtime)/[\w./-]*", code)
    }  # fmt: skip
    assert {path for path in paths if not (ROOT / path).exists()} == set()
    dotted = {
        code.partition("(")[0] for code in codes
        if re.fullmatch(r"(?:compressor|benchmarks|tests)(?:\.\w+)+(?:\([^)]*\))?", code)
    }  # fmt: skip
    assert {name for name in dotted if not _exists(name)} == set()


def _exists(name: str) -> bool:
    """Whether a module, or what a module defines or imports, has this name; nothing is run."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            return length == len(parts) or parts[length] in _names(file)
    return False


@cache
def _names(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.alias):
            found.add(node.id if isinstance(node, ast.Name) else node.asname or node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # `compressor.load` is imported on first use, by its name
    return found
