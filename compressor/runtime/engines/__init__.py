"""The libraries that run what an artifact holds, each a class of one interface: no other code
depends on which one it is. A module of one is imported when it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from compressor.errors import CompressError, EnvironmentProblem, UsageError, did_you_mean
from compressor.runtime.artifact import Artifact, Generation
from compressor.runtime.batching import Batch
from compressor.runtime.cuda_graphs import Captured
from compressor.runtime.session import require_device

DEFAULT, AUTO = "onnxruntime", "auto"
ENGINES = {
    DEFAULT: "compressor.runtime.engines.onnxruntime:OnnxRuntime",
    "openvino": "compressor.runtime.engines.openvino:OpenVino",
    "ctranslate2": "compressor.runtime.engines.ctranslate2:CTranslate2",
    "pytorch": "compressor.runtime.engines.pytorch:PyTorch",
    "pytorch-compiled": "compressor.runtime.engines.pytorch:CompiledPyTorch",
}
BASE = "fp32"

# From a padded batch to its logits [rows, outputs] or [rows, tokens, outputs]; several threads may
# call it at the same time.
LogitsModel = Callable[[Batch], NDArray[np.float32]]


class TokenGenerator(Protocol):
    """An opened encoder-decoder model with a search of its own."""

    def generate(self, batch: Batch, settings: Generation) -> list[list[int]]:
        """Token ids of the answers to a padded batch.

        The batch has `input_ids` and `attention_mask` [rows, source], the settings the ids of the
        tokenizer. Answers lack the start token, and go up to and including the end token where
        there is one.
        """


@dataclass(frozen=True)
class Setup:
    """An artifact for an engine to open, and how; arguments of `Runtime`.

    `cache` is for compiled models, of engines that compile.
    """

    directory: Path
    artifact: Artifact
    precision: str
    device: str = "cpu"
    threads: int | None = None
    workers: int = 1
    cache: Path | None = None
    cuda_graphs: bool = True


class Engine(ABC):
    """A library that runs what an artifact holds, opened for one artifact.

    Args:
        name: on the command line, in results and in the artifact.
        package: that has to be installed, and the first and the first too new version of it.
        kinds: of models that it runs: `encoder`, `encoder-decoder`.
        compiles: whether compiled models can be kept in a directory.
        reads_graphs: whether it runs the graphs; else it reads a model in a format of its own.
        dense_only: whether it serves comparison alone: it runs dense models, and no others.
        provider: the library's part that computes on the device.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    versions: ClassVar[tuple[tuple[int, int], tuple[int, int]]]
    kinds: ClassVar[tuple[str, ...]]
    compiles: ClassVar[bool] = False
    reads_graphs: ClassVar[bool] = True
    dense_only: ClassVar[bool] = False
    provider: str

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        # The shapes of batches that have run as captured CUDA graphs.
        self.captured: Sequence[Captured] = ()

    @classmethod
    def library(cls) -> Any:
        """The library; EnvironmentProblem where it is missing, or of a version without tests."""
        least, most = (".".join(map(str, version)) for version in cls.versions)
        advice = f"install it with `pip install '{cls.package}>={least},<{most}'`"
        try:
            library = import_module(cls.package)
        except ImportError as error:
            raise EnvironmentProblem(
                f"the package {cls.package} is not installed; {advice}",
                id=f"{cls.package}-not-installed",
            ) from error
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
        """Version of the library; errors are those of `library`."""
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
        """The device to run on; `auto` is the best that it runs on here.

        UsageError for one that it does not run on, EnvironmentProblem for one that is not usable.
        """
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
    @abstractmethod
    def files(cls, directory: Path, artifact: Artifact, precision: str) -> list[str]:
        """Paths from the artifact that a precision opens; UsageError where there are none."""

    @classmethod
    def precision(
        cls, directory: Path, artifact: Artifact, name: str | None, device: str = "cpu"
    ) -> str:
        """The precision to run on a device; None stands for the default one.

        UsageError where it does not compute in that here; else errors of `library`.
        """
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
        """Open an encoder-decoder model, as `encoder`; None where this package searches itself."""
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
    """As `engine_class`; UsageError for one that does not run a kind of model, too."""
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
