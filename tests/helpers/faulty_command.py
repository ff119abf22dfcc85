"""`compress` on a rank that has a fault, named in FAULT; without one as `kept_command`."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

import compressor
from compressor.importance import SecondOrder


def at_scoring(number: int) -> None:
    """Send this process a signal when it begins to score."""

    def ended(*arguments: object) -> None:
        os.kill(os.getpid(), number)

    SecondOrder.score = ended


def other_rows() -> None:
    """Read a calibration file with one row less."""
    position = sys.argv.index("--calibration") + 1
    path = Path(sys.argv[position])
    shorter = path.with_name("shorter.tsv")
    shorter.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:-1]), "utf-8")
    sys.argv[position] = str(shorter)


def main() -> None:
    fault = os.environ.get("FAULT", "")
    if fault == "version":
        compressor.__version__ = "0.0.1"
    elif fault == "rows":
        other_rows()
    elif fault == "missing":
        sys.argv[sys.argv.index("--calibration") + 1] = "nowhere.tsv"
    elif fault == "absent":
        return
    elif fault:
        at_scoring(getattr(signal, fault))
    runpy.run_module("tests.helpers.kept_command", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
