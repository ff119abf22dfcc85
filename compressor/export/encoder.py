"""Encoders with a head: one graph from texts to logits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from compressor.export import graphs
from compressor.export.attention import additive_mask, encoder_form, graph_attention
from compressor.export.for_cuda import CudaForm, write_packed
from compressor.export.fused import fuse
from compressor.export.graphs import BATCH, SOURCE
from compressor.export.int8 import Array, Observed
from compressor.export.task_graphs import Batches, Network, TaskGraphs
from compressor.export.verify import Compared, Expected, Spooled, logit_check, relative_difference
from compressor.model.sentence_head import head_of, write_layout
from compressor.model.sentence_settings import activation_of
from compressor.results import Check
from compressor.runtime.scores import Embedder, unit
from compressor.runtime.session import open_session
from compressor.tasks.encoder import EncoderTask

MODEL = "model.onnx"


class EncoderGraph(nn.Module):
    """An encoder with its head, which returns one of the model's outputs."""

    def __init__(self, model: nn.Module, output: str = "logits") -> None:
        super().__init__()
        self.model, self.output = model, output
        self.additive = encoder_form(model).additive

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        extra = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        mask = additive_mask(attention_mask) if self.additive else attention_mask
        outputs = self.model(input_ids=input_ids, attention_mask=mask, **extra)
        output: Tensor = outputs[self.output]
        return output


class EncoderGraphs(TaskGraphs):
    """One graph, `model`."""

    task: EncoderTask
    optimum_outputs: ClassVar[tuple[str, ...]] = ("logits",)  # in the layout of optimum
    cuda_forms: ClassVar[Mapping[str, CudaForm]] = {"model": CudaForm(fuse, write_packed)}

    def write(
        self, network: Network, directory: Path, skip: Collection[str] = ()
    ) -> dict[str, str]:
        self._write_graph(network, directory, EncoderGraph(network.model.eval()), ["logits"])
        return {"model": MODEL}

    def _write_graph(
        self, network: Network, directory: Path, graph: nn.Module, outputs: Sequence[str]
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        names = list(network.checkpoint.entry.inputs)
        # The tracer treats sizes of 0 and 1 as fixed.
        example = tuple(torch.ones(2, 5, dtype=torch.long) for _ in names)
        shapes = {name: {0: BATCH, 1: SOURCE} for name in names}
        with graph_attention(network.model, network.checkpoint.layers, network.mask):
            graphs.export_graph(graph, example, names, list(outputs), shapes, directory / MODEL)

    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        labels = self.task.label_names(network.model.config)
        return {} if labels is None else {"labels": labels}

    @torch.no_grad()
    def expect(self, model: nn.Module, directory: Path, batches: Batches) -> list[Expected]:
        return [
            Expected(
                {name: value.numpy() for name, value in batch.items()},
                Spooled(model(**batch).logits.numpy()),
            )
            for batch in batches
        ]

    def verify(self, expected: Sequence[Expected], runtime: Any) -> list[Check]:
        compared = self.compare(expected, runtime)
        return [logit_check(compared.differences, runtime.ran_by)]

    def compare(self, expected: Sequence[Expected], runtime: Any) -> Compared:
        differences: list[float] = []
        same: list[bool] = []
        for batch in expected:
            wanted, actual = batch.logits.read(), runtime.run(batch.inputs)
            differences.append(relative_difference(actual, wanted))
            real = batch.inputs["attention_mask"]
            read = (self.read(runtime, logits, real) for logits in (actual, wanted))
            same += self.task.same_answers(*read)
        return Compared(differences, same, self.task.answers)

    def read(self, runtime: Any, logits: Array, attention_mask: Array) -> Array:
        """The part of a padded batch's logits from which an opened artifact reads predictions."""
        return self.task.read_logits(logits, attention_mask)

    def observe(
        self, directory: Path, artifact: Any, batches: Sequence[Mapping[str, Array]]
    ) -> list[Observed]:
        model = Observed(directory / MODEL)
        for batch in batches:
            model.run(batch)
        return [model]

    @torch.no_grad()
    def export_optimum(self, network: Network, directory: Path, batches: Batches) -> list[Check]:
        model, outputs = network.model.eval(), self.optimum_outputs
        self._write_graph(network, directory, self.optimum_graph(model), outputs)
        # A plain session, as in optimum: this layout has no `graphs.json` for the runtime.
        session = open_session(directory / MODEL)
        differences = []
        for batch in batches:
            feeds = {value.name: batch[value.name].numpy() for value in session.get_inputs()}
            expected = model(**batch)
            for name, actual in zip(outputs, session.run(outputs, feeds), strict=True):
                differences.append(relative_difference(actual, expected[name].numpy()))
        return [logit_check(differences)]

    def optimum_graph(self, model: nn.Module) -> nn.Module:
        """A module that returns `optimum_outputs`."""
        return EncoderGraph(model, *self.optimum_outputs)


class RegressionGraphs(EncoderGraphs):
    """One number per row."""

    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        return {"activation": activation_of(network.model.config)}


class RerankingGraphs(EncoderGraphs):
    """One logit per row, or those of two classes."""

    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        config: Any = network.model.config
        return {"classes": config.num_labels, "activation": activation_of(config)}


class _StartsAndEnds(nn.Module):
    """Starts and ends as two outputs, as optimum has them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.both = EncoderGraph(model)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = self.both(input_ids, attention_mask, token_type_ids)
        return logits[..., 0], logits[..., 1]


class QuestionAnsweringGraphs(EncoderGraphs):
    """Logits [rows, tokens, 2] of starts and ends."""

    optimum_outputs = ("start_logits", "end_logits")

    def optimum_graph(self, model: nn.Module) -> nn.Module:
        return _StartsAndEnds(model)


class EmbeddingGraphs(EncoderGraphs):
    """Embeddings as `logits`, after pooling and normalization.

    In optimum's layout the graph's outputs are token vectors, and sentence-transformers, which
    loads it as its ONNX backend, applies pooling and normalization.
    """

    optimum_outputs = ("last_hidden_state",)

    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        head = head_of(network.model)
        return {
            "width": head.width,
            "similarity": head.settings.similarity,
            "prompts": head.settings.prompts,
            "default_prompt": head.settings.default_prompt,
        }

    def read(self, runtime: Embedder, logits: Array, attention_mask: Array) -> Array:
        return unit(logits) if runtime.artifact.similarity == "cosine" else logits

    def export_optimum(self, network: Network, directory: Path, batches: Batches) -> list[Check]:
        checks: list[Check] = super().export_optimum(network, directory, batches)
        checkpoint = network.checkpoint
        tokens = checkpoint.max_source_tokens
        write_layout(network.model, tokens, checkpoint.directory, directory)
        return checks
