"""Answering texts with texts, by an exported encoder-decoder model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError
from compressor.runtime.artifact import Generation, TranslationArtifact
from compressor.runtime.batching import Batch, require_right_padding, require_texts
from compressor.runtime.decoder import (
    CAPACITY,
    SELECT_CACHES,
    SELECT_PAST,
    CachedDecoder,
    DecoderGraph,
    InPlaceDecoder,
)
from compressor.runtime.device_decoder import (
    LENGTHEN,
    TOP,
    DeviceDecoder,
    DeviceGraph,
    greedy_on_device,
)
from compressor.runtime.engines.onnxruntime import OnnxRuntime
from compressor.runtime.runtime import BatchSizes, Line, Runtime, StreamLimits
from compressor.runtime.search import Decoder, beam_search, greedy
from compressor.runtime.session import CAPTURING, bind, open_to_capture, run_errors
from compressor.runtime.vocabulary import OutputTokens, open_output_tokens


class Generator(Runtime[TranslationArtifact]):
    """An exported encoder-decoder model; arguments and errors are those of `Runtime`.

    `source_language` and `target_language` are codes of a multilingual model's languages; None:
    those that the artifact was made for. `between` gives the same model for others.

    It opens models for summarization; `Translator` is the same for translation. Decodes as
    `generate` of transformers does with the model's generation settings and `do_sample=False`.
    """

    task = "summarization"
    line_options: ClassVar[tuple[str, ...]] = ("num_beams", "max_new_tokens")
    answer_name: ClassVar[str] = "summary"
    kind = "encoder-decoder"
    # As in `EncoderRuntime`.
    batch_tokens: ClassVar[Mapping[str, int]] = {"cpu": 1024, "cuda": 4096}
    _on_device: DeviceGraph | None = None

    def __init__(
        self,
        directory: str | Path,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(directory, **options)
        self._set_languages(source_language, target_language)

    def between(self, source: str | None = None, target: str | None = None) -> Self:
        """The same opened model, translating from and into these languages; None: unchanged.

        Raises:
            UsageError: the model has no languages, or not that one, or the engine cannot.
            InputError: the decoder does not score the target's token.
        """
        # Not a deep copy: both share the sessions, which hold the weights.
        other = copy(self)
        other._set_languages(source, target)
        return other

    def _set_languages(self, source: str | None, target: str | None) -> None:
        if source is None and target is None:
            return
        languages = self.artifact.languages
        if languages is None:
            raise UsageError(
                f"language {source or target}: this model has no token for each language; leave "
                "the option out",
                id="option-without-use",
            )
        if source is not None:
            old, new = languages.codes[languages.source], languages.token("source_language", source)
            self._tokenizer = self._tokenizer.with_language(old, new)
        if target is not None:
            token = languages.token("target_language", target)
            if languages.starts and self._generator is not None:
                raise UsageError(
                    f"target_language {target}: models in the engine {self.engine} start with one "
                    "language; use the engine onnxruntime",
                    id="language-not-of-engine",
                )
            name = "decoder_start_token_id" if languages.starts else "forced_bos_token_id"
            changed: dict[str, Any] = {name: token}
            self._generation = self.tokens.settings(replace(self.artifact.generation, **changed))

    def _open(self) -> None:
        artifact = self.artifact
        self._tokenizer.prefix = artifact.source_prefix
        self._generator = self._engine.translator()
        if self._generator is None:
            self.tokens = open_output_tokens(self._directory, artifact)
            self._open_graphs()
        else:
            self.tokens = OutputTokens(np.arange(artifact.vocab_size))
        self._generation = self.tokens.settings(artifact.generation)

    def _open_graphs(self) -> None:
        artifact, engine = self.artifact, self._engine
        assert isinstance(engine, OnnxRuntime)  # others search by themselves
        on_device = LENGTHEN in artifact.precisions.get(self.precision, ())
        captures = []
        if on_device and engine.captures:
            pairs = [
                open_to_capture(engine.session, role, self._directory)
                for role in ("encoder", "decoder")
            ]
            captures = [session for session, captured in pairs if captured]
            self._encoder, decoder = (session for session, _ in pairs)
        else:
            self._encoder, decoder = engine.session("encoder"), engine.session("decoder")
        # Such a graph writes its caches into the buffers that it reads them from.
        in_place = not on_device and any(
            value.shape[2:3] == [CAPACITY] for value in decoder.get_inputs()
        )
        past, cross = any(artifact.decoder_self_heads), any(artifact.cross_heads)
        # Caches in NumPy's buffers are moved by NumPy, without a graph.
        roles = {
            SELECT_PAST: past and not in_place,
            SELECT_CACHES: (past or cross) and not in_place,
            LENGTHEN: on_device,
            TOP: on_device,
        }
        small = {role: engine.session(role) for role, needed in roles.items() if needed}
        self._form = InPlaceDecoder if in_place else CachedDecoder
        if on_device:
            self._on_device = DeviceGraph(decoder, self._device, small, self._encoder, captures)
            engine.captured = self._on_device.captured
        else:
            self._decoder = DecoderGraph(decoder, self._device, small)

    @property
    def feeds_back(self) -> bool:
        """Whether the decoder chooses tokens on the device and reads them there."""
        return self._on_device is not None

    @property
    def end_ids(self) -> list[int]:
        """Ids of the tokens that end an answer."""
        return list(self.artifact.generation.eos_token_id)

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of token ids, special tokens left out."""
        return self._tokenizer.decode(rows)

    def generate_texts(
        self,
        texts: Sequence[str],
        *,
        num_beams: int | None = None,
        max_new_tokens: int | None = None,
        **limits: Unpack[BatchSizes],
    ) -> list[str]:
        """The answer to each text; to an empty one, or one of white space, an empty one.

        Args:
            texts: in any order of lengths; rows of similar length share a batch.
            num_beams: 1 is greedy search; None takes the model's own setting, as below.
            max_new_tokens: the most tokens of an answer.
            limits: `batch_size` rows in a batch at most, and `batch_tokens` padded tokens.

        Raises:
            UsageError: a number below 1.
        """
        require_texts(texts)
        answer = self._answering(num_beams, max_new_tokens)
        filled = [text for text in texts if text.strip()]
        answers = iter(self._answer(self.encode(filled), answer, **limits))
        return [next(answers) if text.strip() else "" for text in texts]

    def generate_stream(
        self,
        texts: Iterable[str],
        *,
        num_beams: int | None = None,
        max_new_tokens: int | None = None,
        **limits: Unpack[StreamLimits],
    ) -> Iterator[str]:
        """Answers to a stream of texts of any length, in their order, as of `generate_texts`.

        One warning at the end counts the texts that were cut. For `limits` see
        `Classifier.probabilities_stream`.
        """
        answer = self._answering(num_beams, max_new_tokens)
        return self._stream(texts, self._texts_to(answer), "", **limits)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """The text that is generated from each line; in JSON by its name, `answer_name`."""
        for text in self.generate_stream(rows, **options):
            yield text, {self.answer_name: text}

    def generate(
        self,
        batch: Batch,
        *,
        num_beams: int | None = None,
        max_new_tokens: int | None = None,
        forced_length: int | None = None,
    ) -> list[list[int]]:
        """Token ids of the answers to a batch, `input_ids` and `attention_mask` [rows, source].

        Without the start token, up to and including the end token where there is one.

        Args:
            forced_length: the exact number of tokens for every row, by greedy search that does not
                stop at end tokens; for timing the same work with every model.
        """
        settings = self._generation.with_options(num_beams, max_new_tokens)
        if forced_length is not None:
            settings = settings.with_length(forced_length)
        return self._search(batch, settings)

    def stepwise(self, batch: Batch, forced_length: int) -> list[list[int]]:
        """`generate` with every token chosen on the host, for comparing the device's choice."""
        settings, rows = self._generation.with_length(forced_length), len(batch["input_ids"])
        with self._alone():
            return self.tokens.rows(greedy(self.start(batch), rows, settings))

    def compute(self, batch: Batch, **options: Any) -> object:
        return self.generate(batch, **options)

    def teacher_forced(self, batch: Batch, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits of the token after each of `tokens` [rows, steps], the start token first.

        For comparing with another runtime: [rows, steps, tokens], in the order of
        `self.tokens.ids`.
        """
        columns = self.tokens.indices(tokens).T  # [steps, rows]
        # Filled step by step: a list of steps would need the memory twice when it is stacked.
        logits = np.empty((*tokens.shape, len(self.tokens.ids)), np.float32)
        with self._alone():
            decoder = self.start(batch)
            for step, column in enumerate(columns):
                logits[:, step] = decoder.step(column).scores()
        return logits

    def start(self, batch: Batch) -> Decoder:
        """Run the encoder on a padded batch; the decoder before its first step."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        if self._on_device is not None or self.artifact.only_device(self.precision):
            require_right_padding(mask)
        if self._on_device is not None:
            most = self.artifact.max_source_tokens
            return DeviceDecoder(self._on_device, batch, self.artifact.pad_token_id, most)
        graph, cross = self._decoder, {}
        if graph.cross:  # without cross-attention heads the decoder does not read the source
            inputs = {"input_ids": graph.value(ids), "attention_mask": graph.value(mask)}
            binding = bind(self._encoder, inputs, dict.fromkeys(graph.cross, self._device))
            self._encoder.run_with_iobinding(binding)
            cross = dict(zip(graph.cross, binding.get_outputs(), strict=True))
        return self._form(graph, len(ids), cross, mask)

    def _alone(self) -> contextlib.AbstractContextManager[Any]:
        """Inside this context no other thread uses the GPU, if steps may be captured."""
        captures = self._on_device is not None and self._on_device.captures
        return CAPTURING if captures else contextlib.nullcontext()

    def _answering(
        self, num_beams: int | None, max_new_tokens: int | None
    ) -> Callable[[Batch], list[str]]:
        settings = self._generation.with_options(num_beams, max_new_tokens)
        return lambda batch: self.decode(self._search(batch, settings))

    def _search(self, batch: Batch, settings: Generation) -> list[list[int]]:
        rows = len(batch["input_ids"])
        if rows == 0:
            return []
        if self._generator is not None:
            return self._generator.generate(batch, settings)
        with self._alone(), run_errors(self._directory):
            decoder = self.start(batch)
            if settings.num_beams > 1:
                answers = beam_search(decoder, rows, settings)
            elif isinstance(decoder, DeviceDecoder) and not settings.no_repeat_ngram_size:
                answers = greedy_on_device(decoder, settings)
            else:
                answers = greedy(decoder, rows, settings)
            return self.tokens.rows(answers)


class Translator(Generator):
    """An exported translator; `translate` and `translate_stream` are the methods of `Generator`."""

    task = "translation"
    line_options = (*Generator.line_options, "source_language", "target_language")
    answer_name = "translation"

    translate = Generator.generate_texts
    translate_stream = Generator.generate_stream
