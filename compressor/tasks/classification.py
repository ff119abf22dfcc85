"""Text classification with an encoder: texts (or pairs of texts) to batches, and the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError, UsageError
from compressor.model.architectures import architecture
from compressor.model.sublayers import Kind
from compressor.tasks.batching import (
    BATCH_TOKENS,
    Batch,
    Example,
    encode_texts,
    group,
    model_inputs,
    pad,
    source_tensors,
)
from compressor.tasks.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor, nn


def encode(rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
    """Token ids and class id of every row, in the order of `rows`, special tokens included.

    Args:
        rows: read with the checkpoint's `labels`, whose order gives the class ids.
        max_source_tokens: longer rows are cut (see `count_truncated`), of a pair the longer text.

    Raises:
        InputError: the rows were read without the checkpoint's labels.
    """
    if rows.labels is None:
        raise InputError(
            f"the labels of {', '.join(rows.files)} were read without the checkpoint's label names"
        )
    ids = {name: index for index, name in enumerate(rows.labels)}
    encoded, cut = encode_texts(
        tokenizer, max_source_tokens, types=True, text=rows.sources, text_pair=rows.pairs
    )
    return [
        Example(
            row=row,
            source=tuple(encoded["input_ids"][row]),
            target=(ids[rows.targets[row]],),
            types=tuple(encoded["token_type_ids"][row]),
            truncated=cut[row],
        )
        for row in range(len(rows.sources))
    ]


def batches(
    examples: Sequence[Example],
    model: nn.Module,
    *,
    batch_tokens: int | None = BATCH_TOKENS,
    batch_size: int | None = None,
) -> list[Batch]:
    """Batches of rows of similar length, longest first.

    Each holds `input_ids` and `attention_mask` [batch, tokens], `token_type_ids` of the same shape
    where the architecture takes them, and `labels` [batch], all int64.

    Args:
        model: says what padding is and what inputs there are; it is not run.
        batch_tokens, batch_size: see `compressor.tasks.batching.group`.

    Raises:
        InputError: the model's configuration lacks the padding id.
    """
    import torch

    takes_types = architecture(str(model.config.model_type)).token_type_ids  # type: ignore[union-attr]
    lengths = [(len(example.source),) for example in examples]
    made = []
    for members in group(lengths, batch_tokens, batch_size):
        chosen = [examples[index] for index in members]
        tensors = source_tensors(chosen, model)
        if takes_types:
            types = [example.types or (0,) * len(example.source) for example in chosen]
            tensors["token_type_ids"] = pad(types, 0)
        tensors["labels"] = torch.tensor([example.target[0] for example in chosen])
        made.append(Batch(tensors, [example.row for example in chosen]))
    return made


def logits(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Class logits, [batch, labels]."""
    return model(**model_inputs(batch)).logits


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy of the right classes in nats, summed over the rows of the batch.

    A sum, computed from the logits alone: what a row contributes depends neither on the rows it
    is batched with nor on a loss inside the model. Divide by `loss_terms` for the mean.
    """
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits(model, batch).float(), batch["labels"], reduction="sum")


def loss_terms(batch: Mapping[str, Tensor]) -> int:
    """Number of terms in the sum `loss`: the rows."""
    return len(batch["labels"])


def predict(
    model: nn.Module, batch: Mapping[str, Tensor], tokenizer: Any, num_beams: int | None = None
) -> list[str]:
    """Names of the most probable classes, one for each line of the batch.

    Args:
        batch: on the model's device; the labels are not looked at.
        tokenizer: not used; a translator needs it.
        num_beams: must be None; there is nothing to search.

    Raises:
        UsageError: a beam width.
    """
    import torch

    from compressor.export.metadata import label_names

    if num_beams is not None:
        raise UsageError(f"--num-beams {num_beams} makes no sense for a classifier; leave it out")
    names = label_names(model.config)
    with torch.no_grad():
        return [names[label] for label in logits(model, batch).argmax(-1).tolist()]


def term_mask(batch: Mapping[str, Tensor]) -> Tensor:
    """Which logits the loss looks at: those of every row, [batch] bool."""
    import torch

    return torch.ones_like(batch["labels"], dtype=torch.bool)


def token_mask(batch: Mapping[str, Tensor], kind: Kind) -> Tensor:
    """Which positions are real tokens, [batch, tokens] bool; there is only `encoder_self`."""
    if kind != "encoder_self":
        raise ValueError(f"a classifier has no attention of kind {kind!r}")
    return batch["attention_mask"].bool()
