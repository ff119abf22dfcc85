"""How sentence-transformers changes texts before an encoder reads them.

Texts are lower-cased, begin with a prompt, and are cut. All of it is kept in the tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import normalizers

from compressor.errors import InputError
from compressor.model.cross_encoder import is_cross_encoder
from compressor.model.sentence_settings import SentenceSettings
from compressor.model.tokenizer import without_types

_ATTRIBUTE = "sentence_prompts"  # of a tokenizer; it is not saved


@dataclass(frozen=True)
class Prompts:
    """Texts that other texts begin with: by name, and where none is named."""

    named: Mapping[str, str] = field(default_factory=dict)
    default: str = ""


def prompts_of(tokenizer: Any) -> Prompts:
    """The prompts of a model, by its tokenizer."""
    return getattr(tokenizer, _ATTRIBUTE, Prompts())


def follow_settings(tokenizer: Any, config: Any, settings: SentenceSettings | None) -> None:
    """Make a tokenizer read texts as sentence-transformers does, in place.

    Args:
        config: of the model that it belongs to.
        settings: None for a checkpoint without `modules.json`.
    """
    settings = settings or SentenceSettings()
    # Of both lengths that files may give the package takes its own, even a larger one, and the
    # number of positions where it has none, also for models whose positions are relative.
    lengths = (tokenizer.model_max_length, getattr(config, "max_position_embeddings", None))
    tokenizer.model_max_length = settings.max_tokens or min(x for x in lengths if x is not None)
    setattr(tokenizer, _ATTRIBUTE, Prompts(settings.prompts, settings.default_prompt))
    if settings.lower_case:
        _lower_case(tokenizer)
    # The package hands on what a tokenizer gives unasked.
    gives_types = "token_type_ids" in tokenizer.model_input_names
    if is_cross_encoder(config) and tokenizer.is_fast and not gives_types:
        backend = tokenizer.backend_tokenizer
        backend.post_processor = without_types(backend)


def _lower_case(tokenizer: Any) -> None:
    if not tokenizer.is_fast:
        raise InputError(
            f"tokenizer class {type(tokenizer).__name__} has no fast form, which do_lower_case of "
            "sentence-transformers needs; give a checkpoint with tokenizer.json",
            id="tokenizer-class-unsupported",
        )
    backend = tokenizer.backend_tokenizer
    current = backend.normalizer
    several = isinstance(current, normalizers.Sequence)
    steps = list(current) if several else [] if current is None else [current]
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
