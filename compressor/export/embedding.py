"""Sentence encoders: one graph from texts to embeddings, including pooling and normalization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compressor.export.activation_ranges import Array
from compressor.export.encoder import EncoderGraph, EncoderGraphs
from compressor.export.task_graphs import Network
from compressor.model.sentence_files import write_layout
from compressor.model.sentence_head import head_of
from compressor.runtime.embedder import Embedder, unit


class EmbeddingGraphs(EncoderGraphs):
    """One graph, `model`; its output, `logits`, are the embeddings.

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
