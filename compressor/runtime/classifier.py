"""Classifiers of texts or pairs, with one label of each or with any number."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from compressor.runtime.artifact import ClassificationArtifact
from compressor.runtime.batching import Floats, log_softmax, sigmoid
from compressor.runtime.runtime import BatchSizes, EncoderRuntime, Line, StreamLimits

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
