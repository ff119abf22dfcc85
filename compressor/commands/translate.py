"""`compress translate`: lines in, their translations out; needs neither torch nor transformers."""

from __future__ import annotations

from compressor.commands import options as o
from compressor.commands.lines import Artifact, Files, LinesOutput, generated
from compressor.request.recipe import GenerateRequest


@o.command(GenerateRequest, json=False)
def translate(
    request: GenerateRequest,
    directory: Artifact,
    files: Files = None,
    output: LinesOutput = None,
) -> int:
    """Translate lines with an artifact, one line each."""
    from compressor.runtime import Translator

    return generated(Translator, "translation", request, directory, files, output)
