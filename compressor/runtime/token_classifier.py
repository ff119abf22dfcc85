"""Labels of words, and entities, with an exported token classifier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import accumulate
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.artifact import TokenClassificationArtifact
from compressor.runtime.batching import Batch, require_texts
from compressor.runtime.encoder import EncoderRuntime
from compressor.runtime.entities import (
    OUTSIDE,
    Entity,
    Scheme,
    Span,
    entity_runs,
    first_tokens,
    scheme_of,
)
from compressor.runtime.processors import log_softmax
from compressor.runtime.runtime import Line, StreamLimits

LabeledTokens = tuple[NDArray[np.intp], NDArray[np.float32]]  # label and probability of each token


class TokenClassifier(EncoderRuntime[TokenClassificationArtifact]):
    """An exported token classifier; arguments and errors are those of `Runtime`.

    The label of a word is that of its first token: tokens that go on with a word have no labels in
    training. In a text, words are those of transformers' `aggregation_strategy="first"`.
    """

    task = "token-classification"

    @property
    def labels(self) -> list[str]:
        """Names of the labels in the order of the logits."""
        return self.artifact.labels

    @cached_property
    def _scheme(self) -> Scheme:
        return scheme_of(self.labels)

    def tag(
        self, texts: Sequence[str], batch_size: int | None = None, batch_tokens: int | None = None
    ) -> list[list[Entity]]:
        """The entities of each text, in their order; arguments and errors of `logits`.

        What lies beyond the model's longest input is left out, with a warning.
        """
        tagged, cut = self._tag(texts, batch_size=batch_size, batch_tokens=batch_tokens)
        self._tokenizer.warn_of_cut(cut, len(texts))
        return tagged

    def tag_words(
        self,
        sentences: Sequence[Sequence[str]],
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> list[list[str]]:
        """A label for each word of sentences that are split into words; all else as `tag`.

        Words that no token is left of, and those beyond the model's longest input, get `O`. Of a
        word with spaces in it the first token counts.
        """
        # A text may stand in place of the list, or of one sentence in it.
        for texts in (sentences, *sentences):
            require_texts(texts)
        encodings = self._tokenizer.encodings([" ".join(words) for words in sentences])
        rows = self._tokenizer.rows(encodings)
        self._tokenizer.warn_of_cut(sum(row.cut for row in rows), len(rows))
        labeled = self._answer(rows, self._labeled, batch_size, batch_tokens)
        answers = []
        for words, encoding, (best, _) in zip(sentences, encodings, labeled, strict=True):
            ends = accumulate(len(word) + 1 for word in words)
            spans = [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]
            tokens = first_tokens(encoding.offsets, spans)
            answers.append([OUTSIDE if x is None else self.labels[best[x]] for x in tokens])
        return answers

    def tag_stream(
        self, rows: Iterable[str], **limits: Unpack[StreamLimits]
    ) -> Iterator[list[Entity]]:
        """The entities of each row of a stream; all else as `Classifier.probabilities_stream`."""
        return self._stream(rows, self._tag, [], **limits)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """The entities of each line: label, text, label, text, ...; `entities` in JSON."""
        for entities in self.tag_stream(rows, **options):
            rounded = [asdict(entity) | {"score": round(entity.score, 6)} for entity in entities]
            parts = [part for entity in entities for part in (entity.label, entity.text)]
            yield "\t".join(part.replace("\t", " ") for part in parts), {"entities": rounded}

    def _tag(self, texts: Sequence[str], **limits: Any) -> tuple[list[list[Entity]], int]:
        """Entities of each text, and how many texts were cut."""
        encodings = self._tokenizer.encodings(texts)
        rows = self._tokenizer.rows(encodings)
        labeled = self._answer(rows, self._labeled, **limits)
        tagged = []
        for text, encoding, (best, scores) in zip(texts, encodings, labeled, strict=True):
            tokens, words = self._words(text, encoding)
            labels = [self.labels[best[token]] for token in tokens]
            entities = []
            for kind, first, last in entity_runs(labels, self._scheme):
                start, end = words[first][0], words[last][1]
                mean = sum(float(scores[x]) for x in tokens[first : last + 1]) / (last + 1 - first)
                entities.append(Entity(kind, start, end, text[start:end], mean))
            tagged.append(entities)
        return tagged, sum(row.cut for row in rows)

    def _words(self, text: str, encoding: Any) -> tuple[list[int], list[Span]]:
        """The first token of each word of a text, and the characters of the words.

        Where the tokenizer marks the tokens that go on with a word (as `##`), words are its own.
        Elsewhere a word ends at a space.
        """
        marks = self._tokenizer.marks_continuations
        tokens: list[int] = []
        words: list[Span] = []
        last = None
        offsets, numbers = encoding.offsets, encoding.word_ids
        for token, special in enumerate(encoding.special_tokens_mask):
            if special:
                continue
            start, end = offsets[token]
            if marks:
                goes_on = numbers[token] == last
            else:
                # Some tokenizers' tokens begin with the space before a word, others' after it.
                goes_on = start > 0 and " " not in text[start - 1 : start + 1]
            last = numbers[token]
            if tokens and goes_on:
                words[-1] = (words[-1][0], end)
            else:
                tokens.append(token)
                words.append((start, end))
        return tokens, words

    def _labeled(self, batch: Batch) -> Iterable[LabeledTokens]:
        """The most probable label of each token, padding included, and its probability."""
        logits = self.run(batch)  # [rows, tokens, labels]
        best = logits.argmax(-1)
        log_softmax(logits.reshape(-1, logits.shape[-1]))  # a view
        return zip(best, np.exp(logits.max(-1)), strict=True)
