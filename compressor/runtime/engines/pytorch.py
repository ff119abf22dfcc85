"""PyTorch with transformers: what most people serve dense models with, to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from compressor.errors import EnvironmentProblem
from compressor.runtime.artifact import Artifact
from compressor.runtime.batching import Batch, Floats
from compressor.runtime.engines import EncoderEngine, LogitsModel, Setup, TranslatorEngine
from compressor.runtime.generation import Generation
from compressor.runtime.session import choose_device, import_package
from compressor.storage.input_files import read_json
from compressor.storage.names import BASE

PYTORCH_DIRECTORY = "pytorch"  # of a dense artifact: its checkpoint
_COMPUTED = {BASE: "float32", "fp16": "float16"}  # the second on a GPU alone


class PyTorch(EncoderEngine, TranslatorEngine):
    """A dense model as transformers opens it, in float32, and in float16 on a GPU."""

    name = "pytorch"
    package = "torch"
    versions = ((2, 11), (3, 0))
    kinds: ClassVar[tuple[str, ...]] = ("encoder", "encoder-decoder")
    folder = PYTORCH_DIRECTORY
    dense_only = True
    compiled: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.provider = f"PyTorch {'CUDA' if setup.device == 'cuda' else 'CPU'}"

    @classmethod
    def library(cls) -> Any:
        """Import PyTorch; transformers must be there, too."""
        for package in ("transformers", cls.package):
            advice = f"install it with `pip install {package}`, or use another engine"
            library = import_package(package, f"the engine {cls.name} needs it; {advice}")
        return library

    @classmethod
    def describe(cls, has_gpu: bool) -> str:
        """Version and kinds of models, and why it does not compute on the GPU, if so."""
        said = super().describe(has_gpu)
        if not has_gpu or said.startswith("absent") or cls.library().cuda.is_available():
            return said
        why = f"it needs a driver for CUDA {cls.library().version.cuda} or newer"
        if cls.library().version.cuda is None:
            why = "this build is for CPUs; `pip install --force-reinstall torch` installs the other"
        return f"{said}, not on the GPU: {why}"

    @classmethod
    def choose_device(cls, device: str, precisions: Sequence[str] = ()) -> str:
        """The CPU, or CUDA where PyTorch finds it, too."""
        chosen = choose_device(device, precisions)
        if chosen == "cuda" and not cls.library().cuda.is_available():
            if device == "auto":
                return "cpu"
            raise EnvironmentProblem(
                f"PyTorch finds no CUDA device; install a build of it for CUDA, or leave the "
                f"engine {cls.name} out",
                id="pytorch-without-cuda",
            )
        return chosen

    @classmethod
    def precisions(cls, directory: Path, artifact: Artifact) -> list[str]:
        """Float32, and float16 where there is a GPU."""
        return list(_COMPUTED) if cls.library().cuda.is_available() else [BASE]

    @classmethod
    def measured(cls, directory: Path, artifact: Artifact, device: str) -> list[str]:
        """Float16 on a GPU, float32 elsewhere."""
        return ["fp16"] if device == "cuda" else [BASE]

    def encoder(self) -> LogitsModel:
        """Open the dense checkpoint of an encoder."""
        self._open()

        def run(batch: Batch) -> Floats:
            inputs = self._on_device(batch, self.setup.artifact.inputs)
            with self._torch.inference_mode():
                logits: Floats = self._model(**inputs).logits.float().cpu().numpy()
            return logits

        return run

    def translator(self) -> PyTorch:
        """Open the dense checkpoint of an encoder-decoder, whose search is that of transformers."""
        self._open()
        self._model.generation_config.max_length = None  # the limit is a number of new tokens
        return self

    def generate(self, batch: Batch, settings: Generation) -> list[list[int]]:
        """Generate the answers to one padded batch, see `TokenGenerator.generate`."""
        inputs = self._on_device(batch, ["input_ids", "attention_mask"])
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

    def _open(self) -> None:
        self._torch = torch = self.library()
        setup, transformers = self.setup, import_module("transformers")
        directory = setup.directory / PYTORCH_DIRECTORY
        (kind,) = read_json(directory / "config.json")["architectures"]
        if setup.threads is not None and setup.device == "cpu":
            torch.set_num_threads(setup.threads * setup.workers)
        dtype = getattr(torch, _COMPUTED[setup.precision])
        model = getattr(transformers, kind).from_pretrained(directory, dtype=dtype)
        model.to(setup.device).eval()
        self._model = torch.compile(model, dynamic=True) if self.compiled else model

    def _on_device(self, batch: Batch, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._torch.from_numpy(batch[name]).to(self.setup.device) for name in names}


class CompiledPyTorch(PyTorch):
    """A dense model through `torch.compile`; `generate` of encoder-decoders gains little by it."""

    name = "pytorch-compiled"
    kinds = ("encoder",)
    compiled = True
