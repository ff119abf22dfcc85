"""`compress predict`: lines in, a number for each out; needs neither torch nor transformers."""

from __future__ import annotations

from compressor.commands import options as o
from compressor.commands.lines import PAIRS, Artifact, Files, LinesOutput, json_line, stream
from compressor.request.serving import PredictRequest


@o.command(PredictRequest, json=False)
def predict(
    request: PredictRequest, directory: Artifact, files: Files = None, output: LinesOutput = None
) -> int:
    """Give each line its number, with an artifact of a regression model."""
    from compressor.runtime import Regressor

    def form(number: int, found: float | None) -> str:
        if request.jsonl:
            return json_line(number, score=None if found is None else round(found, 6))
        return "" if found is None else f"{found:.6f}"

    return stream(
        Regressor, request, directory, files, output, Regressor.predict_stream, form,
        pairs=PAIRS if request.pairs else "", cache=request.cache,
    )  # fmt: skip
