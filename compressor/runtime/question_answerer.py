"""Answering questions by a part of a text, with an exported model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.artifact import QuestionAnsweringArtifact
from compressor.runtime.batching import check_limits, require_texts
from compressor.runtime.encoder import EncoderRuntime
from compressor.runtime.runtime import Line, StreamLimits
from compressor.runtime.text import Encoded, TextsCut
from compressor.runtime.windows import MOST_QUESTION, STRIDE, Window, best_span


@dataclass(frozen=True)
class Answer:
    """The part of a context that answers a question.

    Args:
        text: empty for no answer.
        score: from 0 to 1, see `compressor.runtime.windows.best_span`.
        start, end: of its characters in the context, the last one not included; 0 for no answer.
    """

    text: str
    score: float
    start: int
    end: int


class QuestionAnswerer(EncoderRuntime[QuestionAnsweringArtifact]):
    """An exported model for questions; arguments and errors are those of `Runtime`.

    A context that is too long is read in windows that overlap; the best answer of all counts.
    """

    task = "question-answering"
    line_options = ("null_answers", "stride")
    pair_lines = "each line is a question and a text"
    cuts_texts = False

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
        """The answer to one question; arguments and errors of `answers`."""
        return self.answers([question], [context], null_answers=null_answers, stride=stride)[0]

    def answers(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        *,
        null_answers: bool = False,
        stride: int = STRIDE,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> list[Answer]:
        """The answer to each question, in their order.

        Args:
            questions: of more than 64 tokens the rest is left out, with a warning.
            contexts: of each question.
            null_answers: whether there may be no answer, for models that have learned that (SQuAD
                2.0): it is taken where its score, the least of all windows, is above the best.
            stride: tokens of the context that two windows share; at most half of a window.
            batch_size, batch_tokens: as in `logits`; rows are windows.
        """
        limits = {"batch_size": batch_size, "batch_tokens": batch_tokens}
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
        """The answer to each (question, context) of a stream; one of white space alone has none.

        All else as `answers` and `Classifier.probabilities_stream`.
        """
        answers = partial(self._answers, null_answers=null_answers, stride=stride)
        return self._stream(rows, answers, Answer("", 0.0, 0, 0), **limits)

    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """The answer to each line; `answer` with its score and characters in JSON."""
        for answer in self.answer_stream(rows, **options):
            characters = {"start": answer.start, "end": answer.end}
            score = round(answer.score, 6)
            yield answer.text, {"answer": answer.text, "score": score, **characters}

    def _windows(
        self, questions: Sequence[str], contexts: Sequence[str], stride: int
    ) -> list[list[Window]]:
        check_limits(stride=stride)
        require_texts(questions, contexts)
        most = self.artifact.max_source_tokens
        return self._tokenizer.windows(questions, contexts, most, stride)

    def _answers(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        null_answers: bool,
        stride: int,
        **limits: Any,
    ) -> tuple[list[Answer], int]:
        """Answers, and how many questions were cut."""
        windows = self._windows(questions, contexts, stride)
        rows = [Encoded(x.ids, x.types) for group in windows for x in group]
        logits = iter(self._answer(rows, self.run, **limits))  # [tokens, 2] each
        answers = [
            _best(context, group, [next(logits) for _ in group], null_answers)
            for context, group in zip(contexts, windows, strict=True)
        ]
        # All windows of a question have the same part of it.
        return answers, sum(group[0].cut for group in windows)

    def _warn_of_cut(self, cut: int, texts: int) -> None:
        if cut:
            what = f"questions were cut to at most {MOST_QUESTION} tokens; ask shorter ones"
            # The level points at the line that called `answers`.
            warnings.warn(TextsCut(cut, texts, what), stacklevel=3)


def _best(
    context: str,
    windows: Sequence[Window],
    logits: Sequence[NDArray[np.float32]],
    null_answers: bool,
) -> Answer:
    # Logits of a batch go on where the window is padded.
    spans = [best_span(x[: len(w.ids)], w) for x, w in zip(logits, windows, strict=True)]
    # The least of all windows, as in the pipeline that transformers had until version 4.
    none = min(span[3] for span in spans)
    number = max(range(len(spans)), key=lambda x: spans[x][0])
    score, first, last, _ = spans[number]
    # Below 0 for a context without tokens.
    if score < 0 or (null_answers and none > score):
        return Answer("", max(none, 0.0), 0, 0)
    start, end = windows[number].characters(first, last)
    return Answer(context[start:end], score, start, end)
