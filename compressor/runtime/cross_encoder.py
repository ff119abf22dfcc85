"""Models that give texts or pairs a number: of any meaning, or how relevant one is to a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from compressor.errors import UsageError
from compressor.runtime.artifact import Activation, RegressionArtifact, RerankingArtifact
from compressor.runtime.batching import Floats, check_limits, sigmoid
from compressor.runtime.runtime import BatchSizes, EncoderRuntime, Line, StreamLimits


class Regressor(EncoderRuntime[RegressionArtifact]):
    """An exported model with one output; arguments and errors are those of `Runtime`."""

    task = "regression"
    line_options = ("pairs",)

    def predict(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, **limits: Unpack[BatchSizes]
    ) -> Floats:
        """The number of each text or pair.

        It is what `CrossEncoder.predict` of sentence-transformers gives, with its activation
        function.

        Args:
            texts: in any order of lengths.
            pairs: the second text of each row, for models of pairs.
            limits: how large batches may get, see `Classifier.logits`.

        Returns:
            [rows], in the order of the texts.

        Raises:
            UsageError: a number below 1, not as many pairs as texts, or one text in place of a
                list.
        """
        return self._numbers_of(self.logits(texts, pairs, **limits))

    def predict_stream(
        self, rows: Iterable[str] | Iterable[tuple[str, str]], **limits: Unpack[StreamLimits]
    ) -> Iterator[float | None]:
        """The number of each row of a stream, None for one of white space alone.

        Arguments and errors are those of `Classifier.probabilities_stream`.
        """
        numbers = self._stream(rows, self._logits_to(self._numbers_of), None, **limits)
        return (None if number is None else float(number) for number in numbers)

    def _numbers_of(self, logits: Floats) -> Floats:
        return _activated(logits[:, 0], self.artifact.activation)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """Answer each line with its number; `score` in JSON."""
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
    ) -> Floats:
        """How relevant each text is to the query beside it.

        It is what `CrossEncoder.predict` of sentence-transformers gives, with its activation
        function; of a model with two classes it is made of the logit of "relevant", see
        `relevance`.

        Args:
            queries: one for each text; rows of similar length share a batch.
            texts: in any order of lengths.
            limits: how large batches may get, see `Classifier.logits`.

        Returns:
            [rows], in the order of the texts.

        Raises:
            UsageError: a number below 1, not as many queries as texts, or one text in place of a
                list.
        """
        return self._scores_of(self.logits(queries, texts, **limits))

    def _scores_of(self, logits: Floats) -> Floats:
        return _activated(relevance(logits), self.artifact.activation)

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        top_k: int | None = None,
        **limits: Unpack[BatchSizes],
    ) -> list[Ranked]:
        """Order texts by how relevant they are to a query.

        Args:
            query: one text.
            texts: to be ordered.
            top_k: how many to return; None: all.
            limits: how large batches may get, see `Classifier.logits`.

        Returns:
            The most relevant text first; of equal ones the first comes first.

        Raises:
            UsageError: a number below 1, or one text in place of a list.
        """
        check_limits(top_k=top_k)
        scores = self.scores([query] * len(texts), texts, **limits)
        # Negated: reversing the order would also reverse that of equal ones.
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [Ranked(int(number), float(scores[number])) for number in order]

    def answer_lines(
        self, rows: Iterable[Any], query: str = "", top_k: int | None = None, **options: Any
    ) -> Iterator[Line]:
        """Answer with score and text of each line that is not blank, the most relevant first.

        In JSON `line` is its number among the lines that were read.

        Args:
            rows: the texts.
            query: that they are to be relevant to.
            top_k: how many lines to answer with; None: all.
            options: those of `StreamLimits`.

        Raises:
            UsageError: there is no query.
        """
        if not query:
            raise UsageError(
                "--query is missing: what are the lines to be relevant to?", id="query-missing"
            )
        filled = [(number, text) for number, text in enumerate(rows, 1) if text.strip()]
        pairs = [(query, text) for _, text in filled]
        scores = self._stream(pairs, self._logits_to(self._scores_of), 0.0, **options)
        scored = zip(filled, map(float, scores), strict=True)
        for (number, text), score in sorted(scored, key=lambda line: -line[1])[:top_k]:
            data = {"line": number, "score": round(score, 6), "text": text}
            yield f"{score:.6f}\t{text}", data


def relevance(logits: Floats) -> Floats:
    """The logit of "relevant" in each row.

    Args:
        logits: [rows, 1], or [rows, 2] with "relevant" as the second class. Of two it is their
            difference, whose sigmoid is the second class's probability by the softmax.

    Returns:
        [rows].
    """
    if logits.shape[1] == 1:
        return logits[:, 0]
    # Its sigmoid is the second class's probability by the softmax.
    difference: Floats = logits[:, 1] - logits[:, 0]
    return difference


def probabilities(logits: Floats) -> Floats:
    """The probability of "relevant" in each row of logits [rows, 1 or 2]; [rows]."""
    return sigmoid(relevance(logits))


def _activated(logits: Floats, activation: Activation) -> Floats:
    return sigmoid(logits) if activation == "sigmoid" else logits
