"""The libraries that run what an artifact holds, each a class of one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from compressor.errors import CompressError, EnvironmentProblem, UsageError, did_you_mean
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact
from compressor.runtime.batching import Batch, Floats
from compressor.runtime.generation import Generation
from compressor.runtime.session import Captured, import_package, require_device
from compressor.storage.names import AUTO, BASE, ONNXRUNTIME

ENGINES = {
    ONNXRUNTIME: "compressor.runtime.engines.onnxruntime:OnnxRuntime",
    "openvino": "compressor.runtime.engines.openvino:OpenVino",
    "ctranslate2": "compressor.runtime.engines.ctranslate2:CTranslate2",
    "pytorch": "compressor.runtime.engines.pytorch:PyTorch",
    "pytorch-compiled": "compressor.runtime.engines.pytorch:CompiledPyTorch",
}

# A padded batch -> logits [rows, outputs] or [rows, tokens, outputs]; threads may share it.
LogitsModel = Callable[[Batch], Floats]


class TokenGenerator(Protocol):
    """An opened encoder-decoder model with a search of its own."""

    def generate(self, batch: Batch, settings: Generation) -> list[list[int]]:
        """As `Generator.generate`; the settings have the ids of the tokenizer."""


@dataclass(frozen=True)
class Setup:
    """An artifact for an engine to open, and how; arguments of `Runtime`."""

    directory: Path
    artifact: Artifact
    precision: str
    device: str = "cpu"
    threads: int | None = None
    workers: int = 1
    cache: str | Path | None = None
    cuda_graphs: bool = True

    @property
    def captures(self) -> bool:
        """Whether to capture CUDA graphs: not with several threads, which disturb each other."""
        return self.device == "cuda" and self.cuda_graphs and self.workers == 1


class Engine(ABC):
    """A library that runs what an artifact holds, opened for one artifact."""

    name: ClassVar[str]  # on the command line, in results and in the artifact
    package: ClassVar[str]
    versions: ClassVar[tuple[tuple[int, int], tuple[int, int]]]  # the first, the first too new one
    kinds: ClassVar[tuple[str, ...]]  # of models that it runs: `encoder`, `encoder-decoder`
    folder: ClassVar[str] = ""  # of a model in a format of its own; else it reads the graphs
    compiles: ClassVar[bool] = False  # models, which `Setup.cache` can keep
    dense_only: ClassVar[bool] = False  # it serves comparison alone, and runs no pruned models
    provider: str  # the library's part that computes on the device

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.captured: Sequence[Captured] = ()

    @classmethod
    def library(cls) -> Any:
        """The library; EnvironmentProblem where it is missing, or of a version without tests."""
        least, most = (".".join(map(str, version)) for version in cls.versions)
        advice = f"install it with `pip install '{cls.package}>={least},<{most}'`"
        library = import_package(cls.package, advice)
        # OpenVINO's version goes on with a build number behind a dash.
        numbers = tuple(int(part) for part in library.__version__.split("-")[0].split(".")[:2])
        if not cls.versions[0] <= numbers < cls.versions[1]:
            raise EnvironmentProblem(
                f"{cls.package} {library.__version__} is installed, and {least} or newer, but "
                f"older than {most}, is needed; {advice}",
                id="engine-version",
            )
        return library

    @classmethod
    def version(cls) -> str:
        return str(cls.library().__version__).split("-")[0]

    @classmethod
    def describe(cls, has_gpu: bool) -> str:
        """Version and models, or why it is absent, for `compress doctor`."""
        try:
            return f"{cls.version()}, for {' and '.join(f'{kind}s' for kind in cls.kinds)}"
        except CompressError as error:
            return f"absent: {error}"

    @classmethod
    def choose_device(cls, device: str, precisions: Sequence[str] = ()) -> str:
        """The device to run on, `auto` the best; UsageError or EnvironmentProblem for others."""
        if device in ("auto", "cpu"):
            return "cpu"
        require_device(device)
        raise UsageError(
            f"the engine {cls.name} runs on the CPU here, not on {device!r}; use device 'cpu', or "
            "the engine onnxruntime",
            id="device-not-of-engine",
        )

    @classmethod
    def default_precision(cls, artifact: Artifact) -> str:
        """Where none is named: the artifact's default one if it computes in that, or float32."""
        return BASE

    @classmethod
    @abstractmethod
    def precisions(cls, directory: Path, artifact: Artifact) -> list[str]:
        """In which it can run an artifact here, float32 first; errors of `library` and `files`."""

    @classmethod
    def measured(cls, directory: Path, artifact: Artifact, device: str) -> list[str]:
        """The precisions in which a run on a device measures an artifact."""
        return cls.precisions(directory, artifact)

    @classmethod
    def files(cls, directory: Path, artifact: Artifact, precision: str) -> list[str]:
        """Paths from the artifact that a precision opens; UsageError where there are none."""
        if not cls.folder:
            return artifact.used_files(precision)
        folder = directory / cls.folder
        if not folder.exists():
            model = "a dense model" if cls.dense_only else "the model"
            raise UsageError(
                f"{directory} has no {cls.folder}/ for the engine {cls.name}; export {model} with "
                f"--engines onnxruntime,{cls.name}, or use another engine",
                id="engine-not-in-artifact",
            )
        names = sorted(f"{cls.folder}/{path.name}" for path in folder.iterdir())
        return [f"{GRAPH_DIRECTORY}/{artifact.tokenizer}", *names]

    @classmethod
    def precision(
        cls, directory: Path, artifact: Artifact, name: str | None, device: str = "cpu"
    ) -> str:
        """The precision to run on a device, None the default one; UsageError for others."""
        cls.choose_device(device)
        chosen = name or cls.default_precision(artifact)
        available = cls.precisions(directory, artifact)
        if chosen not in available:
            raise UsageError(
                f"the engine {cls.name} does not compute {directory} in {chosen} here; use "
                f"{' or '.join(available)}, or the engine onnxruntime, which has "
                f"{', '.join(sorted(artifact.precisions))}",
                id="precision-not-of-engine",
            )
        return chosen

    def encoder(self) -> LogitsModel:
        """Open the artifact of an encoder with a head; InputError for a damaged one."""
        raise NotImplementedError

    def translator(self) -> TokenGenerator | None:
        """Open an encoder-decoder model, as `encoder`; None where `decoder` does."""
        return None

    def decoder(self) -> Any:
        """Open an encoder-decoder model for the search of this package: a `DecoderGraph`."""
        raise NotImplementedError


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
    """As `engine_class`; UsageError also for one that does not run a kind of model."""
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
    """As `engine_for`; `auto` is the engine that the artifact records as the fastest on the CPU.

    With the same precision (None: the default one). Without a record, and on CUDA, onnxruntime.
    """
    if name == AUTO:
        fastest = {} if device == "cuda" else artifact.fastest_engines or {}
        name = fastest.get(precision or artifact.default_precision, ONNXRUNTIME)
    return engine_for(name, kind)
