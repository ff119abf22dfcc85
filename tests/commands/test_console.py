"""Messages, progress and results, as a terminal, a pipe and a closed stream get them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time

import pytest

from compressor.commands.console import Console


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
    assert line.startswith("  scoring ")
    assert " 3/40 " in line
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
    assert third.startswith("  rows ")
    assert " 6/?" in third
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


def test_progress_never_stands_between_streamed_lines(monkeypatch: pytest.MonkeyPatch):
    console = Console()
    for stdout, stderr, shown in (
        (Terminal, Terminal, False),
        (io.StringIO, Terminal, True),
        (io.StringIO, io.StringIO, False),
    ):
        monkeypatch.setattr(sys, "stdout", stdout())
        monkeypatch.setattr(sys, "stderr", stderr())
        assert console.counts_lines(to_stdout=True) == shown


def test_a_failure_is_one_json_object_with_its_id(capsys):
    Console(as_json=True).error("it failed", 4, id="it-failed")

    assert json.loads(capsys.readouterr().out) == {
        "ok": False, "error": "it failed", "id": "it-failed", "exit_status": 4,
    }  # fmt: skip


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
