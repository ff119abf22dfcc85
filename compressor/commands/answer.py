"""`compress answer`: questions and texts in, answers out; needs neither torch nor transformers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from compressor.commands import options as o
from compressor.commands.lines import Artifact, Files, LinesOutput, json_line, stream
from compressor.request.serving import AnswerRequest

if TYPE_CHECKING:
    from compressor.runtime import Answer


@o.command(AnswerRequest, json=False)
def answer(
    request: AnswerRequest, directory: Artifact, files: Files = None, output: LinesOutput = None
) -> int:
    """Answer questions by a part of a text; each line is a question, a tab, and the text."""
    from compressor.runtime import QuestionAnswerer

    find = partial(
        QuestionAnswerer.answer_stream, null_answers=request.null_answers, stride=request.stride
    )

    def form(number: int, found: Answer) -> str:
        if not request.jsonl:
            return found.text
        place = {"start": found.start, "end": found.end}
        return json_line(number, answer=found.text, score=round(found.score, 6), **place)

    return stream(
        QuestionAnswerer, request, directory, files, output, find, form,
        pairs="each line is a question and a text", cache=request.cache,
    )  # fmt: skip
