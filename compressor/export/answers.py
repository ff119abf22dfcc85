"""Models for questions: one graph from texts to logits of starts and ends."""

from __future__ import annotations

from pathlib import Path

from compressor.errors import InputError
from compressor.export.encoder import EncoderGraphs
from compressor.export.task_graphs import Network


class AnswerGraphs(EncoderGraphs):
    """One graph, `model`; its output, `logits` [rows, tokens, 2], are those of both."""

    def write_optimum(self, network: Network, directory: Path) -> None:
        raise InputError(
            f"optimum's loaders want starts and ends apart, and the graph of "
            f"{network.checkpoint.name} has them as one output; leave --layout out",
            id="layout-not-for-task",
        )
