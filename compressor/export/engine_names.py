"""Names of engines on the command line; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.errors import UsageError
from compressor.export.precision_names import comma_separated
from compressor.storage.names import ONNXRUNTIME


def split_engines(values: str | Sequence[str]) -> list[str]:
    """Names from a comma list, or from several; UsageError for an unknown one."""
    names = comma_separated(values)
    if names != [ONNXRUNTIME]:
        from compressor.runtime.engines import engine_class

        for name in names:
            engine_class(name)  # raises if it is unknown
    return names


def engines_to_export(values: str | Sequence[str]) -> list[str]:
    """`split_engines`, with onnxruntime first, which must be among them."""
    names = split_engines(values)
    if ONNXRUNTIME not in names:
        text = ",".join(names)
        raise UsageError(
            f"--engines {text} lacks {ONNXRUNTIME}, which every artifact is for; write --engines "
            f"{ONNXRUNTIME},{text}",
            id="engines-without-onnxruntime",
        )
    return [ONNXRUNTIME, *(name for name in names if name != ONNXRUNTIME)]
