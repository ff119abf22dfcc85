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
from compressor.runtime.capture import Captured
from compressor.runtime.generation import Generation
from compressor.runtime.session import import_package, require_device
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
        """Generate the answers to one padded batch.

        Args:
            batch: `input_ids` and `attention_mask`, [rows, source].
            settings: how to decode, with the ids of the tokenizer.

        Returns:
            Ids without the start token, up to and including the end token where there is one.
        """


@dataclass(frozen=True)
class Setup:
    """An artifact for an engine to open, and how.

    Args:
        directory: of the artifact.
        artifact: its description.
        precision: that the engine has for it.
        device: `cpu` or `cuda`.
        threads: within an operation; None leaves the choice to the engine.
        workers: how many threads will run it at the same time.
        cache: directory for compiled models, of engines that compile; None: they are not kept.
        cuda_graphs: whether small batches may run as captured CUDA graphs.
    """

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
    """Base of the libraries that run what an artifact holds, opened for one artifact.

    A subclass answers in its class variables and class methods what a run asks before it opens
    anything. It is one of `EncoderEngine`, `DecoderEngine` and `TranslatorEngine`, or two of them,
    by the kinds of models it runs.

    Args:
        setup: what to open.
    """

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
        """Import the library.

        Raises:
            EnvironmentProblem: it is not installed, or its version is not one that was tested.
        """
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
        """Version of the library; errors are those of `library`."""
        return str(cls.library().__version__).split("-")[0]

    @classmethod
    def describe(cls, has_gpu: bool) -> str:
        """Version and kinds of models, or why the engine is absent, for `compress doctor`.

        Args:
            has_gpu: whether the machine has an NVIDIA GPU.
        """
        try:
            return f"{cls.version()}, for {' and '.join(f'{kind}s' for kind in cls.kinds)}"
        except CompressError as error:
            return f"absent: {error}"

    @classmethod
    def choose_device(cls, device: str, precisions: Sequence[str] = ()) -> str:
        """Choose the device to run on; here the CPU.

        Args:
            device: its name; `auto` is the best that the engine runs on.
            precisions: of the graphs to run.

        Raises:
            UsageError: an unknown device, or one that the engine does not run on.
            EnvironmentProblem: a device was named that is not usable.
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
        """The precision where none is named: the artifact's default, or else float32."""
        return BASE

    @classmethod
    @abstractmethod
    def precisions(cls, directory: Path, artifact: Artifact) -> list[str]:
        """The precisions in which the engine can run an artifact on this machine, float32 first.

        Args:
            directory: of the artifact.
            artifact: its description.

        Raises:
            EnvironmentProblem: see `library`.
            UsageError: the artifact has nothing that the engine could open.
        """

    @classmethod
    def measured(cls, directory: Path, artifact: Artifact, device: str) -> list[str]:
        """The precisions in which a run on a device measures an artifact."""
        return cls.precisions(directory, artifact)

    @classmethod
    def files(cls, directory: Path, artifact: Artifact, precision: str) -> list[str]:
        """Files that are opened for a precision.

        Args:
            directory: of the artifact.
            artifact: its description.
            precision: one of `precisions`.

        Returns:
            Paths from the artifact's directory.

        Raises:
            UsageError: the artifact has nothing that the engine could open.
        """
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
        """Choose the precision to run.

        Args:
            directory: of the artifact.
            artifact: its description.
            name: None for the default one.
            device: that it runs on.

        Raises:
            UsageError: the engine does not compute in that precision here, or not on the device.
            EnvironmentProblem: the library is missing, or the graphs are made for another device.
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


class EncoderEngine(Engine):
    """An engine that runs encoders."""

    @abstractmethod
    def encoder(self) -> LogitsModel:
        """Open the artifact of an encoder with a head.

        Returns:
            A function from a padded batch to logits.

        Raises:
            InputError: the artifact is damaged.
        """


class DecoderEngine(Engine):
    """An engine that runs the steps of an encoder-decoder, for the search of this package."""

    @abstractmethod
    def decoder(self, candidates: bool = True) -> Any:
        """Open the artifact of an encoder-decoder.

        Args:
            candidates: whether batches score their candidates alone, where the artifact has some.

        Returns:
            A `DecoderGraph`.

        Raises:
            InputError: the artifact is damaged.
        """


class TranslatorEngine(Engine):
    """An engine that runs an encoder-decoder with a search of its own."""

    @abstractmethod
    def translator(self) -> TokenGenerator:
        """Open the artifact of an encoder-decoder.

        Raises:
            InputError: the artifact is damaged.
        """


def engine_class(name: str) -> type[Engine]:
    """The engine of a name.

    Raises:
        UsageError: an unknown name; the message lists the engines.
    """
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
    """The engine of a name, for a kind of model.

    Args:
        name: in `ENGINES`.
        kind: `encoder` or `encoder-decoder`.

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
    """The engine of a name, for an artifact.

    Args:
        name: in `ENGINES`; `auto` is the engine that the artifact records as the fastest on the CPU
            in the same precision. Without a record, and on CUDA, it is onnxruntime.
        kind: `encoder` or `encoder-decoder`.
        artifact: the description.
        precision: that was asked for; None: the artifact's default one.
        device: that was asked for.

    Raises:
        UsageError: an unknown name, or an engine that does not run such models.
    """
    if name == AUTO:
        fastest = {} if device == "cuda" else artifact.fastest_engines or {}
        name = fastest.get(precision or artifact.default_precision, ONNXRUNTIME)
    return engine_for(name, kind)
