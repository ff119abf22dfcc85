"""`compress translate`: lines in, their translations out; needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from compressor.commands import options as o
from compressor.commands.lines import Artifact, Files, LinesOutput, json_line, stream
from compressor.request.recipe import TranslateRequest

if TYPE_CHECKING:
    from compressor.pipeline.stream_lines import Lines


@o.command(TranslateRequest, json=False)
def translate(
    request: TranslateRequest,
    directory: Artifact,
    files: Files = None,
    output: LinesOutput = None,
) -> int:
    """Translate lines with an artifact, one line each."""
    from compressor.runtime import Translator

    def answer(model: Translator, lines: Lines, **batching: Any) -> Iterator[str]:
        return model.translate_stream(
            lines, num_beams=request.num_beams, max_new_tokens=request.max_new_tokens, **batching
        )

    def form(number: int, translation: str) -> str:
        return json_line(number, translation=translation) if request.jsonl else translation

    return stream(Translator, request, directory, files, output, answer, form)
