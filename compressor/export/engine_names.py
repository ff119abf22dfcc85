"""Names of engines on the command line; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.errors import UsageError
from compressor.export.precision_names import comma_separated
from compressor.storage.names import ONNXRUNTIME


def split_engines(values: str | Sequence[str]) -> list[str]:
    """Names of engines from a comma list, or from several, each once.

    Raises:
        UsageError: an unknown name.
    """
    names = comma_separated(values)
    if names != [ONNXRUNTIME]:
        from compressor.runtime.engines import engine_class

        for name in names:
            engine_class(name)  # raises if it is unknown
    return names


def engines_to_export(values: str | Sequence[str]) -> list[str]:
    """The engines to export for, onnxruntime first.

    Raises:
        UsageError: an unknown name, or onnxruntime is not among them.
    """
    names = split_engines(values)
    if ONNXRUNTIME not in names:
        text = ",".join(names)
        raise UsageError(
            f"--engines {text} lacks {ONNXRUNTIME}, which every artifact is for; write --engines "
            f"{ONNXRUNTIME},{text}",
            id="engines-without-onnxruntime",
        )
    return [ONNXRUNTIME, *(name for name in names if name != ONNXRUNTIME)]
