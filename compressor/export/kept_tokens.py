"""Which tokens a smaller vocabulary keeps: those of texts, what any text gets, and short ones.

Texts whose tokens are all kept get the same tokens, also behind each of the model's prompts. Others
are split into shorter tokens, down to single characters or bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from compressor.errors import InputError, VerificationError
from compressor.export.tokenizer import build_tokenizer
from compressor.export.vocabulary import CHUNK, is_short
from compressor.model.checkpoint import Checkpoint
from compressor.model.languages import kept_languages
from compressor.model.token_tables import shares_tables, tokens_in
from compressor.model.tokenizer import prompts_of, tokens_by_side
from compressor.runtime.batching import in_chunks
from compressor.runtime.token_classifier import words_of
from compressor.tasks import TASKS
from compressor.tasks.texts import TextFile

KINDS = ("WordPiece", "Unigram", "BPE")
MARIAN, M2M100 = "MarianTokenizer", "M2M100Tokenizer"
Merges = dict[tuple[str, str], tuple[int, str]]
_SOME = 32  # texts that are also compared as pairs, or one for each of more prompts


@dataclass(frozen=True)
class KeptIds:
    """Ids of tokens that are kept, ascending; new ids are their places here."""

    sources: list[int]
    targets: list[int]  # the same list, unless the target has a vocabulary of its own
    # Pieces without a token that the source's and the target's model of SentencePiece keep, so that
    # a text is split as before.
    unknown: Sequence[Collection[str]] = ((), ())


@dataclass(frozen=True)
class ServedTexts:
    """Texts as a model gets them.

    Args:
        file: the texts, which may be too many to keep; it is read anew each time.
        prompts: what each is read behind: a word may be cut otherwise behind another one.
        words: whether the words of a text are read one by one, too.
        target: whether they are what the model writes.
    """

    file: TextFile
    prompts: Sequence[str] = ("",)
    words: bool = False
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

    def some(self) -> list[str]:
        """The first texts, without prompts."""
        return list(islice(self.file.each(), max(1, _SOME // len(self.prompts))))

    def some_prompted(self) -> list[str]:
        """The first texts behind each prompt."""
        some = self.some()
        return [f"{prompt}{text}" for prompt in self.prompts for text in some]


def _ids(tokenizer: Any, **texts: Any) -> list[list[int]]:
    return list(tokenizer(**texts, return_attention_mask=False, verbose=False)["input_ids"])


def require_kind(checkpoint: Checkpoint) -> None:
    """Raise InputError for a tokenizer that cannot be reduced."""
    kind, kinds = _kind_of(checkpoint.tokenizer), [*KINDS]
    wanted = f"a {', '.join(KINDS[:-1])} or {KINDS[-1]} tokenizer in a tokenizer.json"
    if checkpoint.entry.decoder is not None:
        kinds += [MARIAN, M2M100]
        wanted = "a tokenizer.json, or the tokenizer of Marian or M2M100"
    if kind not in kinds:
        raise InputError(
            f"--source-text needs {wanted}, and that of {checkpoint.name} is {kind}; leave "
            "--source-text out",
            id="tokenizer-cannot-be-cut",
        )


def served_texts(
    checkpoint: Checkpoint, source: TextFile, target: TextFile | None
) -> list[ServedTexts]:
    """What a model reads, and what it writes if it does."""
    words = TASKS[checkpoint.task].reads_words
    served = [ServedTexts(source, prompts_of(checkpoint.tokenizer), words)]
    return served if target is None else [*served, ServedTexts(target, target=True)]


def tokens_to_keep(
    checkpoint: Checkpoint, served: Sequence[ServedTexts], languages: Collection[str] = ()
) -> KeptIds:
    """Find the tokens that a checkpoint keeps.

    Those of the texts, what these can be spelled with, and what a text gets whatever it says:
    special tokens, prompts, tokens that settings name, the codes of the run's languages.

    Args:
        checkpoint: with its languages set.
        served: texts like those that it will read; and of an encoder-decoder, like those that it
            will write.
        languages: codes of a translator's further languages to keep.

    Raises:
        InputError: a file cannot be read, or the tokens do not go together.
        UsageError: it has no such language.
    """
    tokenizer, writes = checkpoint.tokenizer, checkpoint.entry.decoder is not None
    known = [{*ids.values()} for ids in tokens_by_side(tokenizer)]
    stay, spare = set[int](), set[int]()
    if writes:
        stay, spare = kept_languages(tokenizer, languages, checkpoint.name)
    always = _always_kept(checkpoint, known[0] | known[1], stay, spare)
    found = [_tokens_of(tokenizer, texts) for texts in served]
    seen, unknown = [ids for ids, _ in found], [pieces for _, pieces in found]
    if not writes:
        seen[0] |= {i for ids in _ids(tokenizer, text=served[0].prompts) for i in ids}
    if not getattr(tokenizer, "separate_vocabs", False):
        both = set().union(*seen)
        ids = sorted(both | _spelling_tokens(tokenizer, both) | always)
        return KeptIds(ids, ids, unknown)
    if shares_tables(checkpoint.model):
        raise InputError(
            f"the tokenizer of {checkpoint.name} has a vocabulary for each side, and its model one "
            "table of embeddings for both; leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    sides = [
        known[side] & (ids | _spelling_tokens(tokenizer, ids, target=bool(side)) | always)
        for side, ids in enumerate(seen)
    ]
    shared = always & known[0] & known[1]
    sources, targets = _balanced(sides, known, shared, checkpoint.name)
    return KeptIds(sources, targets, unknown)


def _always_kept(
    checkpoint: Checkpoint, known: Collection[int], languages: set[int], spare: set[int]
) -> set[int]:
    """Ids of tokens that texts need not contain.

    Special, added and configured ones, what the post-processor puts around a text or a pair, and
    those up to padding's for positions.

    Args:
        checkpoint: with its tokenizer.
        known: ids of all tokens.
        languages: tokens of languages that stay.
        spare: those of languages that go, although they are special or added ones.
    """
    model: Any = checkpoint.model
    tokenizer: Any = checkpoint.tokenizer
    ids = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder} - spare
    ids |= _inserted_tokens(tokenizer) | tokens_in(vars(model.config))
    ids &= {*known}  # configurations name others by default
    positions = checkpoint.entry.positions_after_padding
    needed = set[int]()
    if checkpoint.entry.decoder is not None:
        # M2M100 counts them from the id of padding on.
        positions = hasattr(getattr(model.get_encoder(), "embed_positions", None), "weights")
        needed = tokens_in(vars(model.generation_config))
    if not needed <= {*known}:
        raise InputError(
            f"generation_config.json of {checkpoint.name} names token "
            f"{min(needed.difference(known)):,}, which its tokenizer does not have; correct it, or "
            "leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    if positions:
        ids |= {*range(model.config.pad_token_id + 1)}  # so that its id does not change
    return ids | needed | languages


def _tokens_of(tokenizer: Any, served: ServedTexts) -> tuple[set[int], set[str]]:
    """Ids of the tokens of texts, and the pieces that the vocabulary of Marian lacks."""
    seen, unknown = set[int](), set[str]()
    for texts in served.chunks():
        rows = served.ids(tokenizer, texts)
        seen.update(i for ids in rows for i in ids)
        if type(tokenizer).__name__ == MARIAN:
            both = zip(texts, rows, strict=True)
            lacking = [text for text, ids in both if tokenizer.unk_token_id in ids]
            unknown |= _unknown_pieces(tokenizer, lacking, target=served.target)
    return seen, unknown


def _kind_of(tokenizer: Any) -> str:
    """One of `KINDS`, or the class of a tokenizer that is Python code."""
    kind = _state(tokenizer)["model"]["type"] if tokenizer.is_fast else type(tokenizer).__name__
    return str(kind)


def _state(tokenizer: Any) -> Any:
    """The contents of the `tokenizer.json` of a fast tokenizer."""
    return json.loads(tokenizer.backend_tokenizer.to_str())


def _inserted_tokens(tokenizer: Any) -> set[int]:
    """Ids of the tokens that a fast tokenizer puts around a text or a pair, and of padding."""
    ids = set[int]()
    if tokenizer.is_fast:
        _, padding = getattr(tokenizer, "stored_limits", (None, None))

        def found(token: int) -> int:
            ids.add(token)
            return token

        change_inserted(_state(tokenizer) | {"padding": padding}, found)
    return ids


def _spelling_tokens(tokenizer: Any, seen: Collection[int], *, target: bool = False) -> set[int]:
    """Find single characters and bytes, and what the tokens of a text are built from.

    Args:
        tokenizer: of a kind in `KINDS`, of Marian or of M2M100.
        seen: ids of the tokens of texts.
        target: of the target's vocabulary, where it is another one.

    Returns:
        Their ids. Those of M2M100's languages are among them: its class numbers these behind all
        other tokens, and cannot do without any.
    """
    if tokenizer.is_fast:
        return _short_tokens(_state(tokenizer)["model"], seen)
    if type(tokenizer).__name__ == M2M100:
        # As merges, of which there are the same tokens.
        model = json.loads(build_tokenizer(tokenizer).to_str())["model"]
        return _short_tokens(model, seen) | {*tokenizer.lang_token_to_id.values()}
    ids = tokenizer.target_encoder if target else tokenizer.encoder
    return {i for piece, i in ids.items() if is_short(piece)}


def _short_tokens(model: dict[str, Any], seen: Collection[int]) -> set[int]:
    """`_spelling_tokens` of the model of a `tokenizer.json`.

    WordPiece takes the longest token that matches, which is kept. Unigram maximizes the sum of
    scores; that of unknown characters depends on the lowest, whose token is kept. BPE merges pairs
    in the order of its list: all parts of a kept token are kept.
    """
    if model["type"] == "Unigram":
        pieces, scores = zip(*model["vocab"], strict=True)
        kept = {i for i, piece in enumerate(pieces) if is_short(piece)}
        return (kept | {scores.index(min(scores)), model["unk_id"]}) - {None}
    prefix, ids = model.get("continuing_subword_prefix") or "", model["vocab"]
    kept = {
        i for x, i in ids.items() if is_short(x.removeprefix(prefix)) or x == model["unk_token"]
    }
    if model["type"] == "BPE":
        merges = merges_of(model)
        parts = {y for x, i in ids.items() if i in seen for y in _parts(x, merges, model)}
        kept |= {ids[part] for part in parts if part in ids}
    return kept


def merges_of(model: dict[str, Any]) -> Merges:
    """Pair -> its number in the list of merges, and what it is merged to."""
    prefix = model["continuing_subword_prefix"] or ""
    pairs = (x.split(" ") if isinstance(x, str) else x for x in model["merges"])
    return {(a, b): (rank, a + b.removeprefix(prefix)) for rank, (a, b) in enumerate(pairs)}


def _parts(piece: str, merges: Merges, model: dict[str, Any]) -> set[str]:
    """All tokens that a token is merged from, including itself."""
    suffix, prefix = model["end_of_word_suffix"] or "", model["continuing_subword_prefix"] or ""
    letters = [*piece.removeprefix(prefix).removesuffix(suffix)]
    # Each letter is a symbol; letters that do not begin a word have the prefix.
    first = 0 if prefix and piece.startswith(prefix) else 1
    symbols = [*letters[:first], *(prefix + letter for letter in letters[first:])]
    if suffix and piece.endswith(suffix) and symbols:
        symbols[-1] += suffix
    parts = {piece, *symbols}
    while pairs := [(merges[x], i) for i, x in enumerate(pairwise(symbols)) if x in merges]:
        # As in the tokenizer: the first merge of the list, at its leftmost position.
        (_, merged), i = min(pairs)
        symbols[i : i + 2] = [merged]
        parts.add(merged)
    return parts


def _unknown_pieces(tokenizer: Any, texts: Iterable[str], *, target: bool = False) -> set[str]:
    """Pieces of some texts that the vocabulary of a Marian tokenizer has no token for."""
    ids = tokenizer.target_encoder if target and tokenizer.separate_vocabs else tokenizer.encoder
    if target:
        tokenizer._switch_to_target_mode()
    try:
        found = {piece for text in texts for piece in tokenizer.tokenize(text)}
    finally:
        tokenizer._switch_to_input_mode()
    return found - ids.keys()


def change_inserted(data: dict[str, Any], change: Callable[[int], int]) -> None:
    """Change the ids that a `tokenizer.json` inserts beside a text's own, in place."""
    if data["padding"] is not None:
        data["padding"]["pad_id"] = change(data["padding"]["pad_id"])
    processors = [data["post_processor"] or {"type": None}]
    for processor in processors:  # it grows by inner ones
        processors += processor.get("processors", ())
        if processor["type"] == "TemplateProcessing":
            for token in processor["special_tokens"].values():
                token["ids"] = [change(i) for i in token["ids"]]
        elif processor["type"] in ("BertProcessing", "RobertaProcessing"):
            for name in ("sep", "cls"):
                token, i = processor[name]
                processor[name] = [token, change(i)]


def _balanced(
    sides: Sequence[set[int]], known: Sequence[set[int]], shared: Collection[int], name: str
) -> Iterator[list[int]]:
    """Keep more tokens, so that those with one id in both vocabularies have one id again.

    Args:
        sides: ids that are kept of the source's vocabulary, and of the target's.
        known: all ids of each.
        shared: ids in both that settings name, such as padding.
        name: of the checkpoint, for the message.

    Raises:
        InputError: there are not enough tokens.
    """
    kept, last = [{*side} for side in sides], -1
    for token in sorted(shared):
        between = [{i for i in side if last < i < token} for side in kept]
        most = max(map(len, between))
        for side, found, ids in zip(kept, between, known, strict=True):
            spare = sorted(i for i in ids - side if last < i < token)
            missing = most - len(found)
            if len(spare) < missing:
                raise InputError(
                    f"the two vocabularies of {name} cannot be cut so that token {token:,} has one "
                    "number in both; leave --source-text out",
                    id="tokenizer-cannot-be-cut",
                )
            side |= {*spare[:missing]}
        last = token
    return map(sorted, kept)


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
