"""Names of the precisions that graphs are exported in; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.errors import UsageError, did_you_mean
from compressor.storage.names import AUTO, BASE, COMPUTED, PRECISIONS

BYTES_PER_WEIGHT = {"fp32": 4, "fp16": 2, "int8": 1}
# `auto`: the precisions that a device computes at least as fast as float32.
ON_DEVICE = {"cpu": (BASE, "int8"), "cuda": (BASE, "fp16")}


def comma_separated(values: str | Sequence[str]) -> list[str]:
    """The names in a comma list, or in several, each once."""
    texts = values if isinstance(values, list | tuple) else [values]
    return list(dict.fromkeys(name.strip() for text in texts for name in str(text).split(",")))


def split_precisions(
    values: str | Sequence[str], known: Sequence[str] = (*PRECISIONS, AUTO)
) -> list[str]:
    """Names of precisions from a comma list, or from several, each once.

    Args:
        values: the lists.
        known: the names that there are.

    Raises:
        UsageError: an unknown name, or `auto` beside others.
    """
    names = comma_separated(values)
    if len(names) > 1:  # `auto` stands alone
        known = [name for name in known if name != AUTO]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--precision {','.join(names)}: {name!r} is not one of {', '.join(known)}"
                + did_you_mean(name, known),
                id="precision-unknown",
            )
    return names


def precisions_to_export(names: Sequence[str], device: str) -> tuple[str, ...]:
    """The precisions to export for a device, float32 first.

    Args:
        names: from `split_precisions`.
        device: `cpu` or `cuda`, where the run measures.

    Raises:
        UsageError: float32 is not among them, or one that the device has no kernels for.
    """
    wanted = ON_DEVICE[device] if list(names) == [AUTO] else tuple(names)
    text = ",".join(wanted)
    if BASE not in wanted:
        raise UsageError(
            f"--precision {text} lacks {BASE}, which the others are made from and compared with; "
            f"write --precision {BASE},{text}",
            id="precision-without-fp32",
        )
    if "int8" in wanted and device == "cuda":
        raise UsageError(
            f"--precision {text}: int8 graphs are for the CPU; leave int8 out, or use --device cpu",
            id="precision-not-on-device",
        )
    return (BASE, *(name for name in wanted if name != BASE))


def precision_timed(names: Sequence[str], device: str) -> str:
    """The precision in which candidate masks are timed: the device's fastest of those exported."""
    fastest = ON_DEVICE[device][-1]
    return fastest if fastest in names else BASE


def named_precisions(values: Sequence[str] | None) -> list[str] | None:
    """Names of precisions to run artifacts in; None if none are named.

    Raises:
        UsageError: an unknown name, or `auto`, which is for exporting.
    """
    return split_precisions(values, COMPUTED) if values else None
