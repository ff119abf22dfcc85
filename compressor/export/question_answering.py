"""Question answering: one graph from texts to logits of starts and ends."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from compressor.export.encoder import EncoderGraph, EncoderGraphs
from compressor.export.task_graphs import Network


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
    """One graph, `model`, with the output `logits` [rows, tokens, 2] of starts and ends."""

    optimum_outputs = ("start_logits", "end_logits")

    def write_optimum(self, network: Network, directory: Path) -> None:
        graph = _StartsAndEnds(network.model.eval())
        self.write_graph(network, directory, graph, self.optimum_outputs)
