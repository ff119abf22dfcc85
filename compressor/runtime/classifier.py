"""Classifying texts, or pairs of texts, with an exported model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.artifact import ClassificationArtifact
from compressor.runtime.batching import CHUNK_ROWS, Batch, check_limits
from compressor.runtime.encoder import EncoderRuntime
from compressor.runtime.processors import log_softmax


class Classifier(EncoderRuntime[ClassificationArtifact]):
    """An exported classifier; arguments and errors are those of `Runtime`."""

    task = "classification"

    @property
    def labels(self) -> list[str]:
        """Names of the classes in the order of the logits."""
        return self.artifact.labels

    def probabilities(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> NDArray[np.float32]:
        """The softmax of `logits`, with the same arguments and errors."""
        return _softmax(self.logits(texts, pairs, batch_size, batch_tokens))

    def classify(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> list[str]:
        """The most probable label of each text or pair; arguments and errors of `logits`."""
        best = self.logits(texts, pairs, batch_size, batch_tokens).argmax(axis=1)
        return [self.labels[label] for label in best]

    def probabilities_stream(
        self,
        rows: Iterable[str] | Iterable[tuple[str, str]],
        *,
        chunk_rows: int = CHUNK_ROWS,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> Iterator[NDArray[np.float32] | None]:
        """Probabilities [labels] of each row of a stream of any length, in their order.

        A row of white space alone gives None. One warning at the end counts the rows that were cut.

        Args:
            rows: texts, or (text, pair) tuples; read a chunk at a time.
            chunk_rows: rows that are read ahead and sorted by length; all that is held at a time.
            batch_size, batch_tokens: as in `logits`.

        Raises:
            UsageError: a number below 1.
        """
        check_limits(chunk_rows=chunk_rows, batch_size=batch_size, batch_tokens=batch_tokens)
        return self._stream(rows, self._probabilities, None, chunk_rows, batch_size, batch_tokens)

    def classify_stream(
        self,
        rows: Iterable[str] | Iterable[tuple[str, str]],
        *,
        chunk_rows: int = CHUNK_ROWS,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> Iterator[str]:
        """The most probable label of each row, "" where `probabilities_stream` gives None."""
        probabilities = self.probabilities_stream(
            rows, chunk_rows=chunk_rows, batch_size=batch_size, batch_tokens=batch_tokens
        )
        return ("" if row is None else self.labels[row.argmax()] for row in probabilities)

    def _probabilities(self, batch: Batch) -> Iterable[NDArray[np.float32] | None]:
        return _softmax(self.run(batch))


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities [rows, labels]; overwrites `logits`."""
    log_softmax(logits)
    return np.exp(logits)
