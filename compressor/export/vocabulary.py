"""The tokens that an output can contain, which are the only ones that a decoder must score.

A Marian vocabulary is the union of the pieces of two SentencePiece models, one per language. Target
texts never contain pieces of the source's model alone, so the model was never trained to predict
them, but scores each of them at every step. The exported decoder has rows for the other tokens
only, in its embedding table and in its output layer. Given text in the target language, tokens that
do not occur in it are left out too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from compressor.export.generation import generation_settings
from compressor.model.architectures import architecture_of
from compressor.model.memory import release
from compressor.model.modes import hooks
from compressor.model.tokenizer import read_sentencepiece

if TYPE_CHECKING:
    from compressor.model.checkpoint import Checkpoint

_BYTE = re.compile("<0x[0-9A-F]{2}>")
# Least share of the vocabulary to leave out, which justifies a second numbering of tokens.
MIN_SAVING = 0.05
# Least number of tokens in a block of `best_tokens`: smaller blocks save no time.
MIN_BLOCK_WIDTH = 16


def output_tokens(checkpoint: Checkpoint, seen: Collection[int] | None = None) -> list[int] | None:
    """Ids of the tokens that an output can contain, ascending; None: all tokens.

    A few other tokens are kept so that `best_tokens` can divide the tokens into blocks.

    Args:
        seen: ids of the tokens of target texts. Other tokens are left out too, except special
            tokens, those in the generation settings, and tokens of a single character or byte, so
            that every text can still be generated.
    """
    tokenizer: Any = checkpoint.tokenizer
    ids: dict[str, int] = tokenizer.get_vocab()
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    special = {*tokenizer.all_special_tokens, *added}
    kept = set(ids.values())
    if type(tokenizer).__name__ == "MarianTokenizer" and not tokenizer.separate_vocabs:
        source, target = map(_pieces, tokenizer.spm_files)
        # A piece with only characters that no target piece has may be in an output, since unknown
        # characters of a target text are looked up in the vocabulary.
        known = set().union(*target)
        never = {x for x in source - target - special if not known.isdisjoint(x)}
        kept -= {ids[piece] for piece in never if piece in ids}
    if seen is not None:
        inserted = set(tokenizer.convert_tokens_to_ids(list(special)))
        settings = generation_settings(checkpoint.model)  # of the search
        for name in ("decoder_start", "eos", "forced_bos", "forced_eos"):
            value = settings[f"{name}_token_id"]
            inserted |= set(value) if isinstance(value, list) else {value}
        kept &= {*seen, *inserted, *(ids[x] for x in ids if is_short(x))}
    # With all tokens, no file of ids and no lookup in the search are needed.
    if len(kept) > (1 - MIN_SAVING) * len(ids):
        return None
    more = -len(kept) % MIN_BLOCK_WIDTH  # up to a multiple, which `best_tokens` can divide
    return sorted(kept | set(sorted(set(ids.values()) - kept)[:more]))


def _pieces(path: str) -> set[str]:
    model = read_sentencepiece(Path(path))
    kind = model.SentencePiece
    return {p.piece for p in model.pieces if p.type in (kind.NORMAL, kind.USER_DEFINED)}


def is_short(piece: str) -> bool:
    """Whether a piece is one character or byte, with or without a mark of a word's start or end."""
    letters = piece.strip("\u2581\u0120").removesuffix("</w>")
    return len(letters) <= 1 or _BYTE.fullmatch(piece) is not None


class OutputLayer(nn.Module):
    """A translator's output layer, for the tokens with these ids; None: all."""

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
        """[rows, width] -> logits [rows, tokens]"""
        hidden = hidden if self.scale == 1 else hidden * self.scale
        return nn.functional.linear(hidden, self.weight, self.bias if self.biased else None)


def best_tokens(logits: Tensor) -> Tensor:
    """Index of the largest logit of each row, the first one of equals: [rows, tokens] -> [rows]."""
    tokens = logits.shape[-1]
    # First the block, then the index within it. onnxruntime's ArgMax is not vectorized; its
    # ReduceMax is, and is about three times as fast. With the largest divisor up to the square root
    # ArgMax reads few values, both over the blocks and in the best one.
    width = next(width for width in range(math.isqrt(tokens), 0, -1) if tokens % width == 0)
    if width < MIN_BLOCK_WIDTH:
        return logits.argmax(-1)
    blocks = logits.unflatten(-1, (tokens // width, width))  # [rows, blocks, width]
    block = blocks.amax(-1).argmax(-1)  # [rows]
    best_block = blocks.gather(1, block[:, None, None].expand(-1, 1, width))  # [rows, 1, width]
    return block * width + best_block[:, 0].argmax(-1)


class _ScaledEmbedding(nn.Embedding):
    """Rows of an embedding table, [tokens, width]; those of BART and its relatives are scaled."""

    def __init__(self, rows: Tensor, scale: float) -> None:
        # On "meta", no table is initialized before it is replaced.
        super().__init__(rows.shape[0], rows.shape[1], device="meta")
        self.weight = rows
        self.scale = float(scale)

    def forward(self, input: Tensor) -> Tensor:
        """[batch, tokens] -> [batch, tokens, width]"""
        rows = super().forward(input)
        return rows if self.scale == 1 else rows * self.scale


@contextmanager
def embedding_only(model: Any, output: OutputLayer, tokens: list[int] | None) -> Iterator[None]:
    """Within the context, the decoder reads indices into `tokens`, if any; then frees its rows."""
    if tokens is None:
        yield
        return
    decoder = model.get_decoder()
    original = decoder.embed_tokens
    tied = original.weight is model.lm_head.weight  # then the graph stores one table for both
    rows = output.weight if tied else nn.Parameter(original.weight.detach()[tokens])
    decoder.embed_tokens = _ScaledEmbedding(rows, getattr(original, "embed_scale", 1.0))
    try:
        yield
    finally:
        release(decoder.embed_tokens)
        release(output)
        decoder.embed_tokens = original


@contextmanager
def restricted(model: Any, tokens: Sequence[int]) -> Iterator[None]:
    """Within the context, the PyTorch model gives all other tokens a probability of 0."""
    projection = model.get_output_embeddings()
    left_out = torch.ones(projection.out_features, dtype=torch.bool)
    left_out[list(tokens)] = False  # [vocabulary]

    def leave_out(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits.masked_fill(left_out, -torch.inf)

    with hooks([projection.register_forward_hook(leave_out)]):
        yield


def bias_of(model: Any) -> Tensor:
    """The bias of the logits, [tokens]; zeros without one."""
    name = architecture_of(model).logits_bias
    weight: Tensor = model.lm_head.weight
    bias: Tensor = weight.new_zeros(1, len(weight)) if name is None else getattr(model, name)
    return bias[0]
