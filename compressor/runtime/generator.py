"""Encoder-decoder models that answer texts with texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError
from compressor.runtime.artifact import TranslationArtifact
from compressor.runtime.batching import Batch, Floats
from compressor.runtime.beam_search import beam_search
from compressor.runtime.decoder import DecoderGraph
from compressor.runtime.device_decoder import DeviceDecoder, DeviceGraph
from compressor.runtime.device_search import greedy_on_device
from compressor.runtime.engines import DecoderEngine, TranslatorEngine
from compressor.runtime.generation import Generation, OutputTokens
from compressor.runtime.gpu_thread import Result, in_turn
from compressor.runtime.opening import open_output_tokens
from compressor.runtime.runtime import BatchSizes, Line, Runtime, StreamLimits
from compressor.runtime.search import Decoder, greedy
from compressor.runtime.session import run_errors


class Generator(Runtime[TranslationArtifact]):
    """An exported model for summarization; arguments and errors are those of `Runtime`.

    It decodes as `generate` of transformers with the model's settings and `do_sample=False`.

    Args:
        directory: of the artifact.
        source_language: code of the language that a multilingual model reads; None: the one that
            the artifact was made for. `between` gives the same model for others.
        target_language: code of the language that it writes.
        candidates: whether a batch scores the candidates of its source tokens alone, where the
            artifact has candidates: faster, and answers depend on the batch. False: all tokens.
        options: all others of `Runtime`.
    """

    task = "summarization"
    line_options: ClassVar[tuple[str, ...]] = ("num_beams", "max_new_tokens")
    answer_name: ClassVar[str] = "summary"
    kind = "encoder-decoder"
    # As in `EncoderRuntime`.
    batch_tokens: ClassVar[Mapping[str, int]] = {"cpu": 1024, "cuda": 4096}

    def __init__(
        self,
        directory: str | Path,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        candidates: bool = True,
        **options: Any,
    ) -> None:
        self._uses_candidates = candidates
        super().__init__(directory, **options)
        self._set_languages(source_language, target_language)

    def between(self, source: str | None = None, target: str | None = None) -> Self:
        """The same opened model, translating from and into these languages.

        Args:
            source: code of the language that it reads; None: unchanged.
            target: code of the language that it writes; None: unchanged.

        Raises:
            UsageError: the model has no languages, or not that one, or the engine cannot change it.
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
        engine = self._engine
        self._generator = engine.translator() if isinstance(engine, TranslatorEngine) else None
        if self._generator is None:
            assert isinstance(engine, DecoderEngine)  # by its `kinds`
            self.tokens = open_output_tokens(self._directory, artifact)
            self._graph: DecoderGraph = engine.decoder(self._uses_candidates)
        else:
            self.tokens = OutputTokens(np.arange(artifact.vocab_size))
        self._generation = self.tokens.settings(artifact.generation)

    @property
    def feeds_back(self) -> bool:
        """Whether the decoder chooses tokens on the device and reads them there."""
        return self._generator is None and isinstance(self._graph, DeviceGraph)

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
        """Answer each text; an empty one, or one of white space, with an empty text.

        Args:
            texts: in any order of lengths; rows of similar length share a batch. Tokens beyond the
                model's longest input are left out, with a warning.
            num_beams: 1 is greedy search; None takes the model's own setting, as below.
            max_new_tokens: the most tokens of an answer.
            limits: how large batches may get, see `Classifier.logits`.

        Returns:
            The answers in the order of the texts.

        Raises:
            UsageError: a number below 1, more tokens than the model has positions for, or one text
                in place of a list.
        """
        answers = self._texts_to(self._answering(num_beams, max_new_tokens))
        return list(self._stream(texts, answers, "", len(texts) or 1, **limits))

    def generate_stream(
        self,
        texts: Iterable[str],
        *,
        num_beams: int | None = None,
        max_new_tokens: int | None = None,
        **limits: Unpack[StreamLimits],
    ) -> Iterator[str]:
        """Answer the texts of a stream of any length, in their order.

        One warning at the end counts the texts that were cut.

        Args:
            texts: read a chunk at a time.
            num_beams: 1 is greedy search; None takes the model's own setting, as below.
            max_new_tokens: the most tokens of an answer.
            limits: how large batches may get, see `Classifier.logits`, and `chunk_rows`: texts that
                are read ahead and sorted by length; all that is held at a time.

        Raises:
            UsageError: a number below 1, more tokens than the model has positions for, or one text
                in place of several.
        """
        answer = self._answering(num_beams, max_new_tokens)
        return self._stream(texts, self._texts_to(answer), "", **limits)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """Answer each line with the text generated from it; `answer_name` is its name in JSON."""
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
        """Generate the answers to one padded batch.

        Args:
            batch: `input_ids` and `attention_mask`, [rows, source].
            num_beams: 1 is greedy search; None takes the model's own setting, as below.
            max_new_tokens: the most tokens of an answer.
            forced_length: the exact number of tokens for every row, by greedy search that does not
                stop at end tokens; for timing the same work with every model.

        Returns:
            Token ids without the start token, up to and including the end token where there is one.

        Raises:
            UsageError: a number below 1, or more tokens than the model has positions for.
        """
        settings = self._generation.with_options(num_beams, max_new_tokens)
        if forced_length is not None:
            settings = settings.with_length(forced_length)
        return self.search(batch, settings)

    def candidates(self, batch: Batch) -> NDArray[np.int64] | None:
        """The tokens that greedy search scores for a padded batch, ascending.

        Args:
            batch: `input_ids` and `attention_mask`, [rows, source].

        Returns:
            Their places in `tokens.ids`; None: all.
        """
        chosen = None if self._generator is not None else self._graph.candidates
        return None if chosen is None else chosen.of(batch, self._generation.named).tokens

    def stepwise(self, batch: Batch, forced_length: int) -> list[list[int]]:
        """Generate with every token chosen on the host, for comparing the device's choice.

        Arguments and results are those of `generate`.
        """
        settings, rows = self._generation.with_length(forced_length), len(batch["input_ids"])
        return self._in_turn(lambda: self.tokens.rows(greedy(self.start(batch), rows, settings)))

    @property
    def encode_batch(self) -> Callable[[Batch], object] | None:
        """Run the encoder; None with an engine that searches by itself."""
        return self.start if self._generator is None else None

    def compute(self, batch: Batch, **options: Any) -> object:
        """Generate the answers to one padded batch; the options are those of `generate`."""
        return self.generate(batch, **options)

    def teacher_forced(
        self, batch: Batch, tokens: NDArray[np.int64], candidates: bool = False
    ) -> Floats:
        """Compute the logits of what follows given tokens, to compare with another runtime.

        Args:
            batch: as in `generate`.
            tokens: what the decoder reads, [rows, steps], the start token first.
            candidates: score the batch's candidates alone, where the artifact has some.

        Returns:
            [rows, steps, tokens], in the order of `self.tokens.ids`; minus infinity for tokens that
            are not scored.

        Raises:
            InputError: the decoder does not score one of the tokens.
        """
        columns = self.tokens.indices(tokens).T  # [steps, rows]
        # Filled step by step: a list of steps would need the memory twice when it is stacked.
        logits = np.empty((*tokens.shape, len(self.tokens.ids)), np.float32)

        def force() -> None:
            decoder = self.start(batch, self._generation.named if candidates else None)
            for step, column in enumerate(columns):
                decoder.step(column)
                logits[:, step] = decoder.scores()

        self._in_turn(force)
        return logits

    def start(self, batch: Batch, always: Sequence[int] | None = None) -> Decoder:
        """Run the encoder on a padded batch.

        Args:
            batch: `input_ids` and `attention_mask`, [rows, source].
            always: tokens that are always candidates; None: all tokens are scored.

        Returns:
            The decoder before its first step.
        """
        return self._graph.start(batch, always)

    def _in_turn(self, compute: Callable[[], Result]) -> Result:
        """Compute, in the thread that captures if steps are captured."""
        return in_turn(compute) if self._graph.captures else compute()

    def _answering(
        self, num_beams: int | None, max_new_tokens: int | None
    ) -> Callable[[Batch], list[str]]:
        settings = self._generation.with_options(num_beams, max_new_tokens)
        # An ordinary token stands in transformers' text, too, special ones are left out.
        start = int(self.tokens.ids[settings.decoder_start_token_id])
        return lambda batch: self.decode([[start, *row] for row in self.search(batch, settings)])

    def search(self, batch: Batch, settings: Generation) -> list[list[int]]:
        """As `generate`, with settings whose tokens are indices (`tokens.settings`)."""
        rows = len(batch["input_ids"])
        if rows == 0:
            return []
        if self._generator is not None:
            return self._generator.generate(batch, settings)

        def decode() -> list[list[int]]:
            decoder = self.start(batch, settings.named)
            if settings.num_beams > 1:
                return beam_search(decoder, rows, settings)
            if isinstance(decoder, DeviceDecoder) and not settings.no_repeat_ngram_size:
                return greedy_on_device(decoder, settings)
            return greedy(decoder, rows, settings)

        with run_errors(self._directory):
            return self.tokens.rows(self._in_turn(decode))


class Translator(Generator):
    """An exported translator; `translate` and `translate_stream` are the methods of `Generator`."""

    task = "translation"
    line_options = (*Generator.line_options, "source_language", "target_language")
    answer_name = "translation"

    translate = Generator.generate_texts
    translate_stream = Generator.generate_stream
