"""The `compress` command, in a process of its own or in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from compressor.commands import application

ROOT = Path(__file__).parents[2]


def compress(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own; exports are kept for all tests."""
    command = [sys.executable, "-m", "tests.helpers.kept_command", *map(str, arguments)]
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, timeout=600,
        env=os.environ | {"PYTHONPATH": places},
    )  # fmt: skip


def invoke(*arguments: object) -> None:
    """Run the command in this process; its errors are raised, for `helpers.errors.raises`."""
    words = list(map(str, arguments))
    application(words)(words, standalone_mode=False)
