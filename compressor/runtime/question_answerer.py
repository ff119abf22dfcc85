"""Questions that are answered by a part of a text, which is read in windows that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from compressor.runtime.artifact import EncoderArtifact
from compressor.runtime.batching import Floats, check_limits, require_texts
from compressor.runtime.runtime import BatchSizes, EncoderRuntime, Line, StreamLimits
from compressor.runtime.text import Encoded
from compressor.runtime.token_classifier import Span

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Numbers of tokens, as they are usual for SQuAD.
WINDOW = 384
STRIDE = 128  # that two windows share
MOST_QUESTION = 64
MOST_ANSWER = 30


@dataclass(frozen=True)
class Answer:
    """The part of a context that answers a question.

    Args:
        text: empty for no answer.
        score: from 0 to 1, the product of two probabilities: of its first and of its last token.
        start: number of its first character in the context, from 0; 0 for no answer.
        end: number of the character behind its last one; 0 for no answer.
    """

    text: str
    score: float
    start: int
    end: int


@dataclass(frozen=True)
class Window:
    """A question and a part of its context.

    Args:
        ids: of all tokens.
        types: of all tokens.
        first: number of the context's first token; its tokens follow one another.
        offsets: characters in the context of each of its tokens.
        words: number of the word of each of them; None where there is none.
        cut: whether the question lost tokens.
    """

    ids: list[int]
    types: list[int]
    first: int
    offsets: list[Span]
    words: list[int | None]
    cut: bool

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """The tokens of some characters of the context.

        Args:
            start: first character.
            end: the one behind the last.

        Returns:
            First and last token; None where the window does not hold all of the characters.
        """
        inside = [
            number
            for number, (first, last) in enumerate(self.offsets)
            if first < end and last > start and first < last
        ]
        if not inside or self.offsets[inside[0]][0] > start or self.offsets[inside[-1]][1] < end:
            return None
        return self.first + inside[0], self.first + inside[-1]

    def characters(self, start: int, end: int) -> Span:
        """The characters of the words from one token to another, the last one not included."""
        first, last = start - self.first, end - self.first
        word = self.words[first]
        while first and word is not None and self.words[first - 1] == word:
            first -= 1
        word = self.words[last]
        while last + 1 < len(self.words) and word is not None and self.words[last + 1] == word:
            last += 1
        return self.offsets[first][0], self.offsets[last][1]


class QuestionAnswerer(EncoderRuntime[EncoderArtifact]):
    """An exported model for questions; arguments and errors are those of `Runtime`.

    A context that is too long is read in windows that overlap; the best answer of all counts.
    """

    task = "question-answering"
    line_options = ("null_answers", "stride")
    pair_lines = "each line is a question and a text"
    cuts_texts = False
    cut_message = f"questions were cut to at most {MOST_QUESTION} tokens; ask shorter ones"

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoded]:
        """Token ids of all windows of questions and their contexts, question by question."""
        return [
            Encoded(window.ids, window.types, window.cut)
            for windows in self._windows(texts, pairs or [""] * len(texts), STRIDE)
            for window in windows
        ]

    def answer(
        self, question: str, context: str, *, null_answers: bool = False, stride: int = STRIDE
    ) -> Answer:
        """Answer one question; see `answers`.

        Args:
            question: one text.
            context: the text that holds the answer.
            null_answers: whether there may be no answer.
            stride: tokens of the context that two windows share.
        """
        return self.answers([question], [context], null_answers=null_answers, stride=stride)[0]

    def answers(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        *,
        null_answers: bool = False,
        stride: int = STRIDE,
        **limits: Unpack[BatchSizes],
    ) -> list[Answer]:
        """Answer each question by a part of its context.

        Args:
            questions: of more than 64 tokens the rest is left out, with a warning.
            contexts: one for each question, of any length.
            null_answers: whether there may be no answer, for models that have learned that (SQuAD
                2.0): it is taken where its score, the least of all windows, is above the best.
            stride: tokens of the context that two windows share; at most half of a window.
            limits: how large batches may get, see `Classifier.logits`; rows are windows.

        Returns:
            The answers in the order of the questions.

        Raises:
            UsageError: a number below 1, not as many contexts as questions, or one text in place of
                a list.
        """
        answers, cut = self._answers(questions, contexts, null_answers, stride, **limits)
        self._warn_of_cut(cut, len(questions))
        return answers

    def answer_stream(
        self,
        rows: Iterable[tuple[str, str]],
        *,
        null_answers: bool = False,
        stride: int = STRIDE,
        **limits: Unpack[StreamLimits],
    ) -> Iterator[Answer]:
        """Answer the rows of a stream of any length, in their order.

        Args:
            rows: (question, context) tuples; one of white space alone has no answer.
            null_answers: as in `answers`.
            stride: as in `answers`.
            limits: how large batches may get, see `Classifier.logits`, and `chunk_rows` that are
                read ahead.

        Raises:
            UsageError: a number below 1.
        """
        answers = partial(self._answers, null_answers=null_answers, stride=stride)
        return self._stream(rows, answers, Answer("", 0.0, 0, 0), **limits)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """Answer each line; `answer` with its score and characters in JSON."""
        for answer in self.answer_stream(rows, **options):
            place = {"start": answer.start, "end": answer.end}
            yield answer.text, {"answer": answer.text, "score": round(answer.score, 6), **place}

    def _windows(
        self, questions: Sequence[str], contexts: Sequence[str], stride: int
    ) -> list[list[Window]]:
        check_limits(stride=stride)
        require_texts(questions, contexts)
        most = self.artifact.max_source_tokens
        return split_into_windows(self._tokenizer.library, questions, contexts, most, stride)

    def _answers(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        null_answers: bool,
        stride: int,
        **limits: Any,
    ) -> tuple[list[Answer], int]:
        """Answers, and how many questions were cut."""
        groups = self._windows(questions, contexts, stride)
        rows = [Encoded(window.ids, window.types) for group in groups for window in group]
        logits = iter(self._answer(rows, self.run, **limits))  # [tokens, 2] each
        answers = []
        for context, windows in zip(contexts, groups, strict=True):
            # Logits of a batch go on where the window is padded.
            spans = [best_span(next(logits)[: len(window.ids)], window) for window in windows]
            # The least of all windows, as in the pipeline that transformers had until version 4.
            none = min(span[3] for span in spans)
            number = max(range(len(spans)), key=lambda x: spans[x][0])
            score, first, last, _ = spans[number]
            # Below 0 for a context without tokens.
            if score < 0 or (null_answers and none > score):
                answers.append(Answer("", max(none, 0.0), 0, 0))
            else:
                start, end = windows[number].characters(first, last)
                answers.append(Answer(context[start:end], score, start, end))
        # All windows of a question have the same part of it.
        return answers, sum(windows[0].cut for windows in groups)


def split_into_windows(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    most: int,
    stride: int = STRIDE,
) -> list[list[Window]]:
    """Split questions with their contexts into windows: as many as a context needs, at least one.

    Args:
        tokenizer: without truncation and padding.
        questions: in full; tokens beyond `MOST_QUESTION`, or half of the room, are left out.
        contexts: one for each question.
        most: tokens that the model can read; a window has `WINDOW` at most.
        stride: tokens of the context that two windows share; at most half of what a window holds.

    Returns:
        The windows of each question.

    Raises:
        ValueError: the tokenizer makes no pairs, or there is no room in a window.
    """
    # Any pair shows which special tokens there are before a question, between it and its context
    # and behind that, and of which type the tokens of both texts are.
    pair = tokenizer.encode("a", "a")
    pair_ids, types = pair.ids, pair.type_ids
    parts = list(pair.sequence_ids)  # 0, 1, or None for special tokens
    if 0 not in parts or 1 not in parts:
        raise ValueError("it does not encode pairs of texts")
    question_start, context_start = parts.index(0), parts.index(1)
    question_end, context_end = (len(parts) - parts[::-1].index(text) for text in (0, 1))
    special, most = sum(part is None for part in parts), min(most, WINDOW)
    if most < special + 2:
        raise ValueError(f"{special} special tokens leave no room in windows of {most} tokens")
    # Several questions often share a context, which is then tokenized once.
    distinct = list(dict.fromkeys(contexts))
    encodings = tokenizer.encode_batch(distinct, add_special_tokens=False)
    encoded = dict(zip(distinct, encodings, strict=True))
    longest = min(MOST_QUESTION, (most - special) // 2)  # half of the room is the context's
    groups = []
    asked = tokenizer.encode_batch(list(questions), add_special_tokens=False)
    for question, text in zip(asked, contexts, strict=True):
        kept, context = question.ids[:longest], encoded[text]
        ids = context.ids
        offsets = context.offsets
        words = context.word_ids
        first_ids = pair_ids[:question_start] + kept + pair_ids[question_end:context_start]
        first_types = types[:question_start] + [types[question_start]] * len(kept)
        first_types += types[question_end:context_start]
        room = most - len(first_ids) - len(pair_ids[context_end:])
        windows = []
        # Windows that share more than half would be many; those that share all would never end.
        for start in range(0, max(1, len(ids)), room - min(stride, room // 2)):
            part = slice(start, start + room)
            part_types = [types[context_start]] * len(ids[part])
            windows.append(
                Window(
                    first_ids + ids[part] + pair_ids[context_end:],
                    first_types + part_types + types[context_end:],
                    len(first_ids),
                    offsets[part],
                    words[part],
                    len(question.ids) > longest,
                )
            )
            # Further windows would hold nothing that this one lacks.
            if start + room >= len(ids):
                break
        groups.append(windows)
    return groups


def best_span(logits: Floats, window: Window) -> tuple[float, int, int, float]:
    """The best answer in a window, and the score of having none.

    Probabilities are among the tokens of the context and the window's first token, which stands for
    no answer. A score is the product of two: of the first and of the last token.

    Args:
        logits: [tokens, 2], of starting and of ending at a token.
        window: whose tokens they are.

    Returns:
        Score, first and last token of the best answer, whose score is below 0 where the window
        holds no context, and the score of no answer.
    """
    count = len(window.offsets)
    context = slice(window.first, window.first + count)
    allowed = np.concatenate([logits[:1], logits[context]]).astype(np.float64)  # [1 + context, 2]
    # No exponential overflows then, and the probabilities are the same.
    allowed -= allowed.max(axis=0)
    chances = np.exp(allowed) / np.exp(allowed).sum(axis=0)
    none = float(chances[0].prod())
    # Below every product: it stays where a window has no tokens of the context.
    best = -1.0
    first = last = 0
    # All answers of one length at a time, so that Python does not loop over pairs of tokens.
    for length in range(min(MOST_ANSWER, count)):
        products = chances[1 : count + 1 - length, 0] * chances[1 + length :, 1]
        start = int(products.argmax())
        if products[start] > best:
            best = float(products[start])
            first, last = start, start + length
    return best, window.first + first, window.first + last, none
