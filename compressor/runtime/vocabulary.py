"""Two numberings of a translator's tokens: the tokenizer's ids, and the decoder's indices.

A decoder may score some tokens only. Its indices count these from 0 on, in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.runtime.artifact import (
    GRAPH_DIRECTORY,
    Artifact,
    Generation,
    read_artifact,
    unusable,
)
from compressor.storage.input_files import read_json

Tokens = NDArray[np.int64]


class OutputTokens:
    """The tokens that a decoder scores, by their ids in the tokenizer, ascending."""

    def __init__(self, ids: Sequence[int] | Tokens) -> None:
        self.ids: Tokens = np.asarray(ids, dtype=np.int64)

    def indices(self, ids: Tokens) -> Tokens:
        """Indices of tokens, any shape; InputError for one that the decoder does not score."""
        missing = ids[~np.isin(ids, self.ids)]
        if missing.size:
            raise InputError(
                f"this decoder cannot produce token {missing[0]}; see its output tokens",
                id="token-not-in-output",
            )
        return np.searchsorted(self.ids, ids)

    def settings(self, settings: Generation) -> Generation:
        """Generation settings with ids -> the same settings with indices."""

        def one(token: int | None) -> int | None:
            return None if token is None else int(self.indices(np.array(token)))

        def some(tokens: Sequence[int]) -> list[int]:
            # Tokens that the decoder does not score cannot occur.
            ids = np.array(tokens, np.int64)
            indices: list[int] = self.indices(ids[np.isin(ids, self.ids)]).tolist()
            return indices

        forced = settings.forced_eos_token_id
        return replace(
            settings,
            decoder_start_token_id=int(self.indices(np.array(settings.decoder_start_token_id))),
            eos_token_id=some(settings.eos_token_id),
            forced_bos_token_id=one(settings.forced_bos_token_id),
            forced_eos_token_id=some(forced) if isinstance(forced, list) else one(forced),
            suppress_tokens=some(settings.suppress_tokens),
        )

    def rows(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Rows of indices -> rows of ids."""
        return [self.ids[list(row)].tolist() for row in rows]


def count_output_tokens(directory: Path) -> int | None:
    """How many tokens the decoder of the artifact in `directory` scores; None for an encoder."""
    artifact = read_artifact(directory)
    return None if artifact.scored is None else len(open_output_tokens(directory, artifact).ids)


def open_output_tokens(directory: Path, artifact: Artifact) -> OutputTokens:
    """The tokens that the decoder of the artifact in `directory` scores."""
    assert artifact.scored is not None  # it has a decoder
    vocabulary, file = artifact.scored
    if file is None:
        return OutputTokens(np.arange(vocabulary))
    path = directory / GRAPH_DIRECTORY / file
    try:
        return OutputTokens(read_json(path))
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise unusable(path, error) from error
