"""Rerankers: an encoder's graph, whose logits are one or those of two classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compressor.export.encoder import EncoderGraphs
from compressor.export.task_graphs import Network


class RerankingGraphs(EncoderGraphs):
    """One graph, `model`."""

    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        config: Any = network.model.config
        return {"classes": config.num_labels}
