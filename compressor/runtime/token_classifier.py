"""Token classifiers that label words, and find entities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.artifact import TaggingArtifact
from compressor.runtime.batching import Batch, Floats, log_softmax, require_texts
from compressor.runtime.runtime import BatchSizes, EncoderRuntime, Line, StreamLimits

if TYPE_CHECKING:
    from tokenizers import Encoding

Span = tuple[int, int]  # of characters, the last one not included
Scheme = Mapping[str, tuple[str, str]]  # label -> prefix and type; none of `O`
LabeledTokens = tuple[NDArray[np.intp], Floats]  # label and probability of each token

OUTSIDE = "O"
_STANDARD = "BIES"  # begin, inside, end, single
# Last and unit of BILOU, middle and whole of BMEWO.
_LETTERS = dict(zip("BIESLUMW", "BIESESIS", strict=True))


@dataclass(frozen=True)
class Entity:
    """A part of a text with a label.

    Args:
        label: without its prefix, `location` for `B-location`.
        start: number of its first character in the text, from 0.
        end: number of the character behind its last one.
        text: these characters.
        score: mean probability of its words' labels.
    """

    label: str
    start: int
    end: int
    text: str
    score: float


class TokenClassifier(EncoderRuntime[TaggingArtifact]):
    """An exported token classifier; arguments and errors are those of `Runtime`.

    The label of a word is that of its first token: tokens that go on with a word have no labels in
    training. In a text, words are those of transformers' `aggregation_strategy="first"`; words that
    are given are read as by its tokenizers with `is_split_into_words=True`.
    """

    task = "token-classification"

    @property
    def labels(self) -> list[str]:
        """Names of the labels in the order of the logits."""
        return self.artifact.labels

    def tag(self, texts: Sequence[str], **limits: Unpack[BatchSizes]) -> list[list[Entity]]:
        """Find the entities of each text, in their order.

        Args:
            texts: in any order of lengths; rows of similar length share a batch. What lies beyond
                the model's longest input is left out, with a warning.
            limits: how large batches may get, see `Classifier.logits`.

        Raises:
            UsageError: a number below 1, or one text in place of a list.
        """
        return list(self.tag_stream(texts, chunk_rows=len(texts) or 1, **limits))

    def tag_words(
        self, sentences: Sequence[Sequence[str]], **limits: Unpack[BatchSizes]
    ) -> list[list[str]]:
        """Label each word of sentences that are split into words.

        Words that no token is left of, and those beyond the model's longest input, get `O`; a
        warning counts the sentences that were cut.

        Args:
            sentences: the words of each.
            limits: how large batches may get, see `Classifier.logits`.

        Raises:
            UsageError: a number below 1, or a text in place of a list of words.
        """
        # A text may stand in place of the list, or of one sentence in it.
        for texts in (sentences, *sentences):
            require_texts(texts)
        encodings = self._tokenizer.encodings_of_words(sentences)
        labeled, cut = self._label(encodings, **limits)
        self._warn_of_cut(cut, len(sentences))
        answers = []
        for words, encoding, (best, _) in zip(sentences, encodings, labeled, strict=True):
            tokens = first_tokens(encoding.word_ids)
            labels = {word: self.labels[best[token]] for word, token in tokens.items()}
            answers.append([labels.get(word, OUTSIDE) for word in range(len(words))])
        return answers

    def tag_stream(
        self, rows: Iterable[str], **limits: Unpack[StreamLimits]
    ) -> Iterator[list[Entity]]:
        """Find the entities of each row of a stream; one of white space alone has none.

        Arguments and errors are those of `Classifier.probabilities_stream`; rows are texts.
        """
        return self._stream(rows, self._tag, [], **limits)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """Answer each line with its entities: label, text, label, text, …; `entities` in JSON."""
        for entities in self.tag_stream(rows, **options):
            rounded = [asdict(entity) | {"score": round(entity.score, 6)} for entity in entities]
            parts = [part for entity in entities for part in (entity.label, entity.text)]
            yield "\t".join(part.replace("\t", " ") for part in parts), {"entities": rounded}

    def _tag(self, texts: Sequence[str], **limits: Any) -> tuple[list[list[Entity]], int]:
        """Entities of each text, and how many texts were cut."""
        encodings = self._tokenizer.encodings(texts)
        labeled, cut = self._label(encodings, **limits)
        scheme, tagged = scheme_of(self.labels), []
        for text, encoding, (best, scores) in zip(texts, encodings, labeled, strict=True):
            tokens, words = self._words(text, encoding)
            labels = [self.labels[best[token]] for token in tokens]
            entities = []
            for kind, first, last in entity_runs(labels, scheme):
                start, end = words[first][0], words[last][1]
                mean = sum(float(scores[x]) for x in tokens[first : last + 1]) / (last + 1 - first)
                entities.append(Entity(kind, start, end, text[start:end], mean))
            tagged.append(entities)
        return tagged, cut

    def _words(self, text: str, encoding: Encoding) -> tuple[list[int], list[Span]]:
        """The first token of each word of a text, and the characters of the words.

        By the rules of `TokenClassificationPipeline.gather_pre_entities` in transformers: where the
        tokenizer marks tokens that go on (as `##`), these have more characters than the text; else
        spaces end words. An unknown token always begins one.
        """
        library, unknown = self._tokenizer.library, self.artifact.unk_token_id
        marks = getattr(library.model, "continuing_subword_prefix", None)
        tokens: list[int] = []
        words: list[Span] = []
        ids, offsets = encoding.ids, encoding.offsets
        for token, special in enumerate(encoding.special_tokens_mask):
            if special:
                continue
            start, end = offsets[token]
            if ids[token] == unknown:
                goes_on = False
            elif marks:
                # So does the first token of a word whose accents the tokenizer removes.
                goes_on = len(library.id_to_token(ids[token]) or "") != end - start
            else:
                # Some tokenizers' tokens begin with the space before a word, others' after it.
                goes_on = start > 0 and " " not in text[start - 1 : start + 1]
            if tokens and goes_on:
                words[-1] = (words[-1][0], end)
            else:
                tokens.append(token)
                words.append((start, end))
        return tokens, words

    def _label(
        self, encodings: Sequence[Encoding], **limits: Any
    ) -> tuple[list[LabeledTokens], int]:
        """Labels of the tokens of each text, padding included, and how many texts were cut."""

        def label(batch: Batch) -> Iterable[LabeledTokens]:
            logits = self.run(batch)  # [rows, tokens, labels]
            best = logits.argmax(-1)
            log_softmax(logits.reshape(-1, logits.shape[-1]))  # a view
            return zip(best, np.exp(logits.max(-1)), strict=True)

        rows = self._tokenizer.rows(encodings)
        return self._answer(rows, label, **limits), sum(row.cut for row in rows)


def words_of(text: str) -> list[str]:
    """The words of a text, which spaces separate."""
    return [word for word in text.split(" ") if word]


def first_tokens(word_ids: Sequence[int | None]) -> dict[int, int]:
    """The first token of each word that has tokens.

    It may be a lone marker of the space before the word.

    Args:
        word_ids: the number of each token's word; None for special tokens.

    Returns:
        Number of a word -> number of its first token.
    """
    first: dict[int, int] = {}
    for token, word in enumerate(word_ids):
        if word is not None:
            first.setdefault(word, token)
    return first


def scheme_of(labels: Sequence[str]) -> Scheme:
    """Prefix (B, I, E or S) and type of each label of a model but `O`, as written `B-location`.

    BILOU and BMEWO have other letters for the same: L and U, M and W. A label without a prefix
    counts as inside: words that follow each other with it are an entity. Where every label is such
    a letter alone, all entities are of the type `_`.

    Args:
        labels: of the model.
    """
    named = [label for label in labels if label != OUTSIDE]
    bare = all(label in _LETTERS for label in named)
    begins = any(label.startswith("B-") for label in named)
    scheme = {}
    for label in named:
        letter, dash, kind = label.partition("-")
        known = letter in _LETTERS and bool(bare or (dash and (begins or letter in _STANDARD)))
        scheme[label] = (_LETTERS[letter], kind or "_") if known else ("I", label)
    return scheme


def entity_runs(labels: Sequence[str], scheme: Scheme) -> list[tuple[str, int, int]]:
    """Find the entities of a text in its words' labels.

    An entity is a run of one type that is not broken by B or S, nor after E or S, as the CoNLL-2003
    script counts.

    Args:
        labels: of the words, in their order.
        scheme: from `scheme_of`.

    Returns:
        Type, first and last word of each.
    """
    runs: list[tuple[str, int, int]] = []
    last_prefix, last_kind = "", OUTSIDE
    for number, label in enumerate(labels):
        prefix, kind = scheme.get(label, ("", OUTSIDE))
        goes_on = last_prefix and kind == last_kind and prefix not in "BS"
        if goes_on and last_prefix not in "ES":
            runs[-1] = (kind, runs[-1][1], number)
        elif prefix:
            runs.append((kind, number, number))
        last_prefix, last_kind = prefix, kind
    return runs
