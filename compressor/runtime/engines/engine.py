"""The interface of engines: no other code depends on which engine it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from compressor.errors import EnvironmentProblem, UsageError
from compressor.runtime.artifact import Artifact
from compressor.runtime.batching import Batch
from compressor.runtime.cuda_graphs import Captured
from compressor.runtime.generation import Generation
from compressor.runtime.session import require_device

BASE = "fp32"

# From a padded batch to its logits [rows, outputs] or [rows, tokens, outputs]; several threads may
# call it at the same time.
LogitsModel = Callable[[Batch], NDArray[np.float32]]


class TokenGenerator(Protocol):
    """An opened encoder-decoder model with a search of its own."""

    def generate(self, batch: Batch, settings: Generation) -> list[list[int]]:
        """Token ids of the answers to a padded batch.

        Args:
            batch: `input_ids` and `attention_mask`, [rows, source].
            settings: with the ids of the tokenizer.

        Returns:
            Ids without the start token, up to and including the end token where there is one.
        """


@dataclass(frozen=True)
class Setup:
    """An artifact for an engine to open, and how.

    Args:
        threads: threads within an operation; None leaves the choice to the engine.
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
    """

    name: ClassVar[str]
    package: ClassVar[str]
    versions: ClassVar[tuple[tuple[int, int], tuple[int, int]]]
    kinds: ClassVar[tuple[str, ...]]
    compiles: ClassVar[bool] = False
    reads_graphs: ClassVar[bool] = True
    dense_only: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

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
    def choose_device(cls, device: str, precisions: Sequence[str] = ()) -> str:
        """The device to run on; `auto` is the best that it runs on here.

        Raises:
            UsageError: an unknown device, or one that it does not run on.
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
        """The precision where none is named: float32, or the artifact's default one if the engine
        computes in that."""
        return BASE

    @classmethod
    @abstractmethod
    def precisions(cls, directory: Path, artifact: Artifact) -> list[str]:
        """The precisions in which it can run an artifact on this machine, float32 first.

        Errors are those of `library` and of `files`.
        """

    @classmethod
    def measured(cls, directory: Path, artifact: Artifact, device: str) -> list[str]:
        """The precisions in which a run on a device measures an artifact; those of `precisions`."""
        return cls.precisions(directory, artifact)

    @classmethod
    @abstractmethod
    def files(cls, directory: Path, artifact: Artifact, precision: str) -> list[str]:
        """Files that are opened for a precision, as paths from the artifact's directory.

        Raises:
            UsageError: the artifact has nothing that it could open.
        """

    @classmethod
    def precision(
        cls, directory: Path, artifact: Artifact, name: str | None, device: str = "cpu"
    ) -> str:
        """The precision to run on a device; None stands for the default one.

        Raises:
            UsageError: it does not compute in that precision here, or not on the device.
            EnvironmentProblem: as `library`.
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

    @property
    @abstractmethod
    def provider(self) -> str:
        """The library's part that computes on the device."""

    @property
    def captured(self) -> Sequence[Captured]:
        """The shapes of batches that have run as captured CUDA graphs."""
        return ()

    def encoder(self) -> LogitsModel:
        """Open the artifact of an encoder with a head; InputError for a damaged one."""
        raise NotImplementedError

    def translator(self) -> TokenGenerator | None:
        """Open an encoder-decoder model; InputError for a damaged one.

        None where the search is that of this package, over the artifact's graphs.
        """
        raise NotImplementedError
