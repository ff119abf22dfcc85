"""Embedding texts with an exported encoder, whose graph pools and normalizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Unpack

import numpy as np

from compressor.errors import UsageError, did_you_mean
from compressor.runtime.artifact import EmbeddingArtifact
from compressor.runtime.batching import Floats, require_texts
from compressor.runtime.runtime import BatchSizes, EncoderRuntime, Line, StreamLimits
from compressor.runtime.text import Encoded

_LEAST = 1e-12  # norm of a vector of zeros


class Embedder(EncoderRuntime[EmbeddingArtifact]):
    """An exported encoder of texts; arguments and errors are those of `Runtime`."""

    task = "embedding"
    line_options = ("prompt",)

    def _open(self) -> None:
        super()._open()
        self._tokenizer.prefix = self.artifact.default_prompt

    @property
    def width(self) -> int:
        """How many numbers an embedding has."""
        return self.artifact.width

    def with_prompt(self, name: str | None) -> Embedder:
        """The same model, all of whose texts begin with another prompt; None: the default one.

        UsageError for a name that is not in `artifact.prompts`. Where it has no prompts for them,
        those of `query` and `document` are empty.
        """
        known = {"query": "", "document": ""} | dict(self.artifact.prompts)
        if name is not None and name not in known:
            raise UsageError(
                f"prompt {name}: the model has no such prompt{did_you_mean(name, known)}; it has "
                f"{', '.join(known)}",
                id="prompt-unknown",
            )
        other = copy(self)
        other._tokenizer = copy(self._tokenizer)
        other._tokenizer.prefix = self.artifact.default_prompt if name is None else known[name]
        return other

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoded]:
        """Token ids of each text, and then of each of `pairs`: every text has a row."""
        require_texts(texts)
        require_texts(pairs)
        return super().encode([*texts, *(pairs or ())])

    def embed(self, texts: Sequence[str], **limits: Unpack[BatchSizes]) -> Floats:
        """Embeddings [rows, width] in the order of the texts; arguments and errors of `logits`."""
        return self.logits(texts, None, **limits)

    def similarities(
        self, texts: Sequence[str], pairs: Sequence[str], **limits: Unpack[BatchSizes]
    ) -> Floats:
        """How similar the embeddings of each text and its pair are, [rows]; as `logits`."""
        require_texts(texts, pairs)
        # In one list, so that rows of similar length share a batch on both sides.
        both = self.embed([*texts, *pairs], **limits)
        return self.compare(both[: len(texts)], both[len(texts) :])

    def compare(self, first: Floats, second: Floats) -> Floats:
        """How similar each row of two arrays of embeddings [rows, width] is, as the model says."""
        return similarities(self.artifact.similarity, first, second)

    def embed_stream(self, rows: Iterable[str], **limits: Unpack[StreamLimits]) -> Iterator[Floats]:
        """The embedding [width] of each row of a stream, zeros for one of white space alone.

        All else as `Classifier.probabilities_stream`.
        """
        blank = np.zeros(self.width, dtype=np.float32)
        return self._stream(rows, self._texts_to(self.run), blank, **limits)

    def answer_lines(
        self, rows: Iterable[Any], prompt: str | None = None, **options: Any
    ) -> Iterator[Line]:
        """The numbers of each line's embedding, with tabs between them; `embedding` in JSON."""
        for row in self.with_prompt(prompt).embed_stream(rows, **options):
            # As NumPy writes a float32: the digits that make it the same again.
            numbers = [float(str(number)) for number in row]
            yield "\t".join(map(str, numbers)), {"embedding": numbers}


def cosines(first: Floats, second: Floats) -> Floats:
    """The cosine of each row of two arrays [rows, width], [rows]; 0 where one is all zeros."""
    # A blank text has a vector of zeros, by whose norm nothing can be divided.
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosine: Floats = (first * second).sum(axis=1) / np.maximum(norms, _LEAST)
    return cosine


def similarities(kind: str, first: Floats, second: Floats) -> Floats:
    """How similar each row of two arrays [rows, width] is, [rows]: distances have a minus."""
    similarity: Floats = cosines(first, second)
    if kind == "dot":
        similarity = (first * second).sum(axis=1)
    elif kind == "euclidean":
        similarity = -np.linalg.norm(first - second, axis=1)
    elif kind == "manhattan":
        similarity = -np.abs(first - second).sum(axis=1)
    return similarity


def unit(vectors: Floats) -> Floats:
    """Floats [rows, width] with a norm of 1; zeros stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = vectors / np.maximum(norms, _LEAST)
    return scaled
