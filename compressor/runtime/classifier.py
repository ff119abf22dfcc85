"""Classifying texts, or pairs of texts, with an exported model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.artifact import ClassificationArtifact, MultiLabelArtifact
from compressor.runtime.batching import Batch, log_softmax, sigmoid
from compressor.runtime.runtime import BatchSizes, EncoderRuntime, Line, StreamLimits

Probable = Sequence[tuple[str, float]]  # labels with their probabilities
Labeled = TypeVar("Labeled", bound=ClassificationArtifact)


class LabelRuntime(EncoderRuntime[Labeled]):
    """An exported model of labels; arguments and errors are those of `Runtime`."""

    line_options = ("pairs", "top_k", "probabilities")

    @property
    def labels(self) -> list[str]:
        """Names of the classes in the order of the logits."""
        return self.artifact.labels

    @abstractmethod
    def _probabilities_of(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """[rows, labels] of logits, which may be overwritten."""

    @abstractmethod
    def _chosen(self, probable: Probable) -> tuple[dict[str, Any], Probable]:
        """The answer to a row, a field in JSON, and its labels; a blank row has none."""

    def probabilities(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        **limits: Unpack[BatchSizes],
    ) -> NDArray[np.float32]:
        """Probabilities [rows, labels]; arguments and errors of `logits`."""
        return self._probabilities_of(self.logits(texts, pairs, **limits))

    def probabilities_stream(
        self, rows: Iterable[str] | Iterable[tuple[str, str]], **limits: Unpack[StreamLimits]
    ) -> Iterator[NDArray[np.float32] | None]:
        """Probabilities [labels] of each row of a stream of any length, in their order.

        A row of white space alone gives None. One warning at the end counts the rows that were cut.

        Args:
            rows: texts, or (text, pair) tuples; read a chunk at a time.
            limits: `chunk_rows`: rows that are read ahead and sorted by length, all that is held at
                a time; `batch_size`, `batch_tokens`: as in `logits`.

        Raises:
            UsageError: a number below 1.
        """

        def probabilities(batch: Batch) -> Iterable[NDArray[np.float32] | None]:
            return self._probabilities_of(self.run(batch))

        return self._stream(rows, self._texts_to(probabilities), None, **limits)

    def answer_lines(
        self,
        rows: Iterable[Any],
        top_k: int | None = None,
        probabilities: bool = False,
        **options: Any,
    ) -> Iterator[Line]:
        """The labels of each line.

        Args:
            top_k: the most probable ones with their probabilities, instead of the answer alone.
            probabilities: without `top_k`, all in the model's order, with their probabilities.
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


class Classifier(LabelRuntime[ClassificationArtifact]):
    """An exported classifier, whose probabilities are the softmax of its logits."""

    task = "classification"

    def _probabilities_of(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        log_softmax(logits)
        return np.exp(logits)

    def _chosen(self, probable: Probable) -> tuple[dict[str, Any], Probable]:
        best = [max(probable, key=lambda pair: pair[1])] if probable else []
        return {"label": best[0][0] if best else None}, best

    def classify(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        **limits: Unpack[BatchSizes],
    ) -> list[str]:
        """The most probable label of each text or pair; arguments and errors of `logits`."""
        # The softmax would not change which logit is the largest.
        best = self.logits(texts, pairs, **limits).argmax(axis=1)
        return [self.labels[label] for label in best]

    def classify_stream(
        self, rows: Iterable[str] | Iterable[tuple[str, str]], **limits: Unpack[StreamLimits]
    ) -> Iterator[str]:
        """The most probable label of each row, "" where `probabilities_stream` gives None."""
        probabilities = self.probabilities_stream(rows, **limits)
        return ("" if row is None else self.labels[row.argmax()] for row in probabilities)


class MultiLabelClassifier(LabelRuntime[MultiLabelArtifact]):
    """An exported classifier of any number of labels, each with a probability of its own."""

    task = "multilabel"

    def _probabilities_of(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        return sigmoid(logits)

    def _chosen(self, probable: Probable) -> tuple[dict[str, Any], Probable]:
        likely = [pair for pair in probable if pair[1] > 0.5]
        return {"labels": [label for label, _ in likely]}, likely

    def classify(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        **limits: Unpack[BatchSizes],
    ) -> list[list[str]]:
        """The labels of each text or pair whose probability is over 0.5, in the model's order."""
        # The sigmoid is over 0.5 where the logit is over 0.
        rows = self.logits(texts, pairs, **limits) > 0
        return [[self.labels[label] for label in np.flatnonzero(row)] for row in rows]
