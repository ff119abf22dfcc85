"""Ranking texts by how relevant they are to a query, with an exported model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError
from compressor.runtime.artifact import RerankingArtifact
from compressor.runtime.batching import CHUNK_ROWS, check_limits, in_chunks
from compressor.runtime.encoder import EncoderRuntime
from compressor.runtime.processors import activated, sigmoid
from compressor.runtime.runtime import Line
from compressor.runtime.text import one_warning_of_cut


class Ranked(NamedTuple):
    """A text in a ranking: its number in the list, from 0, and its score."""

    number: int
    score: float


class Reranker(EncoderRuntime[RerankingArtifact]):
    """An exported model that reads query and text as a pair; arguments are those of `Runtime`."""

    task = "reranking"
    line_options = ("query", "top_k")

    def scores(
        self,
        queries: Sequence[str],
        texts: Sequence[str],
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> NDArray[np.float32]:
        """How relevant each text is to the query beside it, [rows]: the logit of "relevant".

        The activation function of a cross-encoder of sentence-transformers is applied, as in
        `CrossEncoder.predict`. Errors are those of `logits`.
        """
        logits = relevance(self.logits(queries, texts, batch_size, batch_tokens))
        return activated(logits, self.artifact.activation)

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        top_k: int | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> list[Ranked]:
        """The texts, the most relevant one first; of equal ones the first comes first.

        Args:
            top_k: how many to return; None: all.
        """
        check_limits(top_k=top_k)
        scores = self.scores([query] * len(texts), texts, batch_size, batch_tokens)
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

        In JSON `line` is its number among the lines that were read.

        Raises:
            UsageError: no query.
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
