"""Translation with an encoder-decoder model: sentence pairs to batches, and the loss on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.model.sublayers import Kind
from compressor.tasks.batching import (
    BATCH_TOKENS,
    IGNORED,
    Batch,
    Example,
    encode_texts,
    group,
    model_inputs,
    most_tokens,
    pad,
    source_tensors,
)
from compressor.tasks.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor, nn


def encode(
    rows: Rows, tokenizer: Any, max_source_tokens: int, *, max_target_tokens: int | None = None
) -> list[Example]:
    """Token ids of every sentence pair, in the order of `rows`, special tokens included.

    Args:
        tokenizer: the checkpoint's tokenizer, with its languages set.
        max_source_tokens: longer sources are cut (see `count_truncated`).
        max_target_tokens: longer targets are cut; as for the source if None.

    Raises:
        InputError: a multilingual tokenizer does not know which language to translate into.
    """
    require_target_language(tokenizer)
    limit = max_source_tokens if max_target_tokens is None else max_target_tokens
    sources, source_cut = encode_texts(tokenizer, max_source_tokens, text=rows.sources)
    targets, target_cut = encode_texts(tokenizer, limit, text_target=rows.targets)
    return [
        Example(
            row=row,
            source=tuple(sources["input_ids"][row]),
            target=tuple(targets["input_ids"][row]),
            truncated=source_cut[row] or target_cut[row],
        )
        for row in range(len(rows.sources))
    ]


def require_target_language(tokenizer: Any) -> None:
    """Refuse a multilingual tokenizer that does not know which language to translate into.

    Raises:
        InputError: it does not.
    """
    if getattr(tokenizer, "tgt_lang", "") is None:
        raise InputError(
            "the checkpoint's tokenizer has no target language; set tgt_lang (and src_lang) in its "
            "tokenizer_config.json"
        )


def batches(
    examples: Sequence[Example],
    model: nn.Module,
    *,
    batch_tokens: int | None = BATCH_TOKENS,
    batch_size: int | None = None,
) -> list[Batch]:
    """Batches of pairs of similar length, longest first.

    Each holds `input_ids` and `attention_mask` [batch, source], `decoder_input_ids` and `labels`
    [batch, target], all int64; labels are -100 at padding. The decoder's inputs are the labels
    shifted as the model itself does it (mBART moves its language code to the front, others put
    their start token there).

    Args:
        model: says what padding is and how to shift; it is not run.
        batch_tokens, batch_size: see `compressor.tasks.batching.group`; any limit of tokens is
            `most_tokens` of the model at most.

    Raises:
        InputError: the model's configuration lacks the padding id.
    """
    lengths = [(len(example.source), len(example.target)) for example in examples]
    if batch_tokens is not None:
        batch_tokens = min(batch_tokens, most_tokens(model))
    made = []
    for members in group(lengths, batch_tokens, batch_size):
        chosen = [examples[index] for index in members]
        tensors = source_tensors(chosen, model)
        labels = pad([example.target for example in chosen], IGNORED)
        shift: Any = model.prepare_decoder_input_ids_from_labels
        tensors |= {"decoder_input_ids": shift(labels), "labels": labels}
        made.append(Batch(tensors, [example.row for example in chosen]))
    return made


def logits(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Next-token logits of the teacher-forced model, [batch, target, vocabulary]."""
    return model(**model_inputs(batch), use_cache=False).logits


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Negative log-likelihood of the targets in nats, summed over all real target tokens.

    A sum, computed from the logits alone: what a row contributes depends neither on the rows it
    is batched with nor on a loss inside the model. Divide by `loss_terms` for the mean.
    """
    from torch.nn.functional import cross_entropy

    flat = logits(model, batch).flatten(0, 1).float()
    return cross_entropy(flat, batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum")


def loss_terms(batch: Mapping[str, Tensor]) -> int:
    """Number of terms in the sum `loss`: the real target tokens."""
    return int((batch["labels"] != IGNORED).sum())


def predict(
    model: nn.Module, batch: Mapping[str, Tensor], tokenizer: Any, num_beams: int | None = None
) -> list[str]:
    """Translations of the sources, detokenised, one for each line of the batch.

    Searched by transformers' `generate` with the model's own generation settings, never sampled.

    Args:
        batch: on the model's device; the targets are not looked at.
        tokenizer: the checkpoint's tokenizer.
        num_beams: beam width; None is greedy search, whatever the settings say.
    """
    generate: Any = model.generate
    tokens = generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        num_beams=1 if num_beams is None else num_beams,
        do_sample=False,
    )
    return list(tokenizer.batch_decode(tokens, skip_special_tokens=True))


def term_mask(batch: Mapping[str, Tensor]) -> Tensor:
    """Which logits the loss looks at: the real target tokens, [batch, target] bool."""
    return batch["labels"] != IGNORED


def token_mask(batch: Mapping[str, Tensor], kind: Kind) -> Tensor:
    """Which positions that query an attention layer are real tokens, bool.

    [batch, source] for `encoder_self`, [batch, target] for `decoder_self` and `cross`.
    """
    if kind == "encoder_self":
        return batch["attention_mask"].bool()
    return batch["labels"] != IGNORED
