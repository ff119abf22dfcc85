"""A number for each text or pair, and texts in the order of their relevance to a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError
from compressor.runtime.artifact import Activation, RegressionArtifact, RerankingArtifact
from compressor.runtime.batching import CHUNK_ROWS, Batch, check_limits, in_chunks, sigmoid
from compressor.runtime.runtime import BatchSizes, EncoderRuntime, Line, StreamLimits
from compressor.runtime.text import one_warning_of_cut


class Regressor(EncoderRuntime[RegressionArtifact]):
    """An exported model with one output; arguments and errors are those of `Runtime`."""

    task = "regression"
    line_options = ("pairs",)

    def predict(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        **limits: Unpack[BatchSizes],
    ) -> NDArray[np.float32]:
        """The number of each text or pair, [rows]; arguments and errors of `logits`.

        The activation function of a cross-encoder of sentence-transformers is applied, as in
        `CrossEncoder.predict`.
        """
        logits = self.logits(texts, pairs, **limits)[:, 0]
        return _activated(logits, self.artifact.activation)

    def predict_stream(
        self, rows: Iterable[str] | Iterable[tuple[str, str]], **limits: Unpack[StreamLimits]
    ) -> Iterator[float | None]:
        """The number of each row of a stream; all else as `Classifier.probabilities_stream`."""

        def numbers(batch: Batch) -> Iterable[float | None]:
            scores = _activated(self.run(batch)[:, 0], self.artifact.activation)
            return list(scores.tolist())

        return self._stream(rows, self._texts_to(numbers), None, **limits)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """The number of each line; `score` in JSON."""
        for number in self.predict_stream(rows, **options):
            text = "" if number is None else f"{number:.6f}"
            yield text, {"score": None if number is None else round(number, 6)}


class Ranked(NamedTuple):
    """A text in a ranking: its number in the list, from 0, and its score."""

    number: int
    score: float


class Reranker(EncoderRuntime[RerankingArtifact]):
    """An exported model that reads query and text as a pair; arguments are those of `Runtime`."""

    task = "reranking"
    line_options = ("query", "top_k")

    def scores(
        self, queries: Sequence[str], texts: Sequence[str], **limits: Unpack[BatchSizes]
    ) -> NDArray[np.float32]:
        """How relevant each text is to the query beside it, [rows]: the logit of "relevant".

        The activation function of a cross-encoder of sentence-transformers is applied, as in
        `CrossEncoder.predict`. Errors are those of `logits`.
        """
        logits = relevance(self.logits(queries, texts, **limits))
        return _activated(logits, self.artifact.activation)

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        top_k: int | None = None,
        **limits: Unpack[BatchSizes],
    ) -> list[Ranked]:
        """The texts, or `top_k` of them, the most relevant first; equal ones in their order."""
        check_limits(top_k=top_k)
        scores = self.scores([query] * len(texts), texts, **limits)
        # Negated: reversing the order would also reverse that of equal ones.
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [Ranked(int(number), float(scores[number])) for number in order]

    def answer_lines(
        self,
        rows: Iterable[Any],
        query: str = "",
        top_k: int | None = None,
        chunk_rows: int = CHUNK_ROWS,
        **options: Any,
    ) -> Iterator[Line]:
        """Score and text of each line that is not blank, the most relevant one first.

        In JSON `line` is its number among the lines that were read. UsageError for no query.
        """
        if not query:
            raise UsageError(
                "--query is missing: what are the lines to be relevant to?", id="query-missing"
            )
        scored: list[tuple[int, str, float]] = []
        filled = ((number, text) for number, text in enumerate(rows, 1) if text.strip())
        with one_warning_of_cut():
            for chunk in in_chunks(filled, chunk_rows):
                texts = [text for _, text in chunk]
                scores = self.scores([query] * len(texts), texts, **options).tolist()
                scored += [(*line, score) for line, score in zip(chunk, scores, strict=True)]
        for number, text, score in sorted(scored, key=lambda line: -line[2])[:top_k]:
            data = {"line": number, "score": round(score, 6), "text": text}
            yield f"{score:.6f}\t{text}", data


def relevance(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The logit of "relevant", the second of two classes, in each row of logits, [rows]."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    # Its sigmoid is the second class's probability by the softmax.
    difference: NDArray[np.float32] = logits[:, 1] - logits[:, 0]
    return difference


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The probability of "relevant" in each row of logits, [rows]."""
    return sigmoid(relevance(logits))


def _activated(logits: NDArray[np.float32], activation: Activation) -> NDArray[np.float32]:
    return sigmoid(logits) if activation == "sigmoid" else logits
