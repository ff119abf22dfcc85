"""Encoder-decoders: two graphs, and checks that compare greedy outputs token for token."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from compressor.export import ctranslate2, translator_graphs, verify, vocabulary
from compressor.export.attention import graph_attention
from compressor.export.candidate_checks import check_logits, check_tokens
from compressor.export.decoder_attention import CrossKeysValues
from compressor.export.device_step import keep_state, write_helpers
from compressor.export.for_cuda import CudaForm
from compressor.export.fused import fuse
from compressor.export.int8 import Array, Observed
from compressor.export.task_graphs import Batches, Inputs, Network, TaskGraphs
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.export.translator_graphs import TranslatorEncoder
from compressor.export.verify import Compared, Expected, Spooled
from compressor.export.vocabulary import OutputLayer, embedding_only
from compressor.model import languages
from compressor.model.checkpoint import Checkpoint
from compressor.model.generation import generation_settings, greedy, searched, up_to_end
from compressor.model.memory import release
from compressor.runtime.artifact import CTRANSLATE2_DIRECTORY
from compressor.runtime.engines import Setup, TranslatorEngine
from compressor.runtime.graph_names import BEST
from compressor.runtime.opening import open_output_tokens, read_artifact
from compressor.steps.results import Check
from compressor.storage.files import write_at_once
from compressor.storage.names import BASE

if TYPE_CHECKING:
    from compressor.runtime import Translator
    from compressor.runtime.artifact import TranslationArtifact

OUTPUT_TOKENS = "output_tokens.json"
_OBSERVED = 8  # tokens to generate at most, plus two per source token, to observe ranges
_SEARCHED = 2  # rows of each batch to compare a search with beams on


class TranslatorGraphs(TaskGraphs):
    """The graphs of an encoder-decoder: encoder, step of the decoder, and what moves caches."""

    # The encoder's graph also computes the keys and values of the cross-attention.
    parts: ClassVar[Mapping[str, frozenset[str]]] = {
        "encoder": frozenset({"encoder_self", "cross", "encoder_ffn"}),
        "decoder": frozenset({"decoder_self", "cross", "decoder_ffn"}),
    }
    layout = "ctranslate2"
    # The encoder has no padding-free form: its keys and values are read with padding.
    cuda_forms: ClassVar[Mapping[str, CudaForm]] = {
        "encoder": CudaForm(fuse),
        "decoder": CudaForm(keep_state, write_helpers),
    }

    @override
    def output_tokens(
        self, checkpoint: Checkpoint, seen: Collection[int] | None = None
    ) -> list[int] | None:
        return vocabulary.output_tokens(checkpoint, seen)

    @override
    def write(
        self, network: Network, directory: Path, skip: Collection[str] = ()
    ) -> dict[str, str]:
        directory.mkdir(parents=True, exist_ok=True)
        model = network.model.eval()
        layers = network.checkpoint.layers
        mask = network.mask
        files = {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}
        # Created before the attention is replaced: it reads the cross-attention's projections.
        encoder = TranslatorEncoder(model, layers, mask)
        with graph_attention(model, layers, mask):
            if "encoder" not in skip:
                translator_graphs.export_encoder(encoder, directory / files["encoder"])
            if "decoder" not in skip:
                translator_graphs.export_decoder(network, directory / files["decoder"])
        # The exporter would keep its stacked weights, which are copies, in memory.
        release(encoder.cross)
        files |= translator_graphs.export_cache_rows(network, directory)
        return files | translator_graphs.export_rank(directory)

    @override
    def tensors(self, network: Network) -> Iterator[Tensor]:
        yield from super().tensors(network)
        layers, mask = network.checkpoint.layers, network.mask
        yield from CrossKeysValues(network.model, layers, mask).parameters()
        output = OutputLayer(network.model, network.tokens)
        with embedding_only(network.model, output, network.tokens):
            rows = network.model.get_decoder().embed_tokens.weight  # type: ignore[operator]
            yield from [tensor.clone() for tensor in (output.weight, output.bias, rows)]

    @override
    def describe(self, network: Network, directory: Path) -> dict[str, Any]:
        model = network.model
        tokens = network.tokens
        layers = network.checkpoint.layers
        counts = network.mask.counts()
        data: dict[str, Any] = {
            "decoder_self_heads": [counts[x.name] for x in layers if x.kind == "decoder_self"],
            "cross_heads": [counts[x.name] for x in layers if x.kind == "cross"],
            "head_dim": next(x.unit_width for x in layers if x.kind == "cross"),  # of all
            "vocab_size": int(model.get_output_embeddings().out_features),  # type: ignore[operator]
        }
        if tokens is not None:
            data["output_tokens"] = OUTPUT_TOKENS
            write_at_once(directory / OUTPUT_TOKENS, f"{json.dumps(tokens)}\n")
        positions = network.checkpoint.entry.most_positions(model.config)
        data["generation"] = generation_settings(model) | {"positions": positions}
        return data | languages.description(network.checkpoint.tokenizer, network.checkpoint.entry)

    @torch.no_grad()
    @override
    def expect(self, model: nn.Module, directory: Path, batches: Batches) -> list[Expected]:
        """Greedy outputs, and logits [rows, steps, scored tokens] along them."""
        artifact = cast("TranslationArtifact", read_artifact(directory))
        ids = open_output_tokens(directory, artifact).ids
        settings = artifact.generation
        expected = []
        for batch in batches:
            most = verify.most_steps(settings, batch["input_ids"])
            inputs, tokens, rows = greedy(model, batch, ids.tolist(), most)
            logits = [row[:, ids] for row in rows]
            expected.append(Expected(inputs, Spooled(np.stack(logits)), tokens))
        return expected

    @override
    def check(
        self, model: nn.Module, directory: Path, batches: Batches, **options: Any
    ) -> list[Check]:
        """Compare the graphs that score all tokens, and those that score candidates, if any."""
        checks = super().check(model, directory, batches, candidates=False, **options)
        return checks + self.check_candidates(directory, BASE, batches, model)

    @override
    def check_candidates(
        self, directory: Path, precision: str, batches: Batches, model: nn.Module | None = None
    ) -> list[Check]:
        if read_artifact(directory).candidate_table(precision) is None:
            return []
        opened: Any = partial(self.task.open, directory, precision=precision)
        names = ("input_ids", "attention_mask")
        arrays = [{name: batch[name].numpy() for name in names} for batch in batches]
        checks = [check_logits(opened, arrays)]
        return checks if model is None else [*checks, check_tokens(opened(), model, batches)]

    @override
    def verify(self, expected: Sequence[Expected], runtime: Any) -> list[Check]:
        differences: list[float] = []

        def rows() -> Iterator[tuple[list[int], list[int], Array]]:
            for arrays, answers, wanted, _, difference in _along_greedy(expected, runtime):
                differences.append(difference)
                read = verify.reads_tokens(answers[:, :-1], runtime.end_ids)
                steps = verify.most_steps(runtime.artifact.generation, arrays["input_ids"])
                produced = runtime.generate(arrays, num_beams=1, max_new_tokens=steps)
                for row, got in enumerate(produced):
                    want = answers[row, 1:][read[row]]
                    first, second = (
                        runtime.tokens.indices(np.array(t, np.int64)) for t in (want, got)
                    )
                    yield first.tolist(), second.tolist(), wanted[row]

        scored, all_tokens = len(runtime.tokens.ids), runtime.artifact.vocab_size
        fewer = f"; the decoder scores {scored:,} of {all_tokens:,} tokens"
        translations = verify.translation_check(rows(), fewer if scored < all_tokens else "")
        return [verify.logit_check(differences), translations]

    @torch.no_grad()
    @override
    def check_search(self, model: nn.Module, batches: Batches, runtime: Any) -> list[Check]:
        """Compare the answers of the model's own number of beams to some rows of each batch."""
        artifact: TranslationArtifact = runtime.artifact
        settings = artifact.generation
        tokens, answer = runtime.tokens.ids.tolist(), (settings.eos_token_id, artifact.pad_token_id)
        rows = 0
        if settings.num_beams == 1:
            return []
        # Without padding, behind which M2M100 in PyTorch counts positions otherwise with a cache: a
        # model with random weights may generate it, and go on.
        pad = {artifact.pad_token_id}.difference(settings.eos_token_id)
        settings = replace(settings, suppress_tokens=sorted({*settings.suppress_tokens, *pad}))
        for batch in batches:
            inputs = {name: batch[name][:_SEARCHED] for name in ("input_ids", "attention_mask")}
            most = verify.most_steps(settings, inputs["input_ids"])
            chosen = runtime.tokens.settings(settings).with_options(None, most)
            found = runtime.search({name: x.numpy() for name, x in inputs.items()}, chosen)
            options = {"max_new_tokens": most, "suppress_tokens": settings.suppress_tokens}

            def search(inputs: Inputs = inputs, options: Any = options) -> list[list[int]]:
                return searched(model, inputs, *answer, tokens, **options)

            verify.require_searched(model, search, [up_to_end(row, *answer) for row in found])
            rows += len(found)
        return [verify.search_check(rows, settings.num_beams)]

    @override
    def compare(self, expected: Sequence[Expected], runtime: Any) -> Compared:
        differences: list[float] = []
        same: list[bool] = []
        for arrays, answers, wanted, actual, difference in _along_greedy(expected, runtime):
            differences.append(difference)
            read = verify.reads_tokens(answers[:, :-1], runtime.end_ids)  # [rows, steps]
            same += (actual.argmax(-1) == wanted.argmax(-1))[read].tolist()
            if runtime.feeds_back:
                verify.require_fed_back(runtime, arrays)
        return Compared(differences, same, "greedy tokens")

    @override
    def observe(
        self, directory: Path, artifact: TranslationArtifact, batches: Sequence[Mapping[str, Array]]
    ) -> list[Observed]:
        files = artifact.precisions[BASE]
        settings = open_output_tokens(directory.parent, artifact).settings(artifact.generation)
        encoder, decoder = (Observed(directory / files[role]) for role in ("encoder", "decoder"))
        shapes = {value.name: value.shape for value in decoder.session.get_inputs()}
        for batch in batches:
            source = {**encoder.run(batch), "attention_mask": batch["attention_mask"]}
            rows, length = batch["input_ids"].shape
            past = {
                name: np.zeros((rows, shape[1], 0, shape[3]), np.float32)
                for name, shape in shapes.items()
                if name.startswith("past_")
            }
            state = past | {name: source[name] for name in shapes if name in source}
            tokens = np.full(rows, settings.decoder_start_token_id)
            for position in range(min(settings.limit, _OBSERVED + 2 * length)):
                feeds = {"input_ids": tokens[:, None], "position": np.array([position])}
                outputs = decoder.run(state | feeds)
                state |= {
                    x: outputs[x.replace("past", "present")] for x in state if x.startswith("past_")
                }
                # Finished rows leave the batch, since padding would widen the ranges.
                left = np.flatnonzero(~np.isin(outputs[BEST], settings.eos_token_id))
                if len(left) == 0:
                    break
                tokens = outputs[BEST][left]
                state = {name: value[left] for name, value in state.items()}
        return [encoder, decoder]

    @override
    def write_engine(self, network: Network, directory: Path, engine: str) -> bool:
        if not self.task.engine(engine).folder:
            return False
        ctranslate2.write_translator(network, directory / CTRANSLATE2_DIRECTORY, BASE)
        return True

    @override
    def add_engine(
        self, network: Network, directory: Path, engine: str, batches: Batches
    ) -> list[Check]:
        kind = self.task.engine(engine)
        if kind.dense_only:
            rival = kind(Setup(directory, read_artifact(directory), BASE))
            assert isinstance(rival, TranslatorEngine)
            return ctranslate2.verify_search(network, rival.translator(), batches, engine)
        return self.export_layout(network, directory / CTRANSLATE2_DIRECTORY, BASE, batches)

    @override
    def verify_engines(self, network: Network, directory: Path, batches: Batches) -> list[Check]:
        made = directory / CTRANSLATE2_DIRECTORY
        return ctranslate2.verify_translator(network, made, batches) if made.exists() else []

    @override
    def export_layout(
        self, network: Network, directory: Path, precision: str, batches: Batches
    ) -> list[Check]:
        ctranslate2.write_translator(network, directory, BASE)
        checks = ctranslate2.verify_translator(network, directory, batches)
        TokenizerProbe.of(network.checkpoint, ()).check_saved(directory)
        if precision != BASE:  # replaced by the same weights, rounded
            ctranslate2.write_translator(network, directory, precision)
        return checks


def _along_greedy(
    expected: Sequence[Expected], runtime: Translator
) -> Iterator[tuple[Mapping[str, Array], Array, Array, Array, float]]:
    """Compute both runtimes' logits along PyTorch's greedy outputs for each batch.

    Yields:
        Sources, tokens [rows, steps + 1] from the start token on, PyTorch's logits and the
        runtime's [rows, steps, scored tokens], and their relative difference.
    """
    ends = [*runtime.end_ids, runtime.artifact.pad_token_id]
    for batch in expected:
        assert batch.tokens is not None
        inputs = batch.tokens[:, :-1]
        wanted, actual = batch.logits.read(), runtime.teacher_forced(batch.inputs, inputs)
        # Up to the first padding: a model with random weights may generate tokens after it, for
        # which M2M100 in PyTorch counts positions differently with and without a cache.
        steps = verify.reads_tokens(inputs, ends).sum(axis=1)
        parts = ([row[:n] for row, n in zip(rows, steps, strict=True)] for rows in (actual, wanted))
        yield batch.inputs, batch.tokens, wanted, actual, verify.relative_difference(*parts)
