"""`compress` with exports that are kept in the directory KEPT_EXPORTS, for tests through the shell.

Replaced are exports that were made before, and peak memory and plots: see `helpers.exports`. It may
have a fault, named in FAULT.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import compressor
from compressor.commands import main


def at_scoring(number: int) -> None:
    """Send this process a signal when it begins to score."""
    from compressor.importance import SecondOrder

    SecondOrder.score = lambda *arguments: os.kill(os.getpid(), number)


def other_rows() -> None:
    """Read a calibration file with one row less."""
    position = sys.argv.index("--calibration") + 1
    path = Path(sys.argv[position])
    shorter = path.with_name("shorter.tsv")
    shorter.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:-1]), "utf-8")
    sys.argv[position] = str(shorter)


def become_faulty(fault: str) -> None:
    """`version`, `rows`, `missing`, `absent`, or a signal."""
    if fault == "version":
        compressor.__version__ = "0.0.1"
    elif fault == "rows":
        other_rows()
    elif fault == "missing":
        sys.argv[sys.argv.index("--calibration") + 1] = "nowhere.tsv"
    elif fault == "absent":
        sys.exit()
    elif fault:
        at_scoring(getattr(signal, fault))


if __name__ == "__main__":
    become_faulty(os.environ.get("FAULT", ""))
    if sys.argv[1:2] in (["run"], ["export"], ["bench"]):
        from tests.helpers.exports import kept_exports

        with kept_exports(Path(os.environ["KEPT_EXPORTS"])):
            main()
    main()
