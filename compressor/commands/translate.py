"""`compress translate`: lines in, their translations out; needs neither torch nor transformers."""

from __future__ import annotations

from compressor.commands import options as o
from compressor.commands.lines import Artifact, Files, LinesOutput, generated
from compressor.request.serving import TranslateRequest


@o.command(TranslateRequest, json=False)
def translate(
    request: TranslateRequest, directory: Artifact, files: Files = None, output: LinesOutput = None
) -> int:
    """Translate lines with an artifact, one line each."""
    from compressor.runtime import Translator

    return generated(
        Translator, "translation", request, directory, files, output,
        source_language=request.source_language, target_language=request.target_language,
    )  # fmt: skip
