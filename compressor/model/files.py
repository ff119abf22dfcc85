"""The files of a checkpoint as one value, read and checked before a model is built of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compressor.model.generation import GenerationSettings
from compressor.model.location import CONFIG_FILE, StoredTensor
from compressor.model.pruning_record import PruningRecord
from compressor.model.sentence_settings import SentenceSettings


@dataclass(frozen=True)
class CheckpointFiles:
    """What the files of a checkpoint say, but for its tokenizer and the values of its weights.

    Args:
        directory: of the files.
        name: as the user gave it: a path or a hub id.
        revision: the commit, of a model from the hub.
        config: of transformers, with the values of `config.json`.
        sentence: settings of sentence-transformers; None: it has none.
        pruning: its `units.json`; None of a dense checkpoint.
        tensors: the stored weights by name.
        generation: how its decoder generates; None of an encoder.
        allow_pickle: whether weights may be read from pickles.
        trust_remote_code: whether transformers may run the code of the tokenizer.
    """

    directory: Path
    name: str
    revision: str | None
    config: Any
    sentence: SentenceSettings | None = None
    pruning: PruningRecord | None = None
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    generation: GenerationSettings | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False

    @property
    def config_path(self) -> Path:
        """The file of the configuration."""
        return self.directory / CONFIG_FILE
