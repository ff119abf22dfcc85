"""What a terminal, a pipe and a closed stream get; what the machine refuses is no bug."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compressor import example
from compressor.commands import is_out_of_memory
from compressor.commands.console import Console

ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """The screen's lines; of rewritten ones the last form."""
        return [line.split("\r\x1b[K")[-1] for line in self.getvalue().split("\n")]


def watch(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in the place of stderr; pytest would put its own there after a fixture."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_a_terminal_sees_rate_and_time_left(monkeypatch: pytest.MonkeyPatch):
    terminal = watch(monkeypatch)
    console = Console()
    for done in range(4):
        console.update("scoring", done, 40)
        time.sleep(0.21)

    (line,) = terminal.lines()
    assert line.startswith("  scoring 3/40, ")
    assert "/s, 0:00:" in line
    assert line.endswith(" left")


def test_finished_work_messages_and_the_result_take_the_place_of_the_line(monkeypatch, capsys):
    terminal = watch(monkeypatch)
    console = Console()
    console.update("scoring", 1, 2)
    console.update("scoring", 2, 2)
    console.update("rows", 5, None)
    console.message("something happened")
    console.update("rows", 6, None)

    first, second, third = terminal.lines()
    assert (" 2/2" in first, " left" in first) == (True, False)
    assert second == "something happened"
    assert third.startswith("  rows 6")
    console.result("the result", {})
    assert terminal.lines()[-1] == ""
    assert capsys.readouterr().out == "the result\n"


def test_a_pipe_sees_the_first_count_and_the_last(capsys):
    console = Console()
    for done in range(1, 101):
        console.update("rows", done, 100)

    assert capsys.readouterr().err == "  rows 1/100\n  rows 100/100\n"


@pytest.mark.parametrize("screen", [Terminal, io.StringIO])
def test_quiet_is_silent_but_for_errors(monkeypatch: pytest.MonkeyPatch, screen: type):
    stream = screen()
    monkeypatch.setattr(sys, "stderr", stream)
    console = Console(quiet=True, verbose=True)
    console.message("a message")
    console.detail("a detail")
    console.update("rows", 1, 1)
    assert stream.getvalue() == ""
    console.error("it failed", 4, "it-failed")
    assert stream.getvalue() == "error: it failed\n"


TALK = """
from compressor.commands.console import Console
console = Console()
for done in range(3):
    console.message("x" * 100_000)
    console.update("rows", done, 2)
console.result("the result", {})
raise SystemExit(1)
"""


@pytest.mark.skipif(os.name != "posix", reason="file descriptors as on POSIX")
@pytest.mark.parametrize("how", ["2>&-", "2> >(exit)"])
def test_a_stderr_that_nobody_reads_changes_neither_result_nor_status(how: str):
    command = ["bash", "-c", f'sleep 0.2; exec "$0" -c "$1" {how}', sys.executable, TALK]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)

    assert (done.returncode, done.stdout) == (1, "the result\n")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_too_little_memory_is_told():
    """PyTorch's libraries cannot be mapped in 300 MB."""
    command = f"{sys.executable} -m compressor inspect {example.model()} --json"
    script = f"export OMP_NUM_THREADS=1; ulimit -v 300000; {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout, done.stderr
    assert (done.returncode, json.loads(done.stdout)["id"]) == (3, "out-of-memory")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_which_errors_are_a_lack_of_memory(error, expected):
    assert is_out_of_memory(error) is expected
    outer = ValueError("the file cannot be read")
    outer.__cause__ = error
    assert is_out_of_memory(outer) is expected
