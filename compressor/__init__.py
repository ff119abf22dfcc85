"""Remove the attention heads a transformer does not need, and prove what that costs and gains.

`run` compresses a checkpoint, as `compress run` does; `load` gives back a compressed PyTorch model;
`compressor.runtime` runs one from ONNX without PyTorch.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import EnvironmentProblem
from compressor.storage.version import __version__

if TYPE_CHECKING:
    from compressor.model.checkpoint import load
    from compressor.progress import Progress
    from compressor.report.schema import Report

__all__ = ["__version__", "load", "run"]

# onnxruntime would write a device id and a database below the home directory, and look up a host
# for telemetry, whenever a session is made. It reads this when it is imported. A user's own value
# stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def run(
    *,
    output: str | Path,
    config: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Compress a checkpoint: `run(model="m", calibration="a.tsv", macs=0.5, output="out")`.

    Args:
        output: directory for the artifact, or for one artifact per budget.
        config: a recipe, which the options win over.
        progress: receives messages of the run; silent by default.
        options: those of `compress run`, by the names of their flags (docs/options.md).

    Returns:
        The report, with the gate's outcomes.

    Raises:
        CompressError: see `compressor.errors`. Calling again goes on from the last finished step.
    """
    make_recipe = _of_full_package("run", "compressor.options.requests:make_recipe")
    run_recipe = _of_full_package("run", "compressor.pipeline.run:run")
    recipe = make_recipe(None if config is None else Path(config), **options)
    reporting = {} if progress is None else {"progress": progress}
    report: Report = run_recipe(recipe, Path(output), **reporting)
    return report


def __getattr__(name: str) -> Any:
    # Imported on first use: torch takes seconds, and the runtime must do without it.
    if name == "load":
        return _of_full_package("load", "compressor.model.checkpoint:load")
    raise AttributeError(f"module 'compressor' has no attribute {name!r}")


def _of_full_package(name: str, path: str) -> Any:
    """The object at `module:attribute` of `compress-heads`, which `compressor.NAME` needs."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("compressor."):
            raise
        raise EnvironmentProblem(
            f"compressor.{name} needs PyTorch and the package compress-heads, and only "
            "compress-heads-runtime is installed; run the model with compressor.runtime, or "
            "install compress-heads",
            id="full-package-missing",
        ) from error
