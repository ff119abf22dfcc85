"""`compress rerank`: lines in, the most relevant ones first; needs no torch, no transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from compressor.commands import options as o
from compressor.commands.lines import Artifact, Files, LinesOutput, json_line, stream
from compressor.request.serving import RerankRequest

if TYPE_CHECKING:
    from compressor.pipeline.stream_lines import Lines

Line = tuple[int, str, float]  # its number from 1, its text, its score


@o.command(RerankRequest, json=False)
def rerank(
    request: RerankRequest, directory: Artifact, files: Files = None, output: LinesOutput = None
) -> int:
    """Rank lines by how relevant they are to a query, the most relevant one first."""
    from compressor.runtime import Reranker

    def answer(model: Reranker, lines: Lines, chunk_rows: int, **batching: Any) -> Iterator[Line]:
        from compressor.runtime.batching import in_chunks
        from compressor.runtime.text import one_warning_of_cut

        found: list[Line] = []
        filled = ((number, text) for number, text in enumerate(lines, 1) if text.strip())
        with one_warning_of_cut():
            for chunk in in_chunks(filled, chunk_rows):
                texts = [text for _, text in chunk]
                scores = model.scores([request.query] * len(texts), texts, **batching).tolist()
                found += [(*line, score) for line, score in zip(chunk, scores, strict=True)]
        yield from sorted(found, key=lambda line: -line[2])[: request.top_k]

    def form(_: int, found: Line) -> str:
        number, text, score = found
        if request.jsonl:
            return json_line(number, score=round(score, 6), text=text)
        return f"{score:.6f}\t{text}"

    return stream(Reranker, request, directory, files, output, answer, form, cache=request.cache)
