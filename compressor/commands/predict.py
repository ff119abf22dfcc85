"""`compress predict`: lines in, a number for each out; needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from compressor.commands import options as o
from compressor.commands.lines import Artifact, Files, LinesOutput, json_line, stream, text_pairs
from compressor.request.serving import PredictRequest

if TYPE_CHECKING:
    from compressor.pipeline.stream_lines import Lines


@o.command(PredictRequest, json=False)
def predict(
    request: PredictRequest, directory: Artifact, files: Files = None, output: LinesOutput = None
) -> int:
    """Give each line its number, with an artifact of a regression model."""
    from compressor.runtime import Regressor

    def answer(model: Regressor, lines: Lines, **batching: Any) -> Iterator[float | None]:
        rows = text_pairs(lines, "--pairs wants two texts") if request.pairs else lines
        return model.predict_stream(rows, **batching)

    def form(number: int, found: float | None) -> str:
        if request.jsonl:
            return json_line(number, score=None if found is None else round(found, 6))
        return "" if found is None else f"{found:.6f}"

    return stream(Regressor, request, directory, files, output, answer, form, cache=request.cache)
