"""`compress` with exports that are kept in the directory KEPT_EXPORTS, for tests through the shell.

Replaced are exports that were made before, and peak memory and plots: see `helpers.exports`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from compressor.commands import main

if __name__ == "__main__":
    if sys.argv[1:2] in (["run"], ["export"], ["bench"]):
        from tests.helpers.exports import kept_exports

        with kept_exports(Path(os.environ["KEPT_EXPORTS"])):
            main()
    main()
