"""Encoders that answer texts or pairs: labels, numbers, an order by relevance, embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple, Unpack

import numpy as np

from compressor.errors import UsageError, did_you_mean
from compressor.runtime.artifact import (
    Activation,
    ClassificationArtifact,
    EmbeddingArtifact,
    RegressionArtifact,
    RerankingArtifact,
)
from compressor.runtime.batching import Floats, check_limits, log_softmax, require_texts, sigmoid
from compressor.runtime.runtime import BatchSizes, EncoderRuntime, Line, StreamLimits
from compressor.runtime.text import Encoded

_LEAST = 1e-12  # norm of a vector of zeros
Probable = Sequence[tuple[str, float]]  # labels with their probabilities


class LabelRuntime(EncoderRuntime[ClassificationArtifact]):
    """An exported model of labels; arguments and errors are those of `Runtime`.

    A subclass says what probabilities logits stand for, and which labels are its answer.
    """

    line_options = ("pairs", "top_k", "probabilities")

    @property
    def labels(self) -> list[str]:
        """Names of the classes in the order of the logits."""
        return self.artifact.labels

    @abstractmethod
    def _probabilities_of(self, logits: Floats) -> Floats:
        """Probabilities [rows, labels] of logits [rows, labels], which may be overwritten."""

    @abstractmethod
    def _chosen(self, probable: Probable) -> tuple[dict[str, Any], Probable]:
        """Choose the labels of a row.

        Args:
            probable: all labels with their probabilities; none for a blank row.

        Returns:
            The answer as a field in JSON, and the labels that are chosen, with their probabilities.
        """

    def probabilities(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, **limits: Unpack[BatchSizes]
    ) -> Floats:
        """Compute the probability of each label.

        Args:
            texts: in any order of lengths.
            pairs: the second text of each row, for models of pairs.
            limits: how large batches may get, see `logits`.

        Returns:
            [rows, labels], in the order of the texts and of `labels`.

        Raises:
            UsageError: a number below 1, not as many pairs as texts, or one text in place of a
                list.
        """
        return self._probabilities_of(self.logits(texts, pairs, **limits))

    def probabilities_stream(
        self, rows: Iterable[str] | Iterable[tuple[str, str]], **limits: Unpack[StreamLimits]
    ) -> Iterator[Floats | None]:
        """Compute the probabilities for each row of a stream of any length, in its order.

        One warning at the end counts the rows that were cut.

        Args:
            rows: texts, or (text, pair) tuples; read a chunk at a time.
            limits: those of `logits`, and `chunk_rows` that are read ahead, sorted by length; all
                that is held at a time.

        Returns:
            For each row [labels]; None for one of white space alone.

        Raises:
            UsageError: a number below 1, or one text in place of several.
        """
        return self._stream(rows, self._logits_to(self._probabilities_of), None, **limits)

    def answer_lines(
        self,
        rows: Iterable[Any],
        top_k: int | None = None,
        probabilities: bool = False,
        **options: Any,
    ) -> Iterator[Line]:
        """Answer each line with its labels.

        Args:
            rows: texts, or pairs of texts.
            top_k: the most probable labels with their probabilities, instead of the answer alone.
            probabilities: without `top_k`, all in the model's order, with their probabilities.
            options: those of `StreamLimits`.
        """
        for row in self.probabilities_stream(rows, **options):
            probable = [] if row is None else list(zip(self.labels, row.tolist(), strict=True))
            answer, shown = self._chosen(probable)
            if top_k is not None:
                shown = sorted(probable, key=lambda pair: -pair[1])[:top_k]
            elif probabilities:
                shown = probable
            text = "\t".join(label for label, _ in shown)
            if top_k is not None or probabilities:
                text = "\t".join(f"{label}\t{value:.6f}" for label, value in shown)
            yield text, answer | {"probabilities": {label: round(x, 6) for label, x in shown}}


class Classifier(LabelRuntime):
    """An exported classifier, whose probabilities are the softmax of its logits."""

    task = "classification"

    def _probabilities_of(self, logits: Floats) -> Floats:
        log_softmax(logits)
        return np.exp(logits)

    def _chosen(self, probable: Probable) -> tuple[dict[str, Any], Probable]:
        best = [max(probable, key=lambda pair: pair[1])] if probable else []
        return {"label": best[0][0] if best else None}, best

    def classify(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, **limits: Unpack[BatchSizes]
    ) -> list[str]:
        """The most probable label of each text or pair.

        Args:
            texts: in any order of lengths.
            pairs: the second text of each row, for models of pairs.
            limits: how large batches may get, see `logits`.

        Raises:
            UsageError: a number below 1, not as many pairs as texts, or one text in place of a
                list.
        """
        # The softmax would not change which logit is the largest.
        best = self.logits(texts, pairs, **limits).argmax(axis=1)
        return [self.labels[label] for label in best]

    def classify_stream(
        self, rows: Iterable[str] | Iterable[tuple[str, str]], **limits: Unpack[StreamLimits]
    ) -> Iterator[str]:
        """The most probable label of each row of a stream, "" for one of white space alone.

        Arguments and errors are those of `probabilities_stream`.
        """
        probabilities = self.probabilities_stream(rows, **limits)
        return ("" if row is None else self.labels[row.argmax()] for row in probabilities)


class MultiLabelClassifier(LabelRuntime):
    """An exported classifier of any number of labels, each with a probability of its own."""

    task = "multilabel"

    def _probabilities_of(self, logits: Floats) -> Floats:
        return sigmoid(logits)

    def _chosen(self, probable: Probable) -> tuple[dict[str, Any], Probable]:
        likely = [pair for pair in probable if pair[1] > 0.5]
        return {"labels": [label for label, _ in likely]}, likely

    def classify(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, **limits: Unpack[BatchSizes]
    ) -> list[list[str]]:
        """The labels of each text or pair whose probability is over 0.5, in the model's order.

        Args:
            texts: in any order of lengths.
            pairs: the second text of each row, for models of pairs.
            limits: how large batches may get, see `logits`.

        Raises:
            UsageError: a number below 1, not as many pairs as texts, or one text in place of a
                list.
        """
        # The sigmoid is over 0.5 where the logit is over 0.
        rows = self.logits(texts, pairs, **limits) > 0
        return [[self.labels[label] for label in np.flatnonzero(row)] for row in rows]


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
