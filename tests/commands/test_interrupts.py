"""Ctrl-C while `predict` answers a stream of lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from compressor.commands import INTERRUPTED, invoke
from tests.helpers import runtime_artifacts
from tests.helpers.command_line import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command() -> list[str]:
    directory = runtime_artifacts.classifier("bert").directory
    return ["predict", str(directory), "--chunk-lines", "1", "--threads", "1"]


@pytest.mark.skipif(os.name != "posix", reason="signals as on a terminal need POSIX")
def test_a_stream_of_answers_ends_with_the_status_of_an_interrupt(command):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    words = [sys.executable, "-m", "compressor", *command]
    with subprocess.Popen(words, cwd=ROOT, **pipes) as running:
        running.stdin.write(b"w5\n")
        running.stdin.flush()
        assert running.stdout.readline().startswith(b"LABEL_")
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=60)
    assert (running.returncode, rest) == (130, b"")
    assert errors.startswith(b"error: interrupted")
    assert b"Traceback" not in errors


def test_a_file_of_answers_is_not_left_in_part(command, tmp_path: Path, monkeypatch, capsys):
    def lines() -> Iterator[bytes]:
        yield b"w5\n"
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=lines(), isatty=lambda: False))
    assert invoke([*command, "-o", str(tmp_path / "answers.txt")]) == INTERRUPTED
    assert list(tmp_path.iterdir()) == []
    assert "interrupted" in capsys.readouterr().err
