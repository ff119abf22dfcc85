"""Encoders with a head: one graph from texts to logits."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from compressor.export import graphs
from compressor.export.attention import encoder_form, graph_attention
from compressor.export.attention_base import additive_mask
from compressor.export.for_cuda import CudaForm, write_packed
from compressor.export.fused import fuse
from compressor.export.graphs import BATCH, SOURCE
from compressor.export.int8 import Array, Observed
from compressor.export.task_graphs import Batches, Network, TaskGraphs
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.export.verify import (
    Compared,
    Expected,
    Spooled,
    at_real_tokens,
    logit_check,
    relative_difference,
)
from compressor.model.checkpoint import save_settings
from compressor.model.modeling_tokens import computes_one_token
from compressor.model.modes import computing_all_tokens
from compressor.model.pruning_record import without_code
from compressor.model.sentence_head import head_of, write_layout
from compressor.model.sentence_settings import activation_of
from compressor.model.token_selection import DECIDED, choice_margins
from compressor.runtime.embedder import Embedder, unit
from compressor.runtime.session import open_session
from compressor.steps.results import Check
from compressor.storage.files import write_json
from compressor.tasks.encoder import EncoderTask

MODEL = "model.onnx"
# Precision -> relative difference of significance below which its rounding decides between tokens.
_DECIDED = {"fp16": 1e-2, "bf16": 5e-2}


class EncoderGraph(nn.Module):
    """An encoder with its head, which returns some of the model's outputs.

    Args:
        model: of transformers, with its attention replaced.
        outputs: names of the model's outputs to return.
    """

    def __init__(self, model: nn.Module, outputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs
        self.additive = encoder_form(model).additive

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> list[Tensor]:
        """Run the model.

        Args:
            input_ids: [batch, tokens].
            attention_mask: [batch, tokens] of 1 and 0.
            token_type_ids: [batch, tokens], of models that have types.
        """
        extra = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        mask = additive_mask(attention_mask) if self.additive else attention_mask
        outputs = self.model(input_ids=input_ids, attention_mask=mask, **extra)
        return [outputs[name] for name in self.outputs]


class EncoderGraphs(TaskGraphs):
    """The one graph, `model`, of an encoder with its head."""

    task: EncoderTask
    layout = "optimum"
    optimum_outputs: ClassVar[tuple[str, ...]] = ("logits",)  # in that layout
    cuda_forms: ClassVar[Mapping[str, CudaForm]] = {"model": CudaForm(fuse, write_packed)}

    @property
    def optimum_on_tokens(self) -> bool:
        """Whether `optimum_outputs` have values for every token, [rows, tokens, …]."""
        return self.task.head_on_tokens

    @override
    def write(
        self, network: Network, directory: Path, skip: Collection[str] = ()
    ) -> dict[str, str]:
        self._write_graph(network, directory, ["logits"])
        return {"model": MODEL}

    def _write_graph(self, network: Network, directory: Path, outputs: Sequence[str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        graph, names = EncoderGraph(network.model.eval(), outputs), network.checkpoint.entry.inputs
        # The tracer treats sizes of 0 and 1 as fixed.
        example = tuple(torch.ones(2, 5, dtype=torch.long) for _ in names)
        shapes = {name: {0: BATCH, 1: SOURCE} for name in names}
        path = directory / MODEL
        with graph_attention(network.model, network.checkpoint.layers, network.mask):
            graphs.export_graph(graph, example, list(names), list(outputs), shapes, path)

    @override
    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        labels = self.task.label_names(network.model.config)
        facts: dict[str, Any] = {} if labels is None else {"labels": labels}
        return facts | {"reads_one_token": computes_one_token(network.model)}

    @torch.no_grad()
    @override
    def expect(self, model: nn.Module, directory: Path, batches: Batches) -> list[Expected]:
        expected = []
        for batch in batches:
            inputs = {name: value.numpy() for name, value in batch.items()}
            logits, margins = Spooled(model(**batch).logits.numpy()), choice_margins(model)
            decided = None if margins is None else margins.numpy()
            expected.append(Expected(inputs, logits, margins=decided))
        return expected

    @override
    def verify(self, expected: Sequence[Expected], runtime: Any) -> list[Check]:
        compared = self.compare(expected, runtime)
        return [logit_check(compared.differences, runtime.ran_by, compared.undecided)]

    @override
    def compare(self, expected: Sequence[Expected], runtime: Any) -> Compared:
        differences: list[float] = []
        same: list[bool] = []
        undecided = 0
        for batch in expected:
            wanted, actual = batch.logits.read(), runtime.run(batch.inputs)
            real, on_tokens = batch.inputs["attention_mask"], self.task.head_on_tokens
            if batch.margins is None:
                differences.append(_difference(actual, wanted, real if on_tokens else None))
            else:
                rows = batch.margins >= _DECIDED.get(runtime.precision, DECIDED)
                undecided += int((~rows).sum())
                if rows.any():
                    differences.append(relative_difference(actual[rows], wanted[rows]))
            read = (self.read(runtime, logits, real) for logits in (actual, wanted))
            same += self.task.same_answers(*read)
        return Compared(differences or [0.0], same, self.task.answers, undecided)

    def read(self, runtime: Any, logits: Array, attention_mask: Array) -> Array:
        """The part of a padded batch's logits from which an artifact reads predictions.

        Args:
            runtime: the opened artifact.
            logits: [rows, outputs] or [rows, tokens, outputs].
            attention_mask: [rows, tokens] of 1 and 0.
        """
        return self.task.read_logits(logits, attention_mask)

    @override
    def observe(
        self, directory: Path, artifact: Any, batches: Sequence[Mapping[str, Array]]
    ) -> list[Observed]:
        model = Observed(directory / MODEL)
        for batch in batches:
            model.run(batch)
        return [model]

    @torch.no_grad()
    @override
    def export_layout(
        self, network: Network, directory: Path, precision: str, batches: Batches
    ) -> list[Check]:
        model = network.model.eval()
        # Its programs read the states of all tokens.
        with computing_all_tokens(model):
            return self._export_layout(network, directory, batches)

    def _export_layout(self, network: Network, directory: Path, batches: Batches) -> list[Check]:
        model, outputs = network.model, self.optimum_outputs
        self._write_graph(network, directory, outputs)
        # A plain session, as in optimum: this layout has no `graphs.json` for the runtime.
        session = open_session(directory / MODEL)
        differences = []
        for batch in batches:
            feeds = {value.name: batch[value.name].numpy() for value in session.get_inputs()}
            expected = model(**batch)
            real = feeds["attention_mask"] if self.optimum_on_tokens else None
            for name, actual in zip(outputs, session.run(outputs, feeds), strict=True):
                differences.append(_difference(actual, expected[name].numpy(), real))
        check = logit_check(differences)
        checkpoint, config = network.checkpoint, copy.deepcopy(model.config)
        without_code(config)  # the graphs need none
        save_settings(checkpoint, model, directory, config)
        use_earlier_names(directory / "tokenizer_config.json")
        TokenizerProbe.of(checkpoint, ()).check_saved(directory)
        return [check]


def _difference(actual: Array, expected: Array, real: Array | None) -> float:
    """`relative_difference` of two batches' values; `real` is the mask of values for tokens."""
    if real is None:
        return relative_difference(actual, expected)
    return relative_difference(at_real_tokens(actual, real), at_real_tokens(expected, real))


def use_earlier_names(path: Path) -> None:
    """Rename in `tokenizer_config.json` what transformers 5 renamed: optimum needs version 4."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    write_json(path, config)


class RegressionGraphs(EncoderGraphs):
    """One number per row."""

    @override
    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        return super().describe(network, directory) | {
            "activation": activation_of(network.model.config)
        }


class RerankingGraphs(EncoderGraphs):
    """One logit per row, or those of two classes."""

    @override
    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        config: Any = network.model.config
        return super().describe(network, directory) | {
            "classes": config.num_labels,
            "activation": activation_of(config),
        }


class TaggingGraphs(EncoderGraphs):
    """Logits [rows, tokens, labels]."""

    @override
    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        unknown = network.checkpoint.tokenizer.unk_token_id  # which begins a word, see `tag`
        return {**super().describe(network, directory), "unk_token_id": unknown}


class QuestionAnsweringGraphs(EncoderGraphs):
    """Logits [rows, tokens, 2] of starts and ends."""

    optimum_outputs = ("start_logits", "end_logits")


class EmbeddingGraphs(EncoderGraphs):
    """Embeddings as `logits`, after pooling and normalization."""

    # sentence-transformers loads this layout as its ONNX backend, and applies these itself.
    optimum_outputs = ("last_hidden_state",)

    @override
    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        head = head_of(network.model)
        return super().describe(network, directory) | {
            "width": head.width,
            "similarity": head.settings.similarity,
            "prompts": head.settings.prompts,
            "default_prompt": head.settings.default_prompt,
        }

    @property
    @override
    def optimum_on_tokens(self) -> bool:
        return True

    @override
    def read(self, runtime: Embedder, logits: Array, attention_mask: Array) -> Array:
        return unit(logits) if runtime.artifact.similarity == "cosine" else logits

    @override
    def export_layout(
        self, network: Network, directory: Path, precision: str, batches: Batches
    ) -> list[Check]:
        checks: list[Check] = super().export_layout(network, directory, precision, batches)
        checkpoint = network.checkpoint
        tokens = checkpoint.max_source_tokens
        write_layout(network.model, tokens, checkpoint.directory, directory)
        return checks
