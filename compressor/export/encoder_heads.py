"""Graphs of encoders for tasks whose heads need more than logits: `EncoderGraphs` of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from compressor.export.activation_ranges import Array
from compressor.export.encoder import EncoderGraph, EncoderGraphs
from compressor.export.task_graphs import Network
from compressor.model.sentence_head import head_of, write_layout
from compressor.model.sentence_settings import activation_of
from compressor.runtime.embedder import Embedder, unit


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

    def write_optimum(self, network: Network, directory: Path) -> None:
        graph = _StartsAndEnds(network.model.eval())
        self.write_graph(network, directory, graph, self.optimum_outputs)


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

    def write_optimum(self, network: Network, directory: Path) -> None:
        graph = EncoderGraph(network.model.eval(), *self.optimum_outputs)
        self.write_graph(network, directory, graph, self.optimum_outputs)
        checkpoint = network.checkpoint
        tokens = checkpoint.max_source_tokens
        write_layout(network.model, tokens, checkpoint.directory, directory)
