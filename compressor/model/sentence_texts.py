"""What sentence-transformers does to texts before an encoder reads them.

Texts are lower-cased, begin with a prompt, and are cut. All of it is kept where texts become
tokens: in the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer, normalizers, processors

from compressor.errors import InputError
from compressor.model.cross_encoder import is_cross_encoder
from compressor.model.sentence_settings import SentenceSettings

_PLAIN = processors.TemplateProcessing("$A", "$A $B:1")  # without a post-processor
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
    # The package hands on what a tokenizer gives unasked.
    gives_types = "token_type_ids" in tokenizer.model_input_names
    if is_cross_encoder(config) and tokenizer.is_fast and not gives_types:
        _drop_types(tokenizer.backend_tokenizer)


def _drop_types(backend: Any) -> None:
    """Give both texts of a pair the type 0, as a model reads them that is handed no types."""
    state = json.loads(backend.to_str())
    found = state["post_processor"] or json.loads(_PLAIN.__getstate__())
    steps = found["processors"] if found["type"] == "Sequence" else [found]
    for step in steps:
        if step["type"] == "BertProcessing":
            (cls, start), (sep, end) = step["cls"], step["sep"]
            pieces = f"{cls} $A {sep}", f"{cls} $A {sep} $B {sep}", [(cls, start), (sep, end)]
            made = json.loads(processors.TemplateProcessing(*pieces).__getstate__())
            step.clear()
            step.update(made)
        for form in ("single", "pair") if step["type"] == "TemplateProcessing" else ():
            for piece in step[form]:
                next(iter(piece.values()))["type_id"] = 0
    state["post_processor"] = found
    backend.post_processor = Tokenizer.from_str(json.dumps(state)).post_processor


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
