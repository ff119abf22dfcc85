"""Libraries that run what an artifact holds: one class each, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from compressor.errors import UsageError, did_you_mean
from compressor.runtime.artifact import Artifact
from compressor.runtime.engines.engine import Engine

DEFAULT = "onnxruntime"
AUTO = "auto"
ENGINES = {
    DEFAULT: "compressor.runtime.engines.onnxruntime:OnnxRuntime",
    "openvino": "compressor.runtime.engines.openvino:OpenVino",
    "ctranslate2": "compressor.runtime.engines.ctranslate2:CTranslate2",
    "pytorch": "compressor.runtime.engines.pytorch:PyTorch",
    "pytorch-compiled": "compressor.runtime.engines.pytorch:CompiledPyTorch",
}


def engine_class(name: str) -> type[Engine]:
    """The engine of this name; UsageError with a list of all for another name."""
    if name not in ENGINES:
        raise UsageError(
            f"there is no engine {name!r}; choose from {', '.join(ENGINES)}"
            f"{did_you_mean(name, ENGINES)}",
            id="engine-unknown",
        )
    module, _, attribute = ENGINES[name].partition(":")
    engine: type[Engine] = getattr(import_module(module), attribute)
    return engine


def engine_for(name: str, kind: str) -> type[Engine]:
    """The engine of this name, for a kind of model: `encoder` or `encoder-decoder`.

    Raises:
        UsageError: an unknown name, or an engine that does not run such models.
    """
    engine = engine_class(name)
    if kind not in engine.kinds:
        others = [other for other in ENGINES if kind in engine_class(other).kinds]
        raise UsageError(
            f"the engine {name} runs no {kind}s; use {' or '.join(others)}",
            id="engine-not-for-task",
        )
    return engine


def choose_engine(
    name: str, kind: str, artifact: Artifact, precision: str | None, device: str
) -> type[Engine]:
    """As `engine_for`; `auto` is the engine that the artifact records as the fastest.

    It was measured when the artifact was made, on the CPU, with the same precision (None: the
    default one): see docs/engines.md. Without a record, and on CUDA, it is onnxruntime.
    """
    if name == AUTO:
        fastest = {} if device == "cuda" else artifact.fastest_engines or {}
        name = fastest.get(precision or artifact.default_precision, DEFAULT)
    return engine_for(name, kind)
