"""The `compress` command, in a process of its own or in this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from compressor.commands import application


def compress(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "compressor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


def invoke(*arguments: object) -> None:
    """Run the command in this process; its errors are raised, for `helpers.errors.raises`."""
    words = list(map(str, arguments))
    application(words)(words, standalone_mode=False)
