"""A checkpoint with the tokens of texts alone: `--source-text`, and `--target-text` beside it.

An encoder gives texts whose tokens are all kept the same output. A translator gives them the
translations that the whole model gives with these tokens alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compressor.errors import VerificationError
from compressor.export.verify import EXPORT_TOLERANCE, relative_difference, rows_that_differ
from compressor.export.vocabulary import CHUNK
from compressor.model.checkpoint import Checkpoint
from compressor.model.cut_tokenizer import cut_tokenizer
from compressor.model.generation import generation_settings, searched
from compressor.model.kept_tokens import (
    MARIAN,
    KeptIds,
    require_cuttable,
    tokens_to_keep,
    unknown_pieces,
)
from compressor.model.languages import source_prefix
from compressor.model.token_tables import count_tokens, with_tokens
from compressor.model.tokenizer import prompts_of
from compressor.progress import SILENT, Progress
from compressor.runtime.batching import in_chunks
from compressor.runtime.generation import Generation
from compressor.runtime.token_classifier import words_of
from compressor.steps.results import Check
from compressor.tasks import TASKS
from compressor.tasks.batching import encode_texts, pad
from compressor.tasks.texts import TextFile

CHECKING = "checking the smaller vocabulary"  # title of `check_cut`
_SOME = 32  # texts that are also compared as pairs, or one for each of more prompts
_TRANSLATED = 16  # lines whose translations are compared
_BEAMS = 4  # beside a greedy search
_MOST = 32  # tokens of a translation


@dataclass(frozen=True)
class CutVocabulary:
    """A checkpoint with fewer tokens, and what it is to read and write as before.

    Args:
        whole: the checkpoint with all tokens.
        checkpoint: shares all weights that do not belong to tokens with the whole one.
        kept: ids of the tokens that are left; None: all.
        served: the texts that say which these are.
    """

    whole: Checkpoint
    checkpoint: Checkpoint
    kept: KeptIds | None = None
    served: Sequence[ServedTexts] = ()


@dataclass(frozen=True)
class SeenTokens:
    """The tokens of texts: of what a model reads, and of what it writes if it does.

    Args:
        ids: of the tokens, ascending.
        unknown: pieces of the texts that the vocabulary of Marian lacks.
    """

    ids: list[list[int]]
    unknown: list[list[str]]


def cut_vocabulary(
    checkpoint: Checkpoint,
    source: TextFile | None,
    target: TextFile | None = None,
    languages: Collection[str] = (),
    progress: Progress = SILENT,
) -> CutVocabulary:
    """Leave a checkpoint the tokens of texts; `check_cut` compares it with the whole one.

    Args:
        checkpoint: as it was opened, with its languages set.
        source: texts like those that the model will read; None leaves all tokens.
        target: of an encoder-decoder, texts like those that it will write.
        languages: codes of a translator's further languages to keep.
        progress: receives messages.

    Raises:
        InputError: the tokenizer cannot be reduced, or a file cannot be read.
        UsageError: the translator has no such language.
    """
    if source is None:
        return CutVocabulary(checkpoint, checkpoint)
    require_cuttable(checkpoint, languages)
    served = served_texts(checkpoint, source, target)
    progress.message(f"{finding(served)} …")
    seen = find_tokens(served, checkpoint.tokenizer)
    return cut_to(checkpoint, served, seen, languages, progress)


def finding(served: Sequence[ServedTexts]) -> str:
    """What the user reads while `find_tokens` runs."""
    return f"cutting {' and '.join(texts.file.path.name for texts in served)} into tokens"


def find_tokens(served: Sequence[ServedTexts], tokenizer: Any) -> SeenTokens:
    """The tokens that texts have."""
    found = [texts.tokens(tokenizer) for texts in served]
    return SeenTokens([sorted(ids) for ids, _ in found], [sorted(x) for _, x in found])


def cut_to(
    checkpoint: Checkpoint,
    served: Sequence[ServedTexts],
    seen: SeenTokens,
    languages: Collection[str] = (),
    progress: Progress = SILENT,
) -> CutVocabulary:
    """Leave a checkpoint some tokens, and what must stay beside them.

    Args:
        checkpoint: for which `require_cuttable` found nothing.
        served: texts that it reads and writes.
        seen: their tokens.
        languages: codes of a translator's further languages to keep.
        progress: receives messages.

    Raises:
        InputError: the tokens do not go together.
    """
    kept = tokens_to_keep(checkpoint, seen.ids, languages)
    tokenizer = cut_tokenizer(checkpoint, kept, seen.unknown)
    model = with_tokens(checkpoint.model, kept.sources, kept.targets)
    (tokens, weights), (total, all_weights) = map(count_tokens, (model, checkpoint.model))
    text = f"{weights:,} of the {all_weights:,} weights that belong to tokens"
    progress.message(f"  {tokens:,} of {total:,} tokens are kept, and {text}")
    return CutVocabulary(
        checkpoint, replace(checkpoint, model=model, tokenizer=tokenizer), kept, served
    )


def check_cut(cut: CutVocabulary, progress: Progress = SILENT) -> list[Check]:
    """Check that a checkpoint with fewer tokens reads and answers its texts as the whole one.

    Args:
        cut: by `cut_vocabulary`.
        progress: receives messages.

    Returns:
        What is told to the user, of a translator alone.

    Raises:
        VerificationError: texts have other tokens, or other answers, than before.
    """
    if cut.kept is None:
        return []
    tokenizers = cut.whole.tokenizer, cut.checkpoint.tokenizer
    require_same_tokens(*tokenizers, cut.kept, cut.served)
    source, *target = cut.served
    if not target:
        require_same_answers(cut.whole, cut, source.some_prompted())
        return []
    check = check_translations(cut.whole, cut, source.file)
    progress.message(f"  {check.detail}")
    return [check]


@dataclass(frozen=True)
class ServedTexts:
    """Texts as a model gets them.

    Args:
        file: the texts, which may be too many to keep; it is read anew each time.
        prompts: what each is read behind: a word may be cut otherwise behind another one.
        words: whether the words of a text are read one by one, too.
        alone: whether a prompt can be all that is read.
        target: whether they are what the model writes.
    """

    file: TextFile
    prompts: Sequence[str] = ("",)
    words: bool = False
    alone: bool = False
    target: bool = False

    def chunks(self) -> Iterator[list[str]]:
        """Some of the texts behind one prompt."""
        for texts in in_chunks(self.file.each(), CHUNK):
            for prompt in self.prompts:
                yield [f"{prompt}{text}" for text in texts]

    def ids(self, tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, and of their words."""
        ids = _ids(tokenizer, text_target=texts) if self.target else _ids(tokenizer, text=texts)
        if self.words:
            sentences = [words_of(text) for text in texts]
            ids += _ids(tokenizer, text=sentences, is_split_into_words=True)
        return ids

    def tokens(self, tokenizer: Any) -> tuple[set[int], set[str]]:
        """Ids of all tokens of the texts, and the pieces that the vocabulary of Marian lacks."""
        seen, unknown = set[int](), set[str]()
        if self.alone:
            seen.update(i for ids in _ids(tokenizer, text=self.prompts) for i in ids)
        for texts in self.chunks():
            rows = self.ids(tokenizer, texts)
            seen.update(i for ids in rows for i in ids)
            if type(tokenizer).__name__ == MARIAN:
                both = zip(texts, rows, strict=True)
                lacking = [text for text, ids in both if tokenizer.unk_token_id in ids]
                unknown |= unknown_pieces(tokenizer, lacking, target=self.target)
        return seen, unknown

    def some(self) -> list[str]:
        """The first texts, without prompts."""
        return list(islice(self.file.each(), max(1, _SOME // len(self.prompts))))

    def some_prompted(self) -> list[str]:
        """The first texts behind each prompt."""
        some = self.some()
        return [f"{prompt}{text}" for prompt in self.prompts for text in some]


def _ids(tokenizer: Any, **texts: Any) -> list[list[int]]:
    return list(tokenizer(**texts, return_attention_mask=False, verbose=False)["input_ids"])


def served_texts(
    checkpoint: Checkpoint, source: TextFile | None, target: TextFile | None
) -> list[ServedTexts]:
    """What a model reads, and what it writes if it does; nothing is said of it without a source."""
    if source is None:
        return []
    prompts, words = prompts_of(checkpoint.tokenizer), TASKS[checkpoint.task].reads_words
    if target is None:
        return [ServedTexts(source, prompts, words, alone=True)]
    return [ServedTexts(source, prompts, words), ServedTexts(target, target=True)]


def require_same_tokens(
    whole: Any, smaller: Any, kept: KeptIds, served: Sequence[ServedTexts]
) -> None:
    """Check that texts have the tokens that they had, singly and, of an encoder, as pairs.

    Args:
        whole: the tokenizer with all tokens.
        smaller: the one with fewer.
        kept: which these are.
        served: what the model reads, and what it writes if it does.

    Raises:
        VerificationError: a text has others.
    """

    def require_same(texts: ServedTexts, old: Sequence[int], *both: list[list[int]]) -> None:
        for ids, new_ids in zip(*both, strict=True):
            if ids != [old[i] for i in new_ids]:
                raise VerificationError(
                    f"the smaller tokenizer splits a text of {texts.file.path} with {len(ids)} "
                    "tokens differently; please report this with the checkpoint's name",
                    id="tokenizer-encodes-differently",
                )

    for texts, old in zip(served, (kept.sources, kept.targets), strict=False):
        for chunk in texts.chunks():
            require_same(texts, old, *(texts.ids(x, chunk) for x in (whole, smaller)))
    if len(served) == 1:
        pairs = {"text": (some := served[0].some()), "text_pair": some[::-1]}
        require_same(served[0], kept.sources, *(_ids(x, **pairs) for x in (whole, smaller)))


@torch.no_grad()
def require_same_answers(whole: Checkpoint, cut: CutVocabulary, texts: Sequence[str]) -> None:
    """Check that an encoder with fewer tokens answers texts as the whole one; VerificationError."""

    def answers(checkpoint: Checkpoint) -> Iterator[Any]:
        types = "token_type_ids" in checkpoint.entry.inputs
        encoded, _ = encode_texts(
            checkpoint.tokenizer, checkpoint.max_source_tokens, types=types, text=list(texts)
        )
        for row in range(len(texts)):  # one by one, without padding
            inputs = {name: torch.tensor([rows[row]]) for name, rows in encoded.items()}
            mask = torch.ones_like(inputs["input_ids"])
            yield checkpoint.model(attention_mask=mask, **inputs).logits.numpy()

    pairs = zip(answers(cut.checkpoint), answers(whole), strict=True)
    worst = float(np.max([relative_difference(*pair) for pair in pairs]))
    if not worst <= EXPORT_TOLERANCE:  # NaN raises, too
        raise VerificationError(
            f"with the tokens of --source-text alone {whole.name} answers {worst:.2e} off (of the "
            f"largest logit, tolerance {EXPORT_TOLERANCE:.0e}) to one of those texts; please "
            "report this with the checkpoint's name",
            id="cut-vocabulary-differs",
        )


@torch.no_grad()
def check_translations(whole: Checkpoint, cut: CutVocabulary, source: TextFile) -> Check:
    """Compare translations of the first lines of a text, greedy and with several beams.

    The whole model may generate the kept tokens alone. How many lines it translates in the same way
    when it may generate all tokens is part of the result.

    Args:
        whole: with all tokens.
        cut: with fewer.
        source: the text.

    Raises:
        VerificationError: a translation differs.
    """
    assert cut.kept is not None
    smaller, targets = cut.checkpoint, cut.kept.targets
    prefix = source_prefix(whole.tokenizer)
    texts = [f"{prefix}{text}" for text in islice(source.each(), _TRANSLATED)]
    batch, new_batch = (_batch(checkpoint, texts) for checkpoint in (whole, smaller))
    settings = Generation(
        **generation_settings(whole.model),
        positions=whole.entry.most_positions(whole.model.config),
    )
    answer = settings.eos_token_id, whole.tokenizer.pad_token_id
    ends = generation_settings(smaller.model)["eos_token_id"]
    padding = smaller.tokenizer.pad_token_id
    most, same = min(_MOST, settings.limit), list[bool]()
    counts = [1] if settings.ends_tie else [1, max(settings.num_beams, _BEAMS)]
    for beams in counts:
        options: dict[str, Any] = {"num_beams": beams, "max_new_tokens": most}
        rows = searched(smaller.model, new_batch, ends, padding, **options)
        found = [[targets[i] for i in row] for row in rows]
        among_kept = partial(searched, whole.model, batch, *answer, targets, **options)
        if rows_that_differ(whole.model, among_kept, found):
            raise VerificationError(
                f"with the tokens of --source-text and --target-text alone {whole.name} translates "
                "one of those texts otherwise than the whole model does with them; please report "
                "this with the checkpoint's name",
                id="cut-vocabulary-differs",
            )
        among_all = searched(whole.model, batch, *answer, **options)
        same += [a == b for a, b in zip(found, among_all, strict=True)]
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
