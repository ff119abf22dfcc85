"""Encoders of texts: one graph from texts to embeddings, pooling and normalization in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.export.encoder import EncoderGraphs
from compressor.export.task_graphs import Network
from compressor.model.sentence_head import embedding_width


class EmbeddingGraphs(EncoderGraphs):
    """One graph, `model`; its output, `logits`, are the embeddings."""

    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        return {"width": embedding_width(network.model)}

    def write_optimum(self, network: Network, directory: Path) -> None:
        raise InputError(
            f"optimum's loaders want vectors of tokens, and the graph of {network.checkpoint.name} "
            "ends in embeddings of texts; leave --layout out",
            id="layout-not-for-task",
        )
