"""The weights of a model that belong to single tokens: embeddings, and the output projection.

A copy of a model may have some of their rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from compressor.model.architectures import architecture_of
from compressor.model.modes import shared_copy

# Settings that name tokens, beside those that end in `_token_id`: lists of tokens, and of words,
# which are lists of tokens.
_LISTS = ("suppress_tokens", "begin_suppress_tokens")
_WORDS = ("bad_words_ids",)
_TASKS = "task_specific_params"  # of a configuration: task -> settings as its own


def count_tokens(model: Any) -> tuple[int, int]:
    """Number of tokens with an embedding, a source's; and of weights that belong to tokens."""
    tables = [*{id(table): table for table, _ in _tables(model)}.values()]
    return len(tables[0]), sum(table.numel() for table in tables)


def _tables(model: Any) -> Iterator[tuple[Tensor, bool]]:
    """Tables [tokens, width], a source's first, and whether their rows are tokens of the target.

    Tied ones come twice.
    """
    if architecture_of(model).decoder is None:
        yield model.get_input_embeddings().weight, False
        return
    yield model.get_encoder().embed_tokens.weight, False
    yield model.get_decoder().embed_tokens.weight, True
    yield model.get_output_embeddings().weight, True


def shares_tables(model: Any) -> bool:
    """Whether an encoder-decoder's two sides have one table of tokens."""
    source = model.get_encoder().embed_tokens.weight
    target, output = model.get_decoder().embed_tokens.weight, model.get_output_embeddings().weight
    return source is target or source is output


def with_tokens(
    model: Any, sources: Sequence[int], targets: Sequence[int] | None = None
) -> nn.Module:
    """A copy with the rows of some tokens alone, which shares all other weights.

    Args:
        model: an encoder or an encoder-decoder.
        sources: ids of the tokens that are kept, ascending; new ids are their places here.
        targets: of an encoder-decoder's target vocabulary; None: the same.

    Returns:
        The copy, whose settings have the new ids. Tokens that are gone are None in settings, and
        are left out of lists.
    """
    targets = sources if targets is None else targets
    rows = {id(table): targets if of_target else sources for table, of_target in _tables(model)}
    bias = architecture_of(model).logits_bias
    made: Any = shared_copy(model)
    cut: dict[int, nn.Parameter] = {}  # by the whole table, so that tied ones stay tied
    for module in made.modules():
        table = getattr(module, "weight", None)
        if isinstance(module, nn.Embedding | nn.Linear) and id(table) in rows:
            kept = list(rows[id(table)])
            if id(table) not in cut:
                cut[id(table)] = nn.Parameter(module.weight.detach()[kept])
            _cut(module, cut[id(table)], kept)
    if bias is not None:
        setattr(made, bias, getattr(model, bias)[:, list(targets)])
    configs = {id(x.config): x.config for x in made.modules() if hasattr(x, "config")}
    for config in configs.values():
        config.vocab_size = len(sources)
        if hasattr(config, "decoder_vocab_size"):
            config.decoder_vocab_size = len(targets)
        _renumber(config, targets)
    if getattr(made, "generation_config", None) is not None:
        _renumber(made.generation_config, targets)
    return made


def _cut(module: nn.Embedding | nn.Linear, weight: nn.Parameter, kept: list[int]) -> None:
    """Give a module other rows, in place."""
    module.weight = weight
    if isinstance(module, nn.Linear):
        module.out_features = len(kept)
        return
    module.num_embeddings = len(kept)
    padding: Any = module.padding_idx
    module.padding_idx = kept.index(padding) if padding in kept else None


def _renumber(settings: Any, kept: Sequence[int]) -> None:
    """Give the tokens in a configuration their new ids, in place."""
    numbers = {token: row for row, token in enumerate(kept)}
    for name, value in renumbered(vars(settings), numbers).items():
        setattr(settings, name, value)


def renumbered(settings: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """The settings that name tokens, with other ids.

    Args:
        settings: of a configuration, or of generation.
        numbers: old id -> new id.

    Returns:
        Name -> value. A token that has no new id is None, and left out of lists.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        if name.endswith("_token_id"):
            several = isinstance(value, list)
            ids = [numbers[i] for i in (value if several else [value]) if i in numbers]
            found[name] = ids if several else next(iter(ids), None)
        elif name in _LISTS:
            found[name] = [numbers[i] for i in value if i in numbers]
        elif name in _WORDS:
            # A word of which a token is gone cannot be generated any more.
            words = [[numbers[i] for i in word] for word in value if numbers.keys() >= {*word}]
            found[name] = words or None
        elif name == _TASKS and isinstance(value, dict):
            found[name] = {
                task: {**each, **renumbered(each, numbers)} if isinstance(each, dict) else each
                for task, each in value.items()
            }
    return found


def tokens_in(settings: Mapping[str, Any]) -> set[int]:
    """Ids of the tokens that settings name and that must stay: all but those that are banned."""
    values = [x for name, x in settings.items() if name.endswith("_token_id")]
    listed = [i for x in values for i in (x if isinstance(x, list) else [x])]
    return {i for i in listed if type(i) is int}
