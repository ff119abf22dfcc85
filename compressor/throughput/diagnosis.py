"""What `compress doctor` checks: versions, hardware, providers, and packages that clash."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from compressor.errors import CompressError
from compressor.throughput.hardware import describe, versions

_MINIMUM = {"torch": (2, 11), "transformers": (5, 17)}


@dataclass(frozen=True)
class Diagnosis:
    """The environment; each of `problems` is a sentence that says what to do."""

    versions: dict[str, str]
    hardware: dict[str, str]
    providers: dict[str, str]
    problems: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def diagnose() -> Diagnosis:
    """Look at the installed packages and try the execution providers."""
    providers, unusable = _providers()
    return Diagnosis(
        versions(), describe(), providers, problems=[*_clashes(), *_too_old(), *unusable]
    )


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
    """Whether a model runs on each device. One is opened, since a listed provider may not work."""
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
