"""Remove the attention heads a transformer does not need, and prove what that costs and gains.

`load` gives back a compressed PyTorch model; `compressor.runtime` runs one from ONNX without
PyTorch. The command line is `compress`; its main path is `compressor.pipeline.run`.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from compressor.errors import EnvironmentProblem
from compressor.storage.version import __version__

__all__ = ["__version__", "load"]

# onnxruntime would write a device id and a database below the home directory, and look up a host
# for telemetry, whenever a session is made. It reads this when it is imported. A user's own value
# stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from compressor.model.checkpoint import load


def __getattr__(name: str) -> Any:
    # Imported on first use: torch takes seconds, and the runtime must do without it.
    if name == "load":
        try:
            return import_module("compressor.model.checkpoint").load
        except ModuleNotFoundError as error:
            if error.name != "compressor.model":
                raise
            raise EnvironmentProblem(
                "compressor.load needs PyTorch and the package compress-heads, and only "
                "compress-heads-runtime is installed; run the model with compressor.runtime, or "
                "install compress-heads",
                id="full-package-missing",
            ) from error
    raise AttributeError(f"module 'compressor' has no attribute {name!r}")
