"""Examples (token ids), batches (padded tensors), and grouping by length, which tasks share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from compressor import parallel
from compressor.errors import InputError
from compressor.model.architecture import decoder_tokens
from compressor.model.memory import all_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Tensors = Mapping[str, Tensor]

# Padded tokens in a batch. With a vocabulary of 60,000 the logits of 2,048 tokens are half a
# gigabyte in float32, and a gradient doubles that; larger batches gain little on a CPU.
BATCH_TOKENS = 2048
_MOST_LOGITS = BATCH_TOKENS * 60_000
# On a GPU, where a kernel takes some microseconds to start; assumed, not measured, to be enough for
# that to count for little.
GPU_BATCH_TOKENS = 32_768
IGNORED = -100  # the label of padding, as in transformers
# The output of a tokenizer takes far more memory than the ids, so no more rows are encoded at once.
ENCODED_ROWS = 2048


@dataclass(frozen=True)
class Example:
    """One encoded row.

    Args:
        row: index in `Rows`.
        source: token ids, with special tokens.
        target: token ids, with special tokens, or what only `labels` of a batch contain (a class).
        types: token type ids of `source`; None: all 0.
        truncated: whether source or target had to be cut.
    """

    row: int
    source: tuple[int, ...]
    target: tuple[Any, ...]
    types: tuple[int, ...] | None = None
    truncated: bool = False


class Batch(dict[str, "Tensor"]):
    """Padded tensors by name, and the row of each line.

    `labels` are what the loss compares with; all other tensors are inputs of the model's forward.

    Args:
        tensors: name -> [batch, …].
        rows: of each line, its index in `Rows`.
        spare: whether what a model computes from it does not count, see
            `compressor.parallel.sharding`.
        host: the same batch in the host's memory, where this one is not.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        rows: Iterable[int],
        spare: bool = False,
        host: Batch | None = None,
    ) -> None:
        super().__init__(tensors)
        self.rows = tuple(rows)
        self.spare = spare
        self._host = host

    @property
    def host(self) -> Batch:
        """The same batch in the host's memory, where counts and look-ups wait for no GPU."""
        return self if self._host is None else self._host

    def inputs(self) -> dict[str, Tensor]:
        """The tensors that the model's forward takes."""
        return model_inputs(self)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        moved = {name: moved_to(device, value) for name, value in self.items()}
        return Batch(moved, self.rows, self.spare, self.host)

    def lines(self, lines: slice | list[int], spare: bool = False) -> Batch:
        """A batch of some of its lines."""
        chosen = {name: tensor[lines] for name, tensor in self.items()}
        numbers = range(len(self.rows))[lines] if isinstance(lines, slice) else lines
        return Batch(chosen, (self.rows[number] for number in numbers), spare)


def moved_to(device: torch.device | str, tensor: Tensor) -> Tensor:
    """A tensor of the host on a device; the host does not wait until it is on a GPU."""
    if str(device).startswith("cuda") and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def chosen(values: Tensor, mask: Tensor) -> Tensor:
    """Select `values[mask]`.

    Args:
        values: [batch, …].
        mask: bool, of the first dimensions; in the host's memory.

    Returns:
        [true values of the mask, …].
    """
    indices = moved_to(values.device, mask.flatten().nonzero()[:, 0])
    return values.flatten(0, mask.dim() - 1).index_select(0, indices)


def model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a batch but the labels, so that the model computes no loss itself."""
    return {name: value for name, value in batch.items() if name != "labels"}


def count_truncated(examples: Iterable[Example]) -> int:
    """Number of rows that lost tokens because they are longer than the model allows."""
    return sum(example.truncated for example in examples)


def encode_texts(
    tokenizer: Any,
    max_tokens: int,
    *,
    types: bool = False,
    words: bool = False,
    **texts: Any,
) -> tuple[Mapping[str, list[tuple[Any, ...]]], list[bool]]:
    """Encode rows `ENCODED_ROWS` at a time, cut to `max_tokens`.

    Args:
        tokenizer: of the checkpoint.
        max_tokens: special tokens, which are kept, included.
        types: whether to return token types, 0 where the tokenizer returns none unasked, since the
            model then takes 0 for all.
        words: whether texts are lists of words.
        texts: the tokenizer's arguments: `text`, `text_pair` or `text_target`, lists of texts, or
            None.

    Returns:
        The tokenizer's lists (`input_ids`, with `types` also `token_type_ids`, with `words` also
        `word_ids`, the number of each token's word), and for each row whether it was cut.
    """
    options = {"truncation": True, "padding": False, "return_attention_mask": False}
    options |= {"return_token_type_ids": types, "is_split_into_words": words}

    def encode(columns: Mapping[str, Any], most: int) -> dict[str, list[tuple[Any, ...]]]:
        encoded = tokenizer(**columns, max_length=most, **options)
        values = {name: list(map(tuple, encoded[name])) for name in encoded}
        if words:
            rows = range(len(values["input_ids"]))
            values["word_ids"] = [tuple(encoded.word_ids(row)) for row in rows]
        return values

    lists: dict[str, list[tuple[Any, ...]]] = {}
    cut: list[bool] = []
    for chunk in chunks(max(len(column) for column in texts.values() if column is not None)):
        some = {name: column and column[chunk] for name, column in texts.items()}
        # One token more than allowed shows which rows are too long; only those are encoded again.
        values = encode(some, max_tokens + 1)
        is_long = [len(ids) > max_tokens for ids in values["input_ids"]]
        long = [row for row, is_cut in enumerate(is_long) if is_cut]
        if long:
            texts_of_long = {name: x and [x[row] for row in long] for name, x in some.items()}
            shorter = encode(texts_of_long, max_tokens)
            for name, column in values.items():
                for row, value in zip(long, shorter[name], strict=True):
                    column[row] = value
        for name, column in values.items():
            lists.setdefault(name, []).extend(column)
        cut += is_long
    if types and "token_type_ids" not in tokenizer.model_input_names:
        lists["token_type_ids"] = [(0,) * len(ids) for ids in lists["input_ids"]]
    return lists, cut


def chunks(rows: int) -> list[slice]:
    """Split rows into parts of `ENCODED_ROWS`; without rows there is one empty part."""
    return [slice(start, start + ENCODED_ROWS) for start in range(0, max(1, rows), ENCODED_ROWS)]


def require_offsets(tokenizer: Any) -> None:
    """Raise `InputError` if a tokenizer does not return words and characters of its tokens."""
    if not tokenizer.is_fast:
        raise InputError(
            f"tokenizer class {type(tokenizer).__name__} does not tell the characters of its "
            "tokens; give a checkpoint with tokenizer.json",
            id="tokenizer-class-unsupported",
        )


def most_tokens(model: nn.Module, device: str = "cpu") -> int:
    """The most padded tokens of a batch with which a model is scored or trained.

    Fewer than usual where a translator's large vocabulary would make the logits too large; on a GPU
    as many as a quarter of its memory holds.

    Args:
        model: to be scored or trained.
        device: that it is on.
    """
    config: Any = model.config
    vocabulary = decoder_tokens(config) if config.is_encoder_decoder else 0
    if not device.startswith("cuda"):
        return max(1, min(BATCH_TOKENS, _MOST_LOGITS // max(1, vocabulary)))
    # Counted generously, in float32: a layer keeps some 40 times the width for its backward pass,
    # and there are six copies of the logits: both models', their log-probabilities and gradients.
    decoder = getattr(config, "decoder_layers", getattr(config, "num_decoder_layers", 0))
    layers = config.num_hidden_layers + (decoder or 0)
    bytes_of_a_token = 4 * (40 * config.hidden_size * layers + 6 * vocabulary)
    return max(1, min(GPU_BATCH_TOKENS, (all_bytes(device) or 0) // 4 // bytes_of_a_token))


def parts_of_rank(batch: Batch, most: int) -> list[Batch]:
    """Split a batch, and take the parts that this rank works on; see `within_tokens`.

    If models are sharded, every rank has the same number: the last ones may be spare.
    """

    def parts_of(rank: int) -> list[Batch]:
        return within_tokens(batch.lines(slice(rank, None, parallel.size())), most)

    parts = parts_of(parallel.rank())
    if not parallel.shards():
        return parts
    missing = len(parts_of(0)) - len(parts)  # no rank has more than the first
    return parts + [batch.lines(slice(1), spare=True)] * missing


def within_tokens(batch: Batch, most: int) -> list[Batch]:
    """Split a batch into parts of at most `most` padded tokens (or one row); no rows give no part.

    A step then needs the memory of one part, not of the logits of a whole batch.
    """
    widest = max(tensor.shape[1] for tensor in batch.values() if tensor.dim() > 1)
    size = max(1, most // widest)
    if size >= len(batch.rows) > 0:
        return [batch]
    return [batch.lines(slice(i, i + size)) for i in range(0, len(batch.rows), size)]


def group(
    lengths: Sequence[tuple[int, ...]], batch_tokens: int | None, batch_size: int | None
) -> list[list[int]]:
    """Group rows of similar length, those that need most memory first.

    Args:
        lengths: token counts of each row, one per padded tensor (source, target).
        batch_tokens: rows x longest length of a batch at most (a row that is longer has a batch of
            its own); None for no limit.
        batch_size: rows of a batch at most; None for no limit.

    Returns:
        Indices of the rows of each batch.
    """
    order = sorted(range(len(lengths)), key=lambda row: (max(lengths[row]), lengths[row], -row))
    groups: list[list[int]] = []
    free = 0  # rows that still fit into the last group
    for row in reversed(order):
        if free == 0:
            groups.append([])
            by_tokens = None if batch_tokens is None else max(1, batch_tokens // max(lengths[row]))
            free = min(n for n in (by_tokens, batch_size, len(lengths)) if n is not None)
        groups[-1].append(row)
        free -= 1
    return groups


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Pad ids on the right: [rows, longest] int64."""
    import numpy as np
    import torch

    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    real = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(real.shape, value, np.int64)
    padded[real] = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    return torch.from_numpy(padded)
