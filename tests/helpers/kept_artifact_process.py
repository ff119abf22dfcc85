"""`compressor.pipeline.artifact_process` with exports that are kept: see `helpers.kept_command`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from compressor.pipeline.artifact_process import main
from tests.helpers.exports import kept_exports

if __name__ == "__main__":
    with kept_exports(Path(os.environ["KEPT_EXPORTS"])):
        sys.exit(main())
