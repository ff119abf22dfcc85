"""Numbers for texts, or pairs of texts, by an exported model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.artifact import RegressionArtifact
from compressor.runtime.batching import Batch
from compressor.runtime.encoder import EncoderRuntime
from compressor.runtime.processors import activated
from compressor.runtime.runtime import Line, StreamLimits


class Regressor(EncoderRuntime[RegressionArtifact]):
    """An exported model with one output; arguments and errors are those of `Runtime`."""

    task = "regression"
    line_options = ("pairs",)

    def predict(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> NDArray[np.float32]:
        """The number of each text or pair, [rows]; arguments and errors of `logits`.

        The activation function of a cross-encoder of sentence-transformers is applied, as in
        `CrossEncoder.predict`.
        """
        logits = self.logits(texts, pairs, batch_size, batch_tokens)[:, 0]
        return activated(logits, self.artifact.activation)

    def predict_stream(
        self, rows: Iterable[str] | Iterable[tuple[str, str]], **limits: Unpack[StreamLimits]
    ) -> Iterator[float | None]:
        """The number of each row of a stream; all else as `Classifier.probabilities_stream`."""

        def numbers(batch: Batch) -> Iterable[float | None]:
            scores = activated(self.run(batch)[:, 0], self.artifact.activation)
            return list(scores.tolist())

        return self._stream(rows, partial(self._answer_texts, numbers), None, **limits)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """The number of each line; `score` in JSON."""
        for number in self.predict_stream(rows, **options):
            if number is None:
                yield "", {"score": None}
            else:
                yield f"{number:.6f}", {"score": round(number, 6)}
