"""Encoders of texts, and how similar their embeddings are."""

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
        """The same opened model, all of whose texts begin with another prompt.

        Args:
            name: in `artifact.prompts`, or `query` or `document`, which are empty where the model
                has no prompts for them; None: the default one.

        Raises:
            UsageError: the model has no such prompt.
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
        """Compute the embedding of each text.

        Args:
            texts: in any order of lengths; rows of similar length share a batch.
            limits: how large batches may get, see `Classifier.logits`.

        Returns:
            [rows, width], in the order of the texts; pooled and normalized as by the model.

        Raises:
            UsageError: a number below 1, or one text in place of a list.
        """
        return self.logits(texts, None, **limits)

    def similarities(
        self, texts: Sequence[str], pairs: Sequence[str], **limits: Unpack[BatchSizes]
    ) -> Floats:
        """How similar the embeddings of each text and its pair are.

        Args:
            texts: in any order of lengths.
            pairs: one for each.
            limits: how large batches may get, see `Classifier.logits`.

        Returns:
            [rows], by the model's own measure, see `compare`.

        Raises:
            UsageError: a number below 1, not as many pairs as texts, or one text in place of a
                list.
        """
        require_texts(texts, pairs)
        # In one list, so that rows of similar length share a batch on both sides.
        both = self.embed([*texts, *pairs], **limits)
        return self.compare(both[: len(texts)], both[len(texts) :])

    def compare(self, first: Floats, second: Floats) -> Floats:
        """How similar each row of two arrays of embeddings is, by the model's measure.

        Args:
            first: [rows, width].
            second: [rows, width].

        Returns:
            [rows]; distances have a minus, so that more is always more similar.
        """
        return similarities(self.artifact.similarity, first, second)

    def embed_stream(self, rows: Iterable[str], **limits: Unpack[StreamLimits]) -> Iterator[Floats]:
        """The embedding [width] of each row of a stream, zeros for one of white space alone.

        Arguments and errors are those of `Classifier.probabilities_stream`; rows are texts.
        """
        blank = np.zeros(self.width, dtype=np.float32)
        return self._stream(rows, self._texts_to(self.run), blank, **limits)

    def answer_lines(
        self, rows: Iterable[Any], prompt: str | None = None, **options: Any
    ) -> Iterator[Line]:
        """Answer each line with its embedding, tabs between the numbers; `embedding` in JSON.

        Args:
            rows: texts.
            prompt: name of what they begin with, see `with_prompt`.
            options: those of `StreamLimits`.
        """
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
    """How similar each row of two arrays is.

    Args:
        kind: `cosine`, `dot`, `euclidean` or `manhattan`, as in sentence-transformers.
        first: [rows, width].
        second: [rows, width].

    Returns:
        [rows]; distances have a minus, so that more is always more similar.
    """
    similarity: Floats = cosines(first, second)
    if kind == "dot":
        similarity = (first * second).sum(axis=1)
    elif kind == "euclidean":
        similarity = -np.linalg.norm(first - second, axis=1)
    elif kind == "manhattan":
        similarity = -np.abs(first - second).sum(axis=1)
    return similarity


def unit(vectors: Floats) -> Floats:
    """Vectors [rows, width] with a norm of 1; zeros stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = vectors / np.maximum(norms, _LEAST)
    return scaled
