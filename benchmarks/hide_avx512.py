"""Run a command as if the processor had AVX2 and nothing newer: no AVX-512, VNNI or AMX.

    python -m benchmarks.hide_avx512 python -m benchmarks.engines …

onnxruntime chooses its kernels by what CPUID answers, so this shows the kernels of an AVX2
processor on one that has more, at this one's clock and caches. Works where /proc/cpuinfo lists
cpuid_fault (most Intel processors since Ivy Bridge) and needs a C compiler. Exit status: the
command's; 69 where CPUID cannot be made to fault.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def main() -> int:
    if not sys.argv[1:]:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "hide_avx512.so")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-o", library, SOURCE, "-ldl"], check=True
        )
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        return subprocess.run(sys.argv[1:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
