"""The tokens that a decoder's output can contain, and its generation settings.

The embedding table and the output layer of an exported decoder have rows for these tokens only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compressor.model.architectures import architecture_of
from compressor.model.generation import generate
from compressor.model.memory import release
from compressor.model.modes import hooks, shared_copy
from compressor.model.tokenizer import read_sentencepiece
from compressor.runtime.batching import in_chunks
from compressor.tasks.encoder_decoder import require_target_language
from compressor.tasks.texts import TextFile

if TYPE_CHECKING:
    from compressor.model.checkpoint import Checkpoint

CHUNK = 2000  # texts per call of the tokenizer
_BYTE = re.compile("<0x[0-9A-F]{2}>")
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
        inserted = set(tokenizer.convert_tokens_to_ids(list(special)))
        settings = generation_settings(checkpoint.model)  # of the search
        for name in ("decoder_start", "eos", "forced_bos", "forced_eos"):
            value = settings[f"{name}_token_id"]
            inserted |= set(value) if isinstance(value, list) else {value}
        kept &= {*seen, *inserted, *(ids[x] for x in ids if is_short(x))}
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


def is_short(piece: str) -> bool:
    """Whether a piece is one character or byte, with or without a mark of a word's start or end."""
    letters = piece.strip("\u2581\u0120").removesuffix("</w>")
    return len(letters) <= 1 or _BYTE.fullmatch(piece) is not None


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


@contextmanager
def restricted(model: Any, tokens: Sequence[int]) -> Iterator[None]:
    """Within the context, the PyTorch model gives all other tokens a probability of 0."""
    projection = model.get_output_embeddings()
    left_out = torch.ones(projection.out_features, dtype=torch.bool)
    left_out[list(tokens)] = False  # [vocabulary]
    hook = projection.register_forward_hook(lambda *x: x[2].masked_fill(left_out, -torch.inf))
    with hooks([hook]):
        yield


def greedy(
    model: Any, batch: Mapping[str, Tensor], tokens: Sequence[int], most: int
) -> tuple[dict[str, NDArray[Any]], NDArray[Any], Iterator[NDArray[Any]]]:
    """Decode greedily with PyTorch, with some tokens alone.

    Args:
        model: an encoder-decoder.
        batch: `input_ids` and `attention_mask`, [rows, source].
        tokens: ids that may be generated.
        most: how many to generate at most.

    Returns:
        The inputs as arrays; the outputs [rows, steps + 1], from the start token on; and for each
        row the logits of all tokens along them, [steps, vocabulary].
    """
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with restricted(model, tokens):
        outputs = generate(model, inputs, num_beams=1, max_new_tokens=most)
    forced = {**inputs, "decoder_input_ids": outputs[:, :-1]}
    # Row by row, since logits of all tokens take as much memory as a small model.
    rows = ({n: x[row : row + 1] for n, x in forced.items()} for row in range(len(outputs)))
    arrays = {name: value.numpy() for name, value in inputs.items()}
    return arrays, outputs.numpy(), (model(**row).logits[0].numpy() for row in rows)


def searched(
    model: Any, batch: Mapping[str, Tensor], tokens: Sequence[int], **options: Any
) -> list[list[int]]:
    """Generate with PyTorch, with some tokens alone.

    Args:
        model: an encoder-decoder.
        batch: `input_ids` and `attention_mask`, [rows, source].
        tokens: ids that may be generated.
        options: of `generate`.

    Returns:
        The start token first, and padded.
    """
    with restricted(model, tokens):
        rows: list[list[int]] = generate(model, batch, **options).tolist()
    return rows


@contextmanager
def perturbed(model: Any, share: float, seed: int) -> Iterator[None]:
    """Change, within the context, the PyTorch model's logits a little, at random.

    Args:
        model: an encoder-decoder.
        share: of the largest logit, by which they are off at most.
        seed: of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)

    def change(module: nn.Module, inputs: object, logits: Tensor) -> Tensor:
        noise = 2 * torch.rand(logits.shape, generator=generator) - 1
        largest = logits.where(logits.isfinite(), 0).abs().max()
        return logits + share * largest * noise.to(logits)

    with hooks([model.get_output_embeddings().register_forward_hook(change)]):
        yield


def bias_of(model: Any) -> Tensor:
    """The bias of the logits, [tokens]; zeros without one."""
    name = architecture_of(model).logits_bias
    weight: Tensor = model.lm_head.weight
    bias: Tensor = weight.new_zeros(1, len(weight)) if name is None else getattr(model, name)
    return bias[0]


def generation_settings(model: nn.Module) -> dict[str, Any]:
    """The settings of the generation configuration that the runtime needs, with defaults."""
    settings: Any = model.generation_config
    end = settings.eos_token_id
    ends = [] if end is None else [end] if isinstance(end, int) else list(end)
    # As in `generate`, an end token is never banned as a word.
    banned = sorted({word[0] for word in settings.bad_words_ids or []} - set(ends))
    # Numbers of tokens include the start token, as in `generate`.
    min_length = settings.min_length or 0
    if settings.min_new_tokens is not None:
        min_length = int(settings.min_new_tokens) + 1
    max_length = settings.max_length
    if max_length is None and settings.max_new_tokens is None:
        max_length = 21  # generate's default: the start token and 20 more
    return {
        "decoder_start_token_id": settings.decoder_start_token_id,
        "eos_token_id": ends,
        "max_length": max_length,
        "max_new_tokens": settings.max_new_tokens,
        "min_length": min_length,
        "num_beams": settings.num_beams or 1,
        "length_penalty": 1.0 if settings.length_penalty is None else settings.length_penalty,
        "early_stopping": settings.early_stopping or False,
        "forced_bos_token_id": settings.forced_bos_token_id,
        "forced_eos_token_id": settings.forced_eos_token_id,  # one, or several that tie
        "bad_words_ids": [[token] for token in banned],
        "suppress_tokens": sorted(set(settings.suppress_tokens or [])),
        "no_repeat_ngram_size": settings.no_repeat_ngram_size or 0,
        "renormalize_logits": bool(settings.renormalize_logits),
    }
