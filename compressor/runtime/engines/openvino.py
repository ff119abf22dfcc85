"""OpenVINO: the float32 graphs of encoders on the CPU, computed in float32 or in bfloat16."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from compressor.errors import InputError
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact
from compressor.runtime.batching import Batch, Floats
from compressor.runtime.engines import EncoderEngine, LogitsModel
from compressor.runtime.opening import unusable
from compressor.storage.names import BASE

_REPORTING = "openvino_telemetry"
_HINTS = {BASE: "f32", "bf16": "bf16"}  # precision -> its name there


class OpenVino(EncoderEngine):
    """The engine for encoders on processors with bfloat16.

    It does not know the operators of the int8 graphs, which are onnxruntime's own.
    """

    name = package = "openvino"
    versions = ((2026, 4), (2027, 0))
    kinds = ("encoder",)  # a decoder's step takes it 2 to 4 times as long as onnxruntime
    compiles = True
    provider = "OpenVINO CPU"

    @classmethod
    def library(cls) -> Any:
        """Import OpenVINO without what would report the import to a web service."""
        if "openvino" in sys.modules:
            return super().library()
        # Importing it reports that to a web service, if its package for that can be imported.
        reporting = sys.modules.pop(_REPORTING, None)
        sys.modules[_REPORTING] = None  # type: ignore[assignment]
        try:
            return super().library()
        finally:
            del sys.modules[_REPORTING]
            if reporting is not None:
                sys.modules[_REPORTING] = reporting

    @classmethod
    def precisions(cls, directory: Path, artifact: Artifact) -> list[str]:
        """Float32, and bfloat16 where the processor computes in it."""
        can = cls.library().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return [BASE, "bf16"] if "BF16" in can else [BASE]

    @classmethod
    def files(cls, directory: Path, artifact: Artifact, precision: str) -> list[str]:
        """The float32 files, whichever precision they are computed in."""
        return artifact.used_files(BASE)

    def encoder(self) -> LogitsModel:
        """Compile the float32 graph for the CPU, in the precision of the setup."""
        compiled = self._compiled()
        names = [port.get_any_name() for port in compiled.inputs]
        requests = threading.local()  # each thread has a request of its own

        def run(batch: Batch) -> Floats:
            if not hasattr(requests, "request"):
                requests.request = compiled.create_infer_request()
            try:
                # The request reads the arrays where they are, and its outputs are copied.
                outputs = requests.request.infer({x: batch[x] for x in names}, share_inputs=True)
            except RuntimeError as error:
                raise unusable(self.setup.directory, error) from error
            logits: Floats = outputs["logits"]
            return logits.astype(np.float32, copy=False)

        return run

    def _compiled(self) -> Any:
        setup, core = self.setup, self.library().Core()
        path = setup.directory / GRAPH_DIRECTORY / setup.artifact.file("model", BASE)
        hint = _HINTS[setup.precision]
        # Named also for float32: where it can, OpenVINO takes bfloat16 by itself.
        config: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": hint,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": setup.workers,  # all threads of a stream work on one batch
        }
        if setup.threads is not None:
            config["INFERENCE_NUM_THREADS"] = setup.threads * setup.workers
        if setup.cache is not None:
            # It takes a model that was kept in another precision for one in this, and then computes
            # NaN or crashes. Other weights and other versions of OpenVINO it tells apart itself.
            kept = Path(setup.cache) / f"openvino-{setup.precision}"
            config["CACHE_DIR"] = str(kept)
            try:
                kept.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"cannot make the directory {kept} for compiled models: {error.strerror}; "
                    "choose another one",
                    id="cache-not-writable",
                ) from error
        try:
            # On AMX processors it gives the thread that compiles a stack for signals, and takes it
            # back when the model goes; of several models, one that no longer exists. The next
            # signal, Ctrl-C too, would be a crash. In a thread of its own there is none before.
            with ThreadPoolExecutor(1) as thread:
                compiled = thread.submit(
                    lambda: core.compile_model(core.read_model(str(path)), "CPU", config)
                ).result()
        except RuntimeError as error:
            raise unusable(path, error) from error
        # The hint may be ignored, and results are reported with a precision.
        assert compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == hint
        return compiled
