"""Translators: two graphs, greedy translations compared token for token."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from compressor.export import optimum_translator, vocabulary
from compressor.export.activation_ranges import Array, Finder, Observed, decode, observed
from compressor.export.attention import graph_attention
from compressor.export.cache_rows import export_cache_rows
from compressor.export.generation import generation_settings
from compressor.export.precision_names import BASE
from compressor.export.precisions import Compared
from compressor.export.task_graphs import Inputs, TaskGraphs
from compressor.export.translator_graphs import (
    EncoderGraph,
    cache_names,
    export_decoder,
    export_encoder,
    with_heads,
)
from compressor.export.verify import logit_check, relative_difference, require_tie
from compressor.export.vocabulary import restricted
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import release
from compressor.model.sublayers import Mask, Sublayer
from compressor.results import Check
from compressor.runtime.vocabulary import open_output_tokens
from compressor.storage.files import write_at_once

if TYPE_CHECKING:
    from compressor.runtime import Translator
    from compressor.runtime.artifact import TranslationArtifact

OUTPUT_TOKENS = "output_tokens.json"
# A translation that does not end is followed for this many tokens, and two per source token.
_STEPS = 8


class TranslatorGraphs(TaskGraphs):
    """The graphs `encoder` and `decoder`."""

    # The encoder's graph also makes the keys and values of the cross-attention.
    parts: ClassVar[Mapping[str, frozenset[str]]] = {
        "encoder": frozenset({"encoder_self", "cross", "encoder_ffn"}),
        "decoder": frozenset({"decoder_self", "cross", "decoder_ffn"}),
    }

    def output_tokens(
        self, checkpoint: Checkpoint, seen: Collection[int] | None = None
    ) -> list[int] | None:
        return vocabulary.output_tokens(checkpoint, seen)

    def write(
        self,
        model: nn.Module,
        layers: Sequence[Sublayer],
        mask: Mask,
        directory: Path,
        skip: Collection[str] = (),
        tokens: list[int] | None = None,
    ) -> dict[str, str]:
        directory.mkdir(parents=True, exist_ok=True)
        model.eval()
        files = {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}
        # Made before the attention is replaced, since it reads the cross-attention's projections.
        encoder = EncoderGraph(model, layers, mask)
        with graph_attention(model, layers, mask):
            if "encoder" not in skip:
                export_encoder(encoder, directory / files["encoder"])
            if "decoder" not in skip:
                export_decoder(model, layers, mask, tokens, directory / files["decoder"])
        release(encoder.cross)
        cross, past = (
            cache_names(name, [x.index for x in with_heads(layers, mask, kind)])
            for name, kind in (("cross", "cross"), ("past", "decoder_self"))
        )
        return files | export_cache_rows(cross, past, directory)

    def describe(
        self,
        checkpoint: Checkpoint,
        model: nn.Module,
        mask: Mask,
        directory: Path,
        tokens: list[int] | None,
    ) -> dict[str, Any]:
        config: Any = model.config
        counts = mask.counts()
        layers = range(int(config.decoder_layers))
        data: dict[str, Any] = {
            "decoder_self_heads": [counts[f"decoder_self.{i}"] for i in layers],
            "cross_heads": [counts[f"cross.{i}"] for i in layers],
            "head_dim": next(x.unit_width for x in checkpoint.layers if x.kind == "cross"),
            "vocab_size": int(model.lm_head.out_features),  # type: ignore[union-attr,arg-type]
        }
        if tokens is not None:
            data["output_tokens"] = OUTPUT_TOKENS
            write_at_once(directory / OUTPUT_TOKENS, f"{json.dumps(tokens)}\n")
        positions = checkpoint.entry.positions(config)
        data["generation"] = generation_settings(model) | {"positions": positions}
        return data

    @torch.no_grad()
    def verify(self, model: nn.Module, directory: Path, batches: Sequence[Inputs]) -> list[Check]:
        """Compare greedy translations token for token, and logits along PyTorch's translations.

        Raises:
            VerificationError: a logit or a generated token differs. A token may differ where
                PyTorch's own two best logits are closer together than the tolerance.
        """
        runtime: Any = self.task.open(directory)
        ids = torch.from_numpy(runtime.tokens.ids)
        differences: list[float] = []
        tokens, ties = 0, 0
        for batch in batches:
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            arrays = {name: value.numpy() for name, value in inputs.items()}
            with restricted(model, runtime.tokens.ids.tolist()):
                expected = greedy_tokens(model, inputs, runtime)
                logits = model(**inputs, decoder_input_ids=expected[:, :-1]).logits[..., ids]
            steps = runtime.teacher_forced(arrays, expected[:, :-1].numpy())
            differences.append(relative_difference(steps, logits.numpy()))
            produced = runtime.generate(arrays, num_beams=1)
            for row, (want, got) in enumerate(zip(expected[:, 1:].tolist(), produced, strict=True)):
                want = _until_end(want, runtime.end_ids)
                tokens += len(want)
                if want != list(got):
                    columns = [runtime.tokens.indices(np.array(t)).tolist() for t in (want, got)]
                    require_tie(columns[0], columns[1], logits[row])
                    ties += 1
        check = logit_check(differences)
        detail = f"{tokens} greedy tokens of {sum(len(b['input_ids']) for b in batches)} sentences"
        if len(ids) < runtime.artifact.vocab_size:
            detail += f"; the decoder scores {len(ids):,} of {runtime.artifact.vocab_size:,} tokens"
        if ties:
            detail += f"; {ties} sentences differ from a tie of two logits on"
        return [
            check,
            Check(
                name="ONNX translates as PyTorch",
                largest_difference=0.0,
                tolerance=0.0,
                detail=detail,
            ),
        ]

    @torch.no_grad()
    def compare(
        self,
        model: nn.Module,
        directory: Path,
        batches: Sequence[Inputs],
        precision: str,
        device: str,
    ) -> Compared:
        """Logits and most probable tokens along PyTorch's own greedy translations."""
        runtime: Any = self.task.open(directory, precision=precision, device=device)
        differences: list[float] = []
        same: list[bool] = []
        for batch in batches:
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            arrays = {name: value.numpy() for name, value in inputs.items()}
            with restricted(model, runtime.tokens.ids.tolist()):
                tokens = greedy_tokens(model, inputs, runtime)[:, :-1]
            logits = model(**inputs, decoder_input_ids=tokens).logits.numpy()
            expected = logits[..., runtime.tokens.ids]
            actual = runtime.teacher_forced(arrays, tokens.numpy())
            differences.append(relative_difference(actual, expected))
            real = _reads_tokens(tokens.numpy(), runtime.end_ids)
            same += (actual.argmax(-1) == expected.argmax(-1))[real].tolist()
        return Compared(precision, differences, same, "greedy tokens", runtime.provider)

    def observe(
        self,
        directory: Path,
        artifact: TranslationArtifact,
        batches: Sequence[Mapping[str, Array]],
        finder: Finder,
    ) -> list[Observed]:
        files = artifact.precisions[BASE]
        tokens = open_output_tokens(directory.parent, artifact)
        settings = tokens.settings(artifact.generation)
        with (
            observed(directory / files["encoder"], finder) as encoder,
            observed(directory / files["decoder"], finder) as decoder,
        ):
            for batch in batches:
                steps = min(settings.limit, 2 * batch["input_ids"].shape[1] + _STEPS)
                source = {**encoder.run(batch), "attention_mask": batch["attention_mask"]}
                start = settings.decoder_start_token_id
                decode(decoder, source, start, settings.eos_token_id, steps)
        return [encoder, decoder]

    def write_optimum(self, checkpoint: Checkpoint, mask: Mask, directory: Path) -> None:
        optimum_translator.require_caches(mask, checkpoint.name)
        directory.mkdir(parents=True, exist_ok=True)
        optimum_translator.export_translator(checkpoint.model, checkpoint.layers, mask, directory)

    def verify_optimum(
        self, model: nn.Module, directory: Path, batches: Sequence[Inputs]
    ) -> list[Check]:
        return optimum_translator.verify_translator(model, directory, batches)


def greedy_tokens(model: nn.Module, inputs: Mapping[str, Tensor], runtime: Translator) -> Tensor:
    """PyTorch's greedy translations, as long as the runtime's may be, [batch, target].

    A checkpoint may ask for more tokens than its decoder has positions for.
    """
    generation = runtime.artifact.generation
    # The one that counts by itself: transformers warns where both are given.
    counts_new = generation.max_new_tokens is not None
    limit = generation.limit
    longest = {"max_new_tokens": limit} if counts_new else {"max_length": limit + 1}
    return model.generate(**inputs, num_beams=1, do_sample=False, **longest)  # type: ignore[operator]


def _until_end(ids: list[int], end_ids: Sequence[int]) -> list[int]:
    """The tokens up to the first end token: what follows is padding."""
    for position, token in enumerate(ids):
        if token in end_ids:
            return ids[: position + 1]
    return ids


def _reads_tokens(tokens: np.ndarray, end_ids: Sequence[int]) -> np.ndarray:
    """[rows, steps]: whether the step reads a real token; the start token may be an end token."""
    ended = np.isin(tokens, list(end_ids))
    ended[:, 0] = False
    return np.cumsum(ended, axis=1) == 0
