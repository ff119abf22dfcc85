"""`compress summarize`: texts in, their summaries out; needs neither torch nor transformers."""

from __future__ import annotations

from compressor.commands import options as o
from compressor.commands.lines import Artifact, Files, LinesOutput, generated
from compressor.request.serving import GenerateRequest


@o.command(GenerateRequest, json=False)
def summarize(
    request: GenerateRequest, directory: Artifact, files: Files = None, output: LinesOutput = None
) -> int:
    """Summarize texts with an artifact: one text a line, and its summary on one line."""
    from compressor.runtime import Generator

    return generated(Generator, "summary", request, directory, files, output)
