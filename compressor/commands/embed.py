"""`compress embed`: lines in, their embeddings out; needs neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.commands.lines import Artifact, Files, opened
from compressor.errors import InputError, UsageError
from compressor.progress import SILENT
from compressor.request.serving import EmbedRequest

Array = Annotated[
    Path, typer.Option("-o", "--output", help="A new .npy file, float32 [lines, width].")
]


@o.command(EmbedRequest, json=False)
def embed(request: EmbedRequest, directory: Artifact, output: Array, files: Files = None) -> int:
    """Write the embeddings of lines as a NumPy array, a row each."""
    import numpy as np

    from compressor.pipeline.stream_lines import Lines
    from compressor.runtime import Embedder
    from compressor.runtime.batching import CHUNK_ROWS
    from compressor.storage.files import require_directory, written_at_once

    if output.suffix != ".npy":
        raise UsageError(
            f"--output {output}: embeddings are written as a NumPy array; give a name that ends in "
            ".npy",
            id="output-not-array",
        )
    if output.exists():
        raise InputError(
            f"{output} exists; choose another --output, or remove it", id="output-not-empty"
        )
    require_directory(output.parent)
    lines = Lines(files or [])
    model = opened(Embedder, request, directory, cache=request.cache).with_prompt(request.prompt)
    chunk = request.chunk_lines or CHUNK_ROWS
    progress = console if console.counts_lines(to_stdout=False) else SILENT
    limits = {"batch_size": request.batch_size, "batch_tokens": request.batch_tokens}
    rows = []
    for row in model.embed_stream(lines, chunk_rows=chunk, **limits):
        rows.append(row)
        if len(rows) % chunk == 0:
            progress.update("lines", len(rows), None)
    progress.update("lines", len(rows), len(rows))
    array = np.array(rows, dtype=np.float32).reshape(-1, model.width)
    with written_at_once(output, replace=False) as path, path.open("xb") as file:
        np.save(file, array)
    return 0
