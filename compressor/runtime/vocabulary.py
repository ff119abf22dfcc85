"""Two numberings of a translator's tokens: the tokenizer's ids, and the decoder's indices.

A decoder may have rows only for the tokens that a translation can consist of. Its indices count
these from 0 on, in the order of their ids. The search uses indices; users see ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact, read_artifact
from compressor.runtime.generation import Generation
from compressor.storage.input_files import read_json

Tokens = NDArray[np.int64]


class OutputTokens:
    """The tokens that a decoder scores.

    Args:
        ids: the tokenizer's ids of these tokens, ascending.
        vocabulary: how many ids there are.
    """

    def __init__(self, ids: Sequence[int], vocabulary: int) -> None:
        self.ids: Tokens = np.asarray(ids, dtype=np.int64)
        self._indices: Tokens = np.full(vocabulary, -1, dtype=np.int64)
        self._indices[self.ids] = np.arange(len(self.ids))

    def indices(self, ids: Tokens) -> Tokens:
        """Indices of tokens, any shape.

        Raises:
            InputError: the decoder does not score one of the tokens.
        """
        indices: Tokens = self._indices[ids]
        if (indices < 0).any():
            raise InputError(
                f"this decoder cannot produce token {ids[indices < 0][0]}; see its output tokens",
                id="token-not-in-output",
            )
        return indices

    def settings(self, given: Generation) -> Generation:
        """Generation settings with ids -> the same settings with indices."""

        def one(token: int | None) -> int | None:
            return None if token is None else int(self.indices(np.array(token)))

        def some(tokens: Sequence[int]) -> list[int]:
            # Tokens that the decoder does not score cannot occur.
            return [int(index) for index in self._indices[list(tokens)] if index >= 0]

        start = int(self.indices(np.array(given.decoder_start_token_id)))
        forced = given.forced_eos_token_id
        return replace(
            given,
            decoder_start_token_id=start,
            eos_token_id=some(given.eos_token_id),
            forced_bos_token_id=one(given.forced_bos_token_id),
            forced_eos_token_id=some(forced) if isinstance(forced, list) else one(forced),
            suppress_tokens=some(given.suppress_tokens),
        )

    def rows(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Rows of indices -> rows of ids."""
        return [self.ids[list(row)].tolist() for row in rows]


class AllTokens(OutputTokens):
    """All ids: an index is the id."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(range(vocabulary), vocabulary)

    def settings(self, given: Generation) -> Generation:
        return given

    def rows(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        return [list(row) for row in rows]


def count_output_tokens(directory: Path) -> int | None:
    """How many tokens the decoder of the artifact in `directory` scores; None for a classifier.

    Raises:
        InputError: not an artifact.
    """
    artifact = read_artifact(directory)
    return None if artifact.scored is None else len(open_output_tokens(directory, artifact).ids)


def open_output_tokens(directory: Path, artifact: Artifact) -> OutputTokens:
    """The tokens that the decoder of the artifact in `directory` scores."""
    assert artifact.scored is not None  # it has a decoder
    vocabulary, file = artifact.scored
    if file is None:
        return AllTokens(vocabulary)
    return read_output_tokens(directory / GRAPH_DIRECTORY / file, vocabulary)


def read_output_tokens(path: Path, vocabulary: int) -> OutputTokens:
    """The list of ids in a JSON file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return OutputTokens(read_json(path), vocabulary)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {path} ({error}); export the model again", id="output-tokens-unreadable"
        ) from error
