"""The tokens that a decoder's output can contain.

The embedding table and the output layer of an exported decoder have rows for these tokens only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from compressor.model.architectures import architecture_of
from compressor.model.generation import generation_settings
from compressor.model.kept_tokens import is_short
from compressor.model.memory import release
from compressor.model.modes import shared_copy
from compressor.model.tokenizer import read_sentencepiece
from compressor.runtime.batching import in_chunks
from compressor.tasks.encoder_decoder import require_target_language
from compressor.tasks.texts import TextFile

if TYPE_CHECKING:
    from compressor.model.checkpoint import Checkpoint

CHUNK = 2000  # texts per call of the tokenizer
MIN_SAVING = 0.05  # share of the vocabulary that justifies a second numbering of tokens
MIN_BLOCK_WIDTH = 16  # tokens in a block of `best_tokens`: smaller ones save no time


def output_tokens(checkpoint: Checkpoint, seen: Collection[int] | None = None) -> list[int] | None:
    """Find the tokens that an output can contain.

    Args:
        checkpoint: of an encoder-decoder.
        seen: ids of the tokens of target texts. Others are then left out, except special and
            configured ones, and single characters and bytes, so that every text can still be
            generated.

    Returns:
        Ids, ascending; None: all tokens.
    """
    tokenizer: Any = checkpoint.tokenizer
    ids: dict[str, int] = tokenizer.get_vocab()
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    special = {*tokenizer.all_special_tokens, *added}
    kept = set(ids.values())
    if type(tokenizer).__name__ == "MarianTokenizer" and not tokenizer.separate_vocabs:
        # Target texts never contain pieces of the source's model alone.
        source, target = map(_pieces, tokenizer.spm_files)
        # A piece with only characters that no target piece has may be in an output, since unknown
        # characters of a target text are looked up in the vocabulary.
        known = set().union(*target)
        never = {x for x in source - target - special if not known.isdisjoint(x)}
        kept -= {ids[piece] for piece in never if piece in ids}
    if seen is not None:
        short = {ids[token] for token in ids if is_short(token)}
        inserted = set(tokenizer.convert_tokens_to_ids(list(special)))
        settings = generation_settings(checkpoint.model)  # of the search
        for name in ("decoder_start", "eos", "forced_bos", "forced_eos"):
            value = settings[f"{name}_token_id"]
            inserted |= set(value) if isinstance(value, list) else {value}
        kept &= {*seen, *inserted, *short}
    if len(kept) > (1 - MIN_SAVING) * len(ids):
        return None
    more = -len(kept) % MIN_BLOCK_WIDTH  # up to a multiple, which `best_tokens` can divide
    return sorted(kept | set(sorted(set(ids.values()) - kept)[:more]))


def tokens_of_text(
    file: TextFile, tokenizer: Any, progress: Callable[[int], None] = lambda texts: None
) -> set[int]:
    """Find the tokens of a text in the target language.

    Args:
        file: one text a line.
        tokenizer: with its languages set.
        progress: called with the number of texts that are done.

    Returns:
        Ids, special tokens included.

    Raises:
        InputError: the tokenizer has no target language, or the file cannot be read.
    """
    require_target_language(tokenizer)
    seen: set[int] = set()
    count = 0
    for chunk in in_chunks(file.each(), CHUNK):
        # As targets, for which Marian's tokenizer has another model than for sources.
        encoded = tokenizer(text_target=chunk, return_attention_mask=False, verbose=False)
        seen.update(token for ids in encoded["input_ids"] for token in ids)
        count += len(chunk)
        progress(count)
    return seen


def _pieces(path: str) -> set[str]:
    model = read_sentencepiece(Path(path))
    kind = model.SentencePiece
    return {p.piece for p in model.pieces if p.type in (kind.NORMAL, kind.USER_DEFINED)}


class OutputLayer(nn.Module):
    """A translator's output layer for some tokens.

    Args:
        model: an encoder-decoder.
        tokens: ids; None: all.
    """

    def __init__(self, model: Any, tokens: list[int] | None) -> None:
        super().__init__()
        self.weight: Tensor = model.lm_head.weight
        decoder = architecture_of(model).decoder
        name = None if decoder is None else decoder.output_scale
        scales = name is not None and getattr(model.config, name)
        self.scale = self.weight.shape[1] ** -0.5 if scales else 1.0  # of hidden states
        self.bias: Tensor = bias_of(model)  # [tokens]
        if tokens is not None:
            self.weight = nn.Parameter(self.weight.detach()[tokens])
            self.bias = self.bias.detach()[tokens]
        # Zero in models that were trained in transformers: then it is not added, to save a pass.
        self.biased = bool(self.bias.any())

    def forward(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [rows, width] into logits [rows, tokens]."""
        hidden = hidden if self.scale == 1 else hidden * self.scale
        return nn.functional.linear(hidden, self.weight, self.bias if self.biased else None)


def best_tokens(logits: Tensor) -> Tensor:
    """The first of the largest logits of each row: [rows, tokens] -> [rows]."""
    tokens = logits.shape[-1]
    # First the block, then the index within it: onnxruntime's ReduceMax is vectorized, and about
    # three times as fast as its ArgMax, which reads few values with blocks of about the root.
    width = next(width for width in range(math.isqrt(tokens), 0, -1) if tokens % width == 0)
    if width < MIN_BLOCK_WIDTH:
        return logits.argmax(-1)
    blocks = logits.unflatten(-1, (tokens // width, width))  # [rows, blocks, width]
    block = blocks.amax(-1).argmax(-1)  # [rows]
    best_block = blocks.gather(1, block[:, None, None].expand(-1, 1, width))  # [rows, 1, width]
    return block * width + best_block[:, 0].argmax(-1)


@contextmanager
def embedding_only(model: Any, output: OutputLayer, tokens: list[int] | None) -> Iterator[None]:
    """Within the context, the decoder reads indices into `tokens`; then its rows are freed."""
    if tokens is None:
        yield
        return
    decoder = model.get_decoder()
    original = decoder.embed_tokens
    tied = original.weight is model.lm_head.weight  # then the graph stores one table for both
    rows = output.weight if tied else nn.Parameter(original.weight.detach()[tokens])
    decoder.embed_tokens = shared_copy(original)
    decoder.embed_tokens.weight, decoder.embed_tokens.padding_idx = rows, None
    try:
        yield
    finally:
        release(decoder.embed_tokens)
        release(output)
        decoder.embed_tokens = original


def bias_of(model: Any) -> Tensor:
    """The bias of the logits, [tokens]; zeros without one."""
    name = architecture_of(model).logits_bias
    weight: Tensor = model.lm_head.weight
    bias: Tensor = weight.new_zeros(1, len(weight)) if name is None else getattr(model, name)
    return bias[0]
