"""Encoders with a head: one graph from texts to logits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from compressor.export import graphs
from compressor.export.activation_ranges import Array, Observed, observed
from compressor.export.attention import additive_mask, encoder_form, graph_attention
from compressor.export.for_cuda import CudaForm, write_packed
from compressor.export.fused import fuse
from compressor.export.graphs import BATCH, SOURCE
from compressor.export.precisions import Compared
from compressor.export.task_graphs import Inputs, Network, TaskGraphs
from compressor.export.verify import Expected, Spooled, logit_check, relative_difference
from compressor.results import Check
from compressor.runtime.session import open_session
from compressor.tasks.encoder import EncoderTask

MODEL = "model.onnx"


class EncoderGraph(nn.Module):
    """An encoder with its head.

    Args:
        output: name of the model's output that it returns.
    """

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
    """One graph, `model`.

    Args:
        optimum_outputs: names of its outputs in the layout of Hugging Face optimum.
    """

    task: EncoderTask
    optimum_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    cuda_forms: ClassVar[Mapping[str, CudaForm]] = {"model": CudaForm(fuse, write_packed)}

    def write(
        self, network: Network, directory: Path, skip: Collection[str] = ()
    ) -> dict[str, str]:
        self.write_graph(network, directory, EncoderGraph(network.model.eval()), ["logits"])
        return {"model": MODEL}

    def write_graph(
        self, network: Network, directory: Path, graph: nn.Module, outputs: Sequence[str]
    ) -> None:
        """Write a graph of a network's inputs, which `graph` takes in their order."""
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
    def expect(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs]
    ) -> list[Expected]:
        return [
            Expected(
                {name: value.numpy() for name, value in batch.items()},
                Spooled(model(**batch).logits.numpy()),
            )
            for batch in batches
        ]

    def verify(self, expected: Sequence[Expected], runtime: Any) -> list[Check]:
        compared = self.compare(expected, runtime)
        return [logit_check(compared.differences, compared.provider)]

    def compare(self, expected: Sequence[Expected], runtime: Any) -> Compared:
        differences: list[float] = []
        same: list[bool] = []
        for batch in expected:
            wanted, actual = batch.logits.read(), runtime.run(batch.inputs)
            differences.append(relative_difference(actual, wanted))
            real = batch.inputs["attention_mask"]
            read = (self.read(runtime, logits, real) for logits in (actual, wanted))
            same += self.task.same_answers(*read)
        return Compared(runtime.precision, differences, same, self.task.answers, runtime.ran_by)

    def read(self, runtime: Any, logits: Array, attention_mask: Array) -> Array:
        """The part of a padded batch's logits from which an opened artifact reads predictions."""
        return self.task.read_logits(logits, attention_mask)

    def observe(
        self, directory: Path, artifact: Any, batches: Sequence[Mapping[str, Array]]
    ) -> list[Observed]:
        with observed(directory / MODEL) as model:
            for batch in batches:
                model.run(batch)
        return [model]

    def write_optimum(self, network: Network, directory: Path) -> None:
        self.write(network, directory)

    @torch.no_grad()
    def verify_optimum(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs]
    ) -> list[Check]:
        # A plain session, as in optimum: this layout has no `graphs.json` for the runtime.
        session = open_session(directory / MODEL)
        differences = []
        for batch in batches:
            feeds = {value.name: batch[value.name].numpy() for value in session.get_inputs()}
            expected, names = model(**batch), self.optimum_outputs
            for name, actual in zip(names, session.run(names, feeds), strict=True):
                differences.append(relative_difference(actual, expected[name].numpy()))
        return [logit_check(differences)]
