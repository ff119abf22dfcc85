"""Classifying texts, or pairs of texts, with an exported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from compressor.runtime.batching import by_length, collate
from compressor.runtime.session import open_session
from compressor.runtime.text import Encoded, TextTokenizer


class Classifier:
    """An exported classifier; needs numpy, onnxruntime, tokenizers and pydantic only.

    Args:
        directory: what `compress run` or `compress export` wrote, with `onnx/` in it.
        precision: one of the artifact's precisions; None takes its default.
        device: `cpu` or `cuda`; never another one than was asked for.
        threads: threads within an operation; None leaves the choice to onnxruntime.

    Raises:
        InputError: not an artifact of a classifier.
        UsageError: an unknown precision or device.
        EnvironmentProblem: a package is missing, or the device is not usable.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        precision: str | None = None,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        graphs = Path(directory) / GRAPH_DIRECTORY
        artifact = read_artifact(Path(directory))
        if not isinstance(artifact, ClassificationArtifact):
            raise InputError(f"{directory} holds a {artifact.task} model; open it with Translator")
        self.artifact = artifact
        self.precision = precision or artifact.default_precision
        self._session = open_session(graphs / artifact.file("model", precision), device, threads)
        self._tokenizer = TextTokenizer(graphs / artifact.tokenizer, artifact.max_source_tokens)
        self.labels = list(artifact.labels)
        self.provider = str(self._session.get_providers()[0])

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoded]:
        """Token ids of each text, or (text, pair), cut to what the model can read."""
        return self._tokenizer.encode(texts, pairs)

    def run(self, batch: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Logits [rows, labels] of one padded batch with the arrays of `artifact.inputs`."""
        feeds = {value.name: batch[value.name] for value in self._session.get_inputs()}
        logits: NDArray[Any] = self._session.run(["logits"], feeds)[0]
        return logits.astype(np.float32, copy=False)

    def logits(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, batch_size: int = 32
    ) -> NDArray[np.float32]:
        """Logits [rows, labels] in the order of the texts."""
        rows = self.encode(texts, pairs)
        found = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
        for places in by_length(rows, batch_size):
            chosen = [rows[place] for place in places]
            found[places] = self.run(
                collate(chosen, self.artifact.pad_token_id, self.artifact.inputs)
            )
        return found

    def classify(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, batch_size: int = 32
    ) -> list[str]:
        """The most probable label of each text, or of each (text, pair)."""
        best = self.logits(texts, pairs, batch_size).argmax(axis=1)
        return [self.labels[label] for label in best]
