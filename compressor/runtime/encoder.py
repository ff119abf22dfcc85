"""Running an artifact of one graph: texts, or pairs of texts, in, logits out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.artifact import EncoderArtifact
from compressor.runtime.batching import Batch
from compressor.runtime.runtime import Runtime

Described = TypeVar("Described", bound=EncoderArtifact)


class EncoderRuntime(Runtime[Described]):
    """An exported encoder with a head; arguments and errors are those of `Runtime`."""

    kind = "encoder"
    # docs/tuning.md, "How batches are made", has the measurements on CPUs. CUDA is not measured: a
    # GPU runs more rows at once, and 4096 are 32 rows of 128 tokens.
    batch_tokens: ClassVar[Mapping[str, int]] = {"cpu": 512, "cuda": 4096}

    def _open(self) -> None:
        self._model = self._engine.encoder()

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [rows, outputs] of one padded batch with the arrays of `artifact.inputs`."""
        return self._model(batch)

    def compute(self, batch: Batch, **options: Any) -> object:
        return self.run(batch)

    def logits(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> NDArray[np.float32]:
        """Logits [rows, outputs] in the order of the texts.

        Args:
            texts: in any order of lengths; rows of similar length share a batch.
            pairs: the second text of each row, for tasks on pairs.
            batch_size, batch_tokens: see `compressor.runtime.batching.by_length`.

        Raises:
            UsageError: a number below 1, or not as many pairs as texts.
        """
        rows = self._answer(self.encode(texts, pairs), self.run, batch_size, batch_tokens)
        # NumPy cannot know how many logits no rows would have.
        return np.array(rows, dtype=np.float32).reshape(-1, self.artifact.outputs)
