"""A checkpoint with the tokens of texts alone: `--source-text`, and `--target-text` beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from compressor.errors import VerificationError
from compressor.export.language_pair import PairTokens, cut_pair
from compressor.export.source_text import cut_vocabulary
from compressor.export.verify import rows_that_differ
from compressor.export.vocabulary import generation_settings, searched
from compressor.model.checkpoint import Checkpoint
from compressor.model.generation import generate
from compressor.model.languages import source_prefix
from compressor.model.token_tables import count_token_weights, token_tables
from compressor.progress import SILENT, Progress
from compressor.runtime.generation import Generation
from compressor.steps.results import Check
from compressor.tasks.batching import pad
from compressor.tasks.texts import TextFile

_TRANSLATED = 16  # lines whose translations are compared
_BEAMS = 4  # beside a greedy search
_MOST = 32  # tokens of a translation


def shorten_vocabulary(
    checkpoint: Checkpoint,
    source: TextFile | None,
    target: TextFile | None,
    languages: Collection[str] = (),
    progress: Progress = SILENT,
) -> tuple[Checkpoint, list[Check]]:
    """Cut a checkpoint to the tokens of texts, and say so to the user.

    Args:
        checkpoint: as it was opened; the new one shares all weights that do not belong to tokens.
        source: texts like those that the model will read; None leaves all tokens.
        target: of an encoder-decoder, texts like those that it will write.
        languages: codes of a translator's further languages to keep.
        progress: receives messages.

    Returns:
        The checkpoint, and what was compared with the whole one.

    Raises:
        InputError: the tokenizer cannot be reduced, or a file cannot be read.
        UsageError: the translator has no such language.
        VerificationError: texts have other tokens, or other answers, than before.
    """
    if source is None:
        return checkpoint, []
    checks = list[Check]()
    if checkpoint.entry.decoder is None:
        progress.message(f"cutting {source.path.name} into tokens …")
        cut = cut_vocabulary(checkpoint, source)
    else:
        assert target is not None  # options say so
        progress.message(f"cutting {source.path.name} and {target.path.name} into tokens …")
        cut, kept = cut_pair(checkpoint, source, target, languages)
        progress.message("translating some lines with these tokens and with all …")
        checks.append(check_translations(checkpoint, cut, kept, source))
    tokens, total = (embedding_rows(x.model)[0] for x in (cut, checkpoint))
    weights, all_weights = (count_token_weights(x.model) for x in (cut, checkpoint))
    text = f"{weights:,} of the {all_weights:,} weights that belong to tokens"
    progress.message(f"  {tokens:,} of {total:,} tokens are kept, and {text}")
    for check in checks:
        progress.message(f"  {check.detail}")
    return cut, checks


def embedding_rows(model: Any) -> tuple[int, int]:
    """Number of tokens with an embedding, a source's, and bytes of all tokens' weights in float32.

    Args:
        model: whose output projection, if it has one, counts unless it is the embeddings.
    """
    return len(token_tables(model)[0]), 4 * count_token_weights(model)


@torch.no_grad()
def check_translations(
    whole: Checkpoint, cut: Checkpoint, kept: PairTokens, source: TextFile
) -> Check:
    """Compare translations of the first lines of a text, greedy and with several beams.

    The whole model may generate the kept tokens alone. How many lines it translates in the same way
    when it may generate all tokens is part of the result.

    Args:
        whole: with all tokens.
        cut: with fewer.
        kept: which these are.
        source: the text.

    Raises:
        VerificationError: a translation differs.
    """
    prefix = source_prefix(whole.tokenizer)
    texts = [f"{prefix}{text}" for text in islice(source.each(), _TRANSLATED)]
    batches = [_batch(checkpoint, texts) for checkpoint in (whole, cut)]
    settings = Generation(
        **generation_settings(whole.model),
        positions=whole.entry.most_positions(whole.model.config),
    )
    most, same = min(_MOST, settings.limit), list[bool]()
    ends = {*settings.eos_token_id, whole.tokenizer.pad_token_id}
    counts = [1] if settings.ends_tie else [1, max(settings.num_beams, _BEAMS)]
    for beams in counts:
        options = {"num_beams": beams, "max_new_tokens": most}
        smaller = generate(cut.model, batches[1], **options).tolist()
        found = [_answer([kept.targets[i] for i in row], ends) for row in smaller]

        def search(options: Mapping[str, int] = options) -> list[list[int]]:
            rows = searched(whole.model, batches[0], kept.targets, **options)
            return [_answer(row, ends) for row in rows]

        if rows_that_differ(whole.model, search, found):
            raise VerificationError(
                f"with the tokens of --source-text and --target-text alone {whole.name} translates "
                "one of those texts otherwise than the whole model does with them; please report "
                "this with the checkpoint's name",
                id="cut-vocabulary-differs",
            )
        free = [_answer(x, ends) for x in generate(whole.model, batches[0], **options).tolist()]
        same += [a == b for a, b in zip(found, free, strict=True)]
    searches = " and ".join(map(str, counts))
    others = "" if all(same) else "; the others have tokens that --target-text lacks"
    return Check(
        name="fewer tokens translate as all",
        largest_difference=0.0,
        tolerance=0.0,
        detail=f"translations of {len(texts)} lines with {searches} beams are those of the whole "
        f"model among the kept tokens, and {sum(same)} of {len(same)} are those among all{others}",
    )


def _batch(checkpoint: Checkpoint, texts: Sequence[str]) -> dict[str, Tensor]:
    """Texts as a model reads them, `input_ids` and `attention_mask` [rows, tokens]."""
    encoded = checkpoint.tokenizer(
        list(texts), truncation=True, max_length=checkpoint.max_source_tokens
    )
    padding = checkpoint.tokenizer.pad_token_id
    rows = encoded["input_ids"]
    return {
        "input_ids": pad(rows, padding),
        "attention_mask": pad([[1] * len(row) for row in rows], 0),
    }


def _answer(row: Sequence[int], ends: Collection[int]) -> list[int]:
    """The tokens behind the start token, up to the first end or padding."""

    def before_end() -> Iterator[int]:
        for token in row[1:]:
            yield token
            if token in ends:
                return

    return list(before_end())
