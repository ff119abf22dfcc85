"""onnxruntime: every task, on the CPU and with CUDA, in all precisions that were exported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compressor.errors import EnvironmentProblem, UsageError
from compressor.runtime.artifact import CPU_ONLY, GRAPH_DIRECTORY, Artifact
from compressor.runtime.batching import Batch, Floats
from compressor.runtime.candidates import Candidates, read_table
from compressor.runtime.decoder import DecoderGraph
from compressor.runtime.device_decoder import DeviceGraph
from compressor.runtime.engines import DecoderEngine, EncoderEngine, LogitsModel, Setup
from compressor.runtime.fused_encoder import FusedEncoder
from compressor.runtime.graph_names import GATHER_CANDIDATES, LENGTHEN
from compressor.runtime.opening import open_output_tokens
from compressor.runtime.session import (
    PROVIDERS,
    choose_device,
    import_onnxruntime,
    open_session,
    run_errors,
)
from compressor.storage.names import ONNXRUNTIME

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxRuntime(EncoderEngine, DecoderEngine):
    """The engine that is always installed, and runs every artifact."""

    name = package = ONNXRUNTIME
    kinds = ("encoder", "encoder-decoder")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.provider = PROVIDERS.get(setup.device, "")  # `open_session` raises for others

    @classmethod
    def library(cls) -> Any:
        """Import onnxruntime, which is in two packages: no extra can choose between them."""
        return import_onnxruntime()  # whose two packages an extra cannot choose between

    @classmethod
    def choose_device(cls, device: str, precisions: Any = ()) -> str:
        """The CPU, or CUDA where that works."""
        return choose_device(device, precisions)

    @classmethod
    def default_precision(cls, artifact: Artifact) -> str:
        """The artifact's default precision."""
        return artifact.default_precision

    @classmethod
    def precisions(cls, directory: Path, artifact: Artifact) -> list[str]:
        """All precisions that were exported."""
        return list(artifact.precisions)

    @classmethod
    def precision(
        cls, directory: Path, artifact: Artifact, name: str | None, device: str = "cpu"
    ) -> str:
        """Choose the precision to run; opening refuses one that is not in the artifact.

        Raises:
            UsageError: the device has no kernels for it.
            EnvironmentProblem: the graphs are made for another device.
        """
        chosen = name or artifact.default_precision
        if device == "cuda" and chosen in CPU_ONLY:
            raise UsageError(
                f"{chosen} graphs are for the CPU; use device 'cpu', or another precision of "
                f"this artifact, which has {', '.join(sorted(artifact.precisions))}",
                id="precision-not-on-device",
            )
        made_for = artifact.only_device(chosen)
        if made_for not in (None, device):
            others = [x for x in sorted(artifact.precisions) if not artifact.only_device(x)]
            raise EnvironmentProblem(
                f"the {chosen} graphs of this artifact are made for {made_for} and do not run on "
                f"{device!r}; use device {made_for!r}, or precision {' or '.join(others)}",
                id="graphs-for-another-device",
            )
        return chosen

    def session(self, role: str, captures: bool = False) -> InferenceSession:
        """Open the graph with a role; `captures` as in `open_session`."""
        setup = self.setup
        file = setup.directory / GRAPH_DIRECTORY / setup.artifact.file(role, setup.precision)
        # Its one kernel for residual addition and layer normalization is slower on CPUs than the
        # two that it replaces: without it encoders run 1.05 to 1.25 times as fast in float32.
        without = ("SkipLayerNormFusion",) if setup.device == "cpu" else ()
        # A decoder's caches have many lengths, and its layers uneven numbers of heads.
        more = {"captures": captures, "plans": role != "decoder"}
        return open_session(file, setup.device, setup.threads, without=without, **more)

    def encoder(self) -> LogitsModel:
        """Open the graph `model`, or the graphs that are made for CUDA."""
        if self.setup.artifact.only_device(self.setup.precision) == "cuda":
            fused = FusedEncoder(self.session, self.setup)
            self.captured = fused.captured
            return fused.run
        session = self.session("model")
        names = [value.name for value in session.get_inputs()]

        def run(batch: Batch) -> Floats:
            with run_errors(self.setup.directory):
                logits: NDArray[Any] = session.run(["logits"], {x: batch[x] for x in names})[0]
            return logits.astype(np.float32, copy=False)

        return run

    def decoder(self, candidates: bool = True) -> DecoderGraph:
        """Open the graphs of the encoder and of a decoder's step."""
        setup = self.setup
        if LENGTHEN not in setup.artifact.precisions.get(setup.precision, ()):
            return DecoderGraph(self.session, setup, self._candidates() if candidates else None)
        graph = DeviceGraph(self.session, setup)
        self.captured = graph.captured
        return graph

    def _candidates(self) -> Candidates | None:
        """What the artifact has of candidates for the CPU, in its precision."""
        setup, artifact = self.setup, self.setup.artifact
        file = artifact.candidate_table(setup.precision)
        if file is None or setup.device != "cpu":
            return None
        every = len(open_output_tokens(setup.directory, artifact).ids)
        table = read_table(setup.directory / GRAPH_DIRECTORY / file, every)
        return Candidates(table, every, self.session(GATHER_CANDIDATES))
