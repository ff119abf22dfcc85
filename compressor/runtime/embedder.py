"""Embedding texts with an exported encoder, whose graph pools and normalizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError
from compressor.runtime.artifact import EmbeddingArtifact
from compressor.runtime.batching import CHUNK_ROWS, require_several
from compressor.runtime.encoder import EncoderRuntime
from compressor.runtime.runtime import Line
from compressor.runtime.text import Encoded

_LEAST = 1e-12  # norm of a vector of zeros


class Embedder(EncoderRuntime[EmbeddingArtifact]):
    """An exported encoder of texts; arguments and errors are those of `Runtime`."""

    task = "embedding"

    @property
    def width(self) -> int:
        """How many numbers an embedding has."""
        return self.artifact.width

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoded]:
        """Token ids of each text, and then of each of `pairs`: every text has its own row."""
        require_several(texts, pairs)
        return super().encode([*texts, *(pairs or ())])

    def embed(
        self, texts: Sequence[str], batch_size: int | None = None, batch_tokens: int | None = None
    ) -> NDArray[np.float32]:
        """Embeddings [rows, width] in the order of the texts.

        Args:
            texts: in any order of lengths; rows of similar length share a batch.
            batch_size, batch_tokens: see `compressor.runtime.batching.by_length`.

        Raises:
            UsageError: a number below 1.
        """
        return self.logits(texts, None, batch_size, batch_tokens)

    def similarities(
        self,
        texts: Sequence[str],
        pairs: Sequence[str],
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> NDArray[np.float32]:
        """The cosine of the embeddings of each text and its pair, [rows].

        Raises:
            UsageError: a number below 1, or not as many pairs as texts.
        """
        require_several(texts, pairs)
        if len(texts) != len(pairs):
            raise UsageError(
                f"there are {len(texts)} texts and {len(pairs)} pairs; give as many of both",
                id="pairs-do-not-match-texts",
            )
        # In one list, so that rows of similar length share a batch on both sides.
        both = self.embed([*texts, *pairs], batch_size, batch_tokens)
        return cosines(both[: len(texts)], both[len(texts) :])

    def embed_stream(
        self,
        rows: Iterable[str],
        *,
        chunk_rows: int = CHUNK_ROWS,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """The embedding [width] of each row of a stream, zeros for one of white space alone.

        All else as `Classifier.probabilities_stream`.
        """
        blank = np.zeros(self.width, dtype=np.float32)
        return self._stream(rows, self.run, blank, chunk_rows, batch_size, batch_tokens)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """The numbers of each line's embedding, with tabs between them; `embedding` in JSON."""
        for row in self.embed_stream(rows, **options):
            # As NumPy writes a float32: the digits that make it the same again.
            numbers = [float(str(number)) for number in row]
            yield "\t".join(map(str, numbers)), {"embedding": numbers}


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each row of two arrays [rows, width], [rows]; 0 where one is all zeros."""
    # A blank text has a vector of zeros, by whose norm nothing can be divided.
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    found: NDArray[np.float32] = (first * second).sum(axis=1) / np.maximum(norms, _LEAST)
    return found
