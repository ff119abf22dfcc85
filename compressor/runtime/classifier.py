"""Classifying texts, or pairs of texts, with an exported model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.runtime.artifact import (
    GRAPH_DIRECTORY,
    ClassificationArtifact,
    read_artifact,
)
from compressor.runtime.batching import (
    BATCH_TOKENS,
    CHUNK_ROWS,
    by_length,
    check_limits,
    collate,
    in_chunks,
)
from compressor.runtime.consistency import (
    read_unchanged,
    require_classifier,
    require_inside,
)
from compressor.runtime.processors import log_softmax
from compressor.runtime.session import open_session, run_errors, slower_optimizations
from compressor.runtime.text import Encoded, TextTokenizer


class Classifier:
    """An exported classifier; needs numpy, onnxruntime and tokenizers only.

    Args:
        directory: what `compress run` or `compress export` wrote, with `onnx/` in it.
        precision: one of the artifact's precisions; None takes its default.
        device: `cpu` or `cuda`; there is no fallback to another one.
        threads: threads within an operation; None leaves the choice to onnxruntime.
        verify: check the files against `manifest.json` first, about 3 s for each gigabyte; warn
            where there is none.

    Raises:
        InputError: not an artifact of a classifier, or one that is damaged.
        UsageError: an unknown precision or device, or a precision that the device has no kernels
            for.
        EnvironmentProblem: a package is missing, or the device is not usable.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        precision: str | None = None,
        device: str = "cpu",
        threads: int | None = None,
        verify: bool = True,
    ) -> None:
        self._directory = Path(directory)
        graphs = self._directory / GRAPH_DIRECTORY
        if verify:
            artifact = read_unchanged(self._directory, [precision] if precision else None)
        else:
            artifact = read_artifact(self._directory)
            require_inside(self._directory, artifact)
        if not isinstance(artifact, ClassificationArtifact):
            raise InputError(
                f"{directory} holds a {artifact.task} model; open it with Translator",
                id="artifact-of-another-task",
            )
        self.artifact = artifact
        self.precision = artifact.precision(precision, device)
        file = graphs / artifact.file("model", self.precision)
        without = slower_optimizations(device, self.precision)
        self._session = open_session(file, device, threads, without=without)
        self._batch_tokens = BATCH_TOKENS["classification"][device]
        require_classifier(artifact, self._session, self._directory)
        self._tokenizer = TextTokenizer(graphs / artifact.tokenizer, artifact.max_source_tokens)
        self.labels = list(artifact.labels)
        self.provider = str(self._session.get_providers()[0])

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoded]:
        """Token ids of each text, or (text, pair), cut to the model's longest input."""
        rows = self._tokenizer.encode(texts, pairs)
        self._tokenizer.warn_of_cut(sum(row.cut for row in rows), len(rows))
        return rows

    def run(self, batch: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Logits [rows, labels] of one padded batch with the arrays of `artifact.inputs`."""
        feeds = {value.name: batch[value.name] for value in self._session.get_inputs()}
        with run_errors(self._directory):
            logits: NDArray[Any] = self._session.run(["logits"], feeds)[0]
        return logits.astype(np.float32, copy=False)

    def logits(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> NDArray[np.float32]:
        """Logits [rows, labels] in the order of the texts.

        Args:
            texts: in any order of lengths; rows of similar length share a batch.
            pairs: the second text of each row, for tasks on pairs.
            batch_size, batch_tokens: see `compressor.runtime.batching.by_length`.

        Raises:
            UsageError: a number below 1, or not as many pairs as texts.
        """
        return self._logits(self.encode(texts, pairs), batch_size, batch_tokens)

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
        return self._stream(rows, chunk_rows, batch_size, batch_tokens)

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

    def _logits(
        self, rows: Sequence[Encoded], batch_size: int | None, batch_tokens: int | None
    ) -> NDArray[np.float32]:
        logits = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
        for numbers in by_length(rows, batch_size, batch_tokens, self._batch_tokens):
            batch = [rows[number] for number in numbers]
            logits[numbers] = self.run(
                collate(batch, self.artifact.pad_token_id, self.artifact.inputs)
            )
        return logits

    def _stream(
        self,
        rows: Iterable[str] | Iterable[tuple[str, str]],
        chunk_rows: int,
        batch_size: int | None,
        batch_tokens: int | None,
    ) -> Iterator[NDArray[np.float32] | None]:
        texts = cut = 0
        for chunk in in_chunks(rows, chunk_rows):
            columns = [(row,) if isinstance(row, str) else row for row in chunk]
            filled = [row for row in columns if any(text.strip() for text in row)]
            encoded = self._tokenizer.encode(*zip(*filled, strict=True)) if filled else []
            texts, cut = texts + len(chunk), cut + sum(row.cut for row in encoded)
            probabilities = iter(_softmax(self._logits(encoded, batch_size, batch_tokens)))
            for row in columns:
                yield next(probabilities) if any(text.strip() for text in row) else None
        self._tokenizer.warn_of_cut(cut, texts)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities [rows, labels]; overwrites `logits`."""
    log_softmax(logits)
    return np.exp(logits)
