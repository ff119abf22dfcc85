"""Checks of `compress doctor`: versions, hardware, providers, and conflicting packages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from compressor.errors import CompressError
from compressor.throughput.hardware import describe, versions

# Extras that are not engines, and their purpose.
_EXTRAS = {
    "distributed": "several processes",
    "summarization": "ROUGE",
    "zstd": "data in .zst files",
}
_MINIMUM = {"torch": (2, 11), "transformers": (5, 17)}


@dataclass(frozen=True)
class Diagnosis:
    """The environment; each of `problems` is a sentence with the remedy.

    Args:
        engines: name -> version and supported models, or why it is absent.
        providers: device -> whether onnxruntime can use it.
        optional: package that only some features need -> its version, or how to install it.
    """

    versions: dict[str, str]
    hardware: dict[str, str]
    engines: dict[str, str]
    providers: dict[str, str]
    optional: dict[str, str]
    problems: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def diagnose() -> Diagnosis:
    """Check the installed packages and try the execution providers."""
    providers, unusable = _providers()
    hardware = describe()
    engines = _engines() | {"pytorch": _pytorch("gpu" in hardware)}
    problems = [*_clashes(), *_too_old(), *unusable]
    return Diagnosis(versions(), hardware, engines, providers, _optional(), problems)


def _engines() -> dict[str, str]:
    """Each engine's version and supported models, or why it cannot be used."""
    from compressor.runtime.engines import ENGINES, engine_class

    states = {}
    for name in ENGINES:
        engine = engine_class(name)
        try:
            states[name] = f"{engine.version()}, for {' and '.join(f'{x}s' for x in engine.kinds)}"
        except CompressError as error:
            states[name] = f"absent: {error}"
    return states


def _pytorch(has_gpu: bool) -> str:
    """PyTorch's version, and whether it computes on a GPU.

    Args:
        has_gpu: whether the NVIDIA driver lists one.
    """
    try:
        import torch
    except ImportError as error:
        least = ".".join(map(str, _MINIMUM["torch"]))
        return f"absent: {error}; install it with `pip install 'torch>={least}'`"
    if torch.cuda.is_available():
        return f"{torch.__version__}, with CUDA on {torch.cuda.get_device_name()}"
    if not has_gpu:
        why = "no CUDA: nvidia-smi lists no GPU here"
    elif torch.version.cuda is None:
        why = (
            "no CUDA: this build of PyTorch is for CPUs; install the one for CUDA with "
            "`pip install --force-reinstall torch`"
        )
    else:
        why = f"no CUDA: PyTorch needs a driver for CUDA {torch.version.cuda} or newer"
    return f"{torch.__version__}, {why}"


def _optional() -> dict[str, str]:
    """The packages of the extras, as the installed distribution declares them."""
    from packaging.requirements import Requirement

    try:
        declared = [Requirement(text) for text in requires("compress-heads") or ()]
    except PackageNotFoundError:
        return {"compress-heads": "not installed, this is a checkout; `pip install .` in it"}
    states = {}
    for wanted in declared:
        for extra in _EXTRAS:
            alone = wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})
            if alone and wanted.marker and wanted.marker.evaluate({"extra": extra}):
                install = f"absent: `pip install '{wanted.name}{wanted.specifier}'`"
                state = version(wanted.name) if _installed(wanted.name) else install
                states[wanted.name] = f"{state} ({_EXTRAS[extra]})"
    return states


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _clashes() -> list[str]:
    both = [name for name in ("onnxruntime", "onnxruntime-gpu") if _installed(name)]
    if len(both) == 2:
        return [
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other; "
            "uninstall both, then install onnxruntime-gpu alone"
        ]
    if not both:
        return ["onnxruntime is not installed; install onnxruntime-gpu (onnxruntime on macOS)"]
    return []


def _too_old() -> list[str]:
    problems = []
    for name, minimum in _MINIMUM.items():
        if not _installed(name):
            problems.append(f"{name} is not installed")
            continue
        numbers = tuple(int(part) for part in version(name).split("+")[0].split(".")[:2])
        if numbers < minimum:
            needed = ".".join(map(str, minimum))
            problems.append(f"{name} {version(name)} is too old; install {needed} or newer")
    return problems


def _providers() -> tuple[dict[str, str], list[str]]:
    """Whether a model runs on each device, which is tried, since a listed provider may not work."""
    from compressor.runtime.session import try_device

    states, problems = {}, []
    for device in ("cpu", "cuda"):
        try:
            states[device] = f"works ({try_device(device)})"
        except CompressError as error:
            states[device] = f"not usable: {error}"
            if device == "cpu":
                problems.append(str(error))
    return states, problems
