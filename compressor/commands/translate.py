"""`compress translate`: lines in, their translations out; needs neither torch nor transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import typer

from compressor.commands import options as o
from compressor.commands.console import console


def register(app: typer.Typer) -> None:
    app.command("translate")(translate)


def translate(
    directory: o.Artifact,
    files: o.Files = None,
    output: o.LinesOutput = None,
    num_beams: o.NumBeams = None,
    max_new_tokens: o.MaxNewTokens = None,
    batch_size: o.RowsPerBatch = None,
    batch_tokens: o.BatchTokens = None,
    chunk_lines: o.ChunkLines = None,
    precision: o.RuntimePrecision = None,
    device: o.Device = None,
    threads: o.Threads = None,
    jsonl: o.Jsonl = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> int:
    """Translate lines with an artifact, one line each."""
    from compressor.pipeline.stream_lines import Lines, serve
    from compressor.runtime import Translator
    from compressor.runtime.artifact import read_artifact
    from compressor.runtime.session import choose_device

    lines = Lines(files or [])
    precision = precision or read_artifact(directory).default_precision
    chosen = choose_device(device or "auto", [precision])
    model = Translator(directory, precision=precision, device=chosen, threads=threads)

    def answer(texts: Iterable[str], chunk: int) -> Iterator[str]:
        return model.translate_stream(
            texts, chunk_rows=chunk, batch_size=batch_size, batch_tokens=batch_tokens,
            num_beams=num_beams, max_new_tokens=max_new_tokens,
        )  # fmt: skip

    form = _as_json if jsonl else _as_text
    counts = console.counts_lines(to_stdout=output is None)
    serve(lines, answer, form, output, chunk_lines, console, counts)
    return 0


def _as_text(_: int, translation: str) -> str:
    return translation


def _as_json(number: int, translation: str) -> str:
    return json.dumps({"line": number, "translation": translation}, ensure_ascii=False)
