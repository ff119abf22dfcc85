"""The `compress` command in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def compress(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "compressor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)
