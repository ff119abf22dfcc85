"""Models with one number per row: an encoder's graph, and the activation of its logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compressor.export.encoder import EncoderGraphs
from compressor.export.task_graphs import Network
from compressor.model.cross_encoder import activation_of


class RegressionGraphs(EncoderGraphs):
    """One graph, `model`."""

    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        return {"activation": activation_of(network.model.config)}


class RerankingGraphs(RegressionGraphs):
    """One graph, `model`, with one logit per row, or those of two classes."""

    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        config: Any = network.model.config
        return {"classes": config.num_labels} | super().describe(network, directory)
