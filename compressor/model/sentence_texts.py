"""What sentence-transformers does to texts before an encoder reads them.

Texts are lower-cased, begin with a prompt, and are cut. All of it is kept where texts become
tokens: in the tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import normalizers

from compressor.errors import InputError
from compressor.model.sentence_settings import SentenceSettings

_ATTRIBUTE = "sentence_prompts"  # of a tokenizer; it is not saved


@dataclass(frozen=True)
class Prompts:
    """What texts begin with.

    Args:
        named: by the name of a prompt.
        default: where none is named.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    default: str = ""


def prompts_of(tokenizer: Any) -> Prompts:
    """The prompts of a model, by its tokenizer."""
    return getattr(tokenizer, _ATTRIBUTE, Prompts())


def follow_settings(tokenizer: Any, config: Any, settings: SentenceSettings | None) -> None:
    """Make a tokenizer read texts as sentence-transformers does, in place.

    Args:
        config: of the model that it belongs to.
        settings: None of a checkpoint without `modules.json`.
    """
    given = settings or SentenceSettings()
    # Of both lengths that files may give the package goes by its own, be it the larger one, and by
    # the number of positions where it has none, also of models whose positions are relative.
    positions = getattr(config, "max_position_embeddings", None)
    own = (tokenizer.model_max_length, positions)
    tokenizer.model_max_length = given.max_tokens or min(x for x in own if x is not None)
    setattr(tokenizer, _ATTRIBUTE, Prompts(given.prompts, given.default_prompt))
    if given.lower_case:
        _lower_case(tokenizer)


def _lower_case(tokenizer: Any) -> None:
    if not tokenizer.is_fast:
        raise InputError(
            f"tokenizer class {type(tokenizer).__name__} has no fast form, which do_lower_case of "
            "sentence-transformers needs; give a checkpoint with tokenizer.json",
            id="tokenizer-class-unsupported",
        )
    backend = tokenizer.backend_tokenizer
    found = backend.normalizer
    several = isinstance(found, normalizers.Sequence)
    steps = list(found) if several else [] if found is None else [found]
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
