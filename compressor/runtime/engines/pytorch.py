"""PyTorch with transformers: what most people serve models with, to compare with.

Only dense models: they are what a smaller model has to be faster than. On the CPU they compute in
float32, on a GPU in float16, with PyTorch's own fused attention; encoder-decoders search with
transformers' `generate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from compressor.errors import EnvironmentProblem, UsageError
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact
from compressor.runtime.batching import Batch
from compressor.runtime.engines.engine import BASE, Engine, LogitsModel, Setup
from compressor.runtime.generation import Generation
from compressor.runtime.session import choose_device
from compressor.storage.input_files import read_json

PYTORCH_DIRECTORY = "pytorch"  # of a dense artifact: its checkpoint
_COMPUTED = {BASE: "float32", "fp16": "float16"}


class PyTorch(Engine):
    """A dense model as transformers opens it."""

    name = "pytorch"
    package = "torch"
    versions = ((2, 11), (3, 0))
    kinds: ClassVar[tuple[str, ...]] = ("encoder", "encoder-decoder")
    reads_graphs = False
    dense_only = True
    compiled: ClassVar[bool] = False

    @classmethod
    def library(cls) -> Any:
        for package in ("transformers", cls.package):
            try:
                library = import_module(package)
            except ImportError as error:
                raise EnvironmentProblem(
                    f"the package {package} is not installed, which the engine {cls.name} needs; "
                    f"install it with `pip install {package}`, or use another engine",
                    id=f"{package}-not-installed",
                ) from error
        return library

    @classmethod
    def choose_device(cls, device: str, precisions: Sequence[str] = ()) -> str:
        chosen = choose_device(device, precisions)
        if chosen == "cuda" and not cls.library().cuda.is_available():
            if device == "auto":
                return "cpu"
            raise EnvironmentProblem(
                f"PyTorch {cls.version()} finds no CUDA device; install a build of it for CUDA, or "
                f"leave the engine {cls.name} out",
                id="pytorch-without-cuda",
            )
        return chosen

    @classmethod
    def precisions(cls, directory: Path, artifact: Artifact) -> list[str]:
        return list(_COMPUTED) if cls.library().cuda.is_available() else [BASE]

    @classmethod
    def measured(cls, directory: Path, artifact: Artifact, device: str) -> list[str]:
        return ["fp16"] if device == "cuda" else [BASE]

    @classmethod
    def files(cls, directory: Path, artifact: Artifact, precision: str) -> list[str]:
        checkpoint = directory / PYTORCH_DIRECTORY
        if not checkpoint.exists():
            raise UsageError(
                f"{directory} has no {PYTORCH_DIRECTORY}/ for the engine {cls.name}, which is for "
                f"dense models; export one with --engines onnxruntime,{cls.name}, or use another "
                "engine",
                id="engine-not-in-artifact",
            )
        names = sorted(f"{PYTORCH_DIRECTORY}/{path.name}" for path in checkpoint.iterdir())
        return [f"{GRAPH_DIRECTORY}/{artifact.tokenizer}", *names]

    @property
    def provider(self) -> str:
        return f"PyTorch {'CUDA' if self.setup.device == 'cuda' else 'CPU'}"

    def encoder(self) -> LogitsModel:
        torch, model = self._model()

        def run(batch: Batch) -> NDArray[np.float32]:
            inputs = _to_torch(torch, batch, self.setup.artifact.inputs, self.setup.device)
            with torch.inference_mode():
                logits: NDArray[np.float32] = model(**inputs).logits.float().cpu().numpy()
            return logits

        return run

    def translator(self) -> _Search:
        return _Search(*self._model(), self.setup)

    def _model(self) -> tuple[Any, Any]:
        """PyTorch, and the model on the device."""
        torch, transformers, setup = self.library(), import_module("transformers"), self.setup
        directory = setup.directory / PYTORCH_DIRECTORY
        (kind,) = read_json(directory / "config.json")["architectures"]
        if setup.threads is not None and setup.device == "cpu":
            torch.set_num_threads(setup.threads * setup.workers)
        dtype = getattr(torch, _COMPUTED[setup.precision])
        model = getattr(transformers, kind).from_pretrained(directory, dtype=dtype)
        model.to(setup.device).eval()
        return torch, torch.compile(model, dynamic=True) if self.compiled else model


class CompiledPyTorch(PyTorch):
    """The same through `torch.compile`; `generate` of encoder-decoders gains little by it."""

    name = "pytorch-compiled"
    kinds = ("encoder",)
    compiled = True


class _Search:
    """A `TokenGenerator`: transformers' `generate`, with the artifact's settings."""

    def __init__(self, torch: Any, model: Any, setup: Setup) -> None:
        self._torch, self._model, self._device = torch, model, setup.device
        model.generation_config.max_length = None  # the limit is a number of new tokens

    def generate(self, batch: Batch, settings: Generation) -> list[list[int]]:
        inputs = _to_torch(self._torch, batch, ["input_ids", "attention_mask"], self._device)
        ends, limit = settings.eos_token_id, settings.limit
        options: dict[str, Any] = {"min_length": settings.min_length}
        if not ends:  # every row gets as long as that, whatever its tokens are
            options = {"min_new_tokens": limit, "forced_eos_token_id": None}
        with self._torch.inference_mode():
            generated = self._model.generate(
                **inputs,
                **options,
                max_new_tokens=limit,
                do_sample=False,
                num_beams=settings.num_beams,
                length_penalty=settings.length_penalty,
                early_stopping=settings.early_stopping,
                forced_bos_token_id=settings.forced_bos_token_id,
                decoder_start_token_id=settings.decoder_start_token_id,
            )
        rows: list[list[int]] = generated[:, 1:].tolist()
        lasts = [next((i for i, t in enumerate(row) if t in ends), limit) for row in rows]
        return [row[: last + 1] for row, last in zip(rows, lasts, strict=True)]


def _to_torch(torch: Any, batch: Batch, names: Sequence[str], device: str) -> dict[str, Any]:
    return {name: torch.from_numpy(batch[name]).to(device) for name in names}
