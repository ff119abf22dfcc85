"""Texts to texts with an encoder-decoder model: pairs to batches, the loss, and the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.model.languages import languages, source_prefix, target_missing
from compressor.model.sublayers import Kind
from compressor.tasks.answering import Timed
from compressor.tasks.base import Task
from compressor.tasks.batching import IGNORED, Example, encode_texts, model_inputs, pad
from compressor.tasks.parallel import ParallelRows
from compressor.tasks.rows import Rows, Texts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.runtime import Generator
    from compressor.tasks.answering import Arrays
    from compressor.tasks.batching import Tensors


class EncoderDecoderTask(ParallelRows, Task):
    """Texts that are answered with texts; the loss is that of the teacher-forced references.

    Args:
        answers: what the answers are called in messages.
    """

    auto_class = "AutoModelForSeq2SeqLM"
    exporter = "compressor.export.translator:TranslatorGraphs"
    counted_tokens = "generated"
    learns_from_answers = True
    learning_rate = 1e-4
    text_learning_rate = 5e-4
    muon_on_text = True
    hidden_weight = 0.0
    answers: ClassVar[str]

    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """As in `Task`; the targets may be as long as the sources.

        Raises:
            InputError: a multilingual tokenizer does not know which language to translate into.
        """
        require_target_language(tokenizer)
        prefix = source_prefix(tokenizer)
        texts = [f"{prefix}{text}" for text in rows.sources]
        sources, source_cut = encode_texts(tokenizer, max_source_tokens, text=texts)
        targets, target_cut = encode_texts(tokenizer, max_source_tokens, text_target=rows.targets)
        return [
            Example(
                row=row,
                source=sources["input_ids"][row],
                target=targets["input_ids"][row],
                truncated=source_cut[row] or target_cut[row],
            )
            for row in range(len(rows.sources))
        ]

    def synthetic_example(self, row: int, sentence: Callable[[int], tuple[int, ...]]) -> Example:
        return Example(row, sentence(2 + row % 9), sentence(2 + row % 7))

    def source_example(self, row: int, source: tuple[int, ...], end: int) -> Example:
        # The decoder needs some input; what it computes from the end token is not used.
        return Example(row, source, (end,))

    def target_tokens(self, example: Example) -> int:
        return len(example.target)

    def tensors(self, examples: Sequence[Example], model: nn.Module) -> dict[str, Tensor]:
        """`decoder_input_ids` and `labels` [batch, target], -100 in labels at padding.

        The decoder's inputs are the labels shifted as the model itself does it (mBART moves its
        language code to the front, others put their start token there).
        """
        labels = pad([example.target for example in examples], IGNORED)
        shift: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        inputs = _shifted(labels, model.config) if shift is None else shift(labels)
        return {"decoder_input_ids": inputs, "labels": labels}

    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Next-token logits of the teacher-forced model, [batch, target, vocabulary]."""
        return model(**model_inputs(batch), use_cache=False).logits

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Negative log-likelihood of the targets in nats, summed over all real target tokens."""
        from torch.nn.functional import cross_entropy

        logits = self.logits(model, batch).flatten(0, 1).float()  # [batch x target, vocabulary]
        labels = batch["labels"].flatten()  # [batch x target]
        return cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")

    def loss_terms(self, batch: Tensors) -> int:
        """The number of real target tokens."""
        return int(self.term_mask(batch).sum())

    def term_mask(self, batch: Tensors) -> Tensor:
        """The real target tokens, [batch, target] bool."""
        return batch["labels"] != IGNORED

    def token_mask(self, batch: Tensors, kind: Kind) -> Tensor:
        """[batch, source] for the encoder's sublayers, [batch, target] for the decoder's."""
        if kind.startswith("encoder"):
            return batch["attention_mask"].bool()
        return self.term_mask(batch)

    def predict(
        self, model: nn.Module, batch: Tensors, tokenizer: Any, num_beams: int | None = None
    ) -> list[str]:
        """Answers to the sources, detokenized, one for each line of the batch.

        Searched by transformers' `generate` with the model's own generation settings, but greedy
        unless there is a beam width, and never sampled.
        """
        from compressor.model.generation import generate  # imports transformers

        tokens = generate(model, batch, num_beams=1 if num_beams is None else num_beams)
        return list(tokenizer.batch_decode(tokens, skip_special_tokens=True))

    def answer(
        self,
        runtime: Generator,
        sources: Texts,
        pairs: Texts | None = None,
        *,
        num_beams: int | None = None,
    ) -> list[str]:
        """Answers to the sources."""
        return runtime.generate_texts(sources, num_beams=num_beams)

    def timed(
        self, runtime: Generator, batches: Sequence[Arrays], target_length: int | None
    ) -> Timed:
        """As in `Task`: every row generates the same number of tokens.

        As many as asked for, or the mean of the reference model's own answers, rounded up.

        Raises:
            UsageError: more tokens than the decoder has positions for.
        """
        forced, origin = target_length, ""
        if forced is None:
            lengths = [len(row) for batch in batches for row in runtime.generate(batch)]
            forced = math.ceil(sum(lengths) / len(lengths))
            origin = f", the mean of the reference model's own {self.answers}"
        runtime.artifact.generation.with_length(forced)  # raises if it is too long
        text = f"; {forced} generated tokens for every row{origin}"
        return Timed({"forced_length": forced}, float(forced), text)


def _shifted(labels: Tensor, config: Any) -> Tensor:
    """The start token, and all labels but the last: what M2M100's forward makes of them."""
    start = labels.new_full((len(labels), 1), config.decoder_start_token_id)
    before = labels[:, :-1]
    import torch

    return torch.cat([start, before.where(before != IGNORED, config.pad_token_id)], dim=1)


def require_target_language(tokenizer: Any) -> None:
    """Check that a multilingual tokenizer knows which language to translate into.

    Raises:
        InputError: it does not.
    """
    if getattr(tokenizer, "tgt_lang", "") is None:
        raise target_missing("the checkpoint", sorted(languages(tokenizer)))
