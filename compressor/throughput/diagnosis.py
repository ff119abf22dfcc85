"""Checks of `compress doctor`: versions, hardware, providers, and conflicting packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires

from compressor.errors import CompressError
from compressor.throughput.hardware import describe, version_of, versions

# Extras that are not engines, and their purpose.
_EXTRAS = {
    "distributed": "several processes",
    "summarization": "ROUGE",
    "zstd": "data in .zst files",
}
_MINIMUM = {"torch": (2, 11), "transformers": (5, 17)}


def diagnose() -> tuple[dict[str, dict[str, str]], list[str]]:
    """Look at the installation.

    Returns:
        Kind (`versions`, `hardware`, `engines`, `providers`, `optional`) -> name -> what is there,
        or how to install it; and the problems, each with its remedy.
    """
    from compressor.runtime.engines import ENGINES, engine_class
    from compressor.runtime.session import try_device

    hardware = describe()
    providers = {}
    unusable = []
    engines = {name: engine_class(name).describe("gpu" in hardware) for name in ENGINES}
    for device in ("cpu", "cuda"):
        try:
            # A provider that is listed may still not work.
            providers[device] = f"works ({try_device(device)})"
        except CompressError as error:
            providers[device] = f"not usable: {error}"
            if device == "cpu":
                unusable.append(str(error))
    found = {
        "versions": versions(),
        "hardware": hardware,
        "engines": engines,
        "providers": providers,
        "optional": _optional(),
    }
    return found, [*_problems(), *unusable]


def _optional() -> dict[str, str]:
    """The packages of the extras, as the installed distribution declares them."""
    from packaging.requirements import Requirement

    try:
        declared = [Requirement(text) for text in requires("compress-heads") or ()]
    except PackageNotFoundError:
        return {"compress-heads": "not installed, this is a checkout; `pip install .` in it"}
    states = {}
    for wanted in declared:
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            continue
        for extra, purpose in _EXTRAS.items():
            if wanted.marker.evaluate({"extra": extra}):
                install = f"absent: `pip install '{wanted.name}{wanted.specifier}'`"
                states[wanted.name] = f"{version_of(wanted.name) or install} ({purpose})"
    return states


def _problems() -> list[str]:
    """Conflicting, missing and old packages."""
    problems = []
    runtimes = [name for name in ("onnxruntime", "onnxruntime-gpu") if version_of(name)]
    if len(runtimes) == 2:
        problems.append(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other; "
            "uninstall both, then install onnxruntime-gpu alone"
        )
    elif not runtimes:
        problems.append(
            "onnxruntime is not installed; install onnxruntime-gpu (onnxruntime on macOS)"
        )
    for name, minimum in _MINIMUM.items():
        installed, needed = version_of(name), ".".join(map(str, minimum))
        if installed is None:
            problems.append(f"{name} is not installed")
        elif tuple(int(part) for part in installed.split("+")[0].split(".")[:2]) < minimum:
            problems.append(f"{name} {installed} is too old; install {needed} or newer")
    return problems
