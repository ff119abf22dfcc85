"""`compress tag`: lines in, their entities out; needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from compressor.commands import options as o
from compressor.commands.lines import Artifact, Files, LinesOutput, json_line, stream
from compressor.request.serving import TagRequest

if TYPE_CHECKING:
    from compressor.runtime import Entity


@o.command(TagRequest, json=False)
def tag(
    request: TagRequest, directory: Artifact, files: Files = None, output: LinesOutput = None
) -> int:
    """Find the entities of lines: label, text, label, text, ... of each line."""
    from compressor.runtime import TokenClassifier

    def form(number: int, found: Sequence[Entity]) -> str:
        if request.jsonl:
            rounded = [asdict(entity) | {"score": round(entity.score, 6)} for entity in found]
            return json_line(number, entities=rounded)
        parts = [part for entity in found for part in (entity.label, entity.text)]
        return "\t".join(part.replace("\t", " ") for part in parts)

    return stream(
        TokenClassifier, request, directory, files, output, TokenClassifier.tag_stream, form,
        cache=request.cache,
    )  # fmt: skip
