"""`compress translate`: lines in, their translations out; needs neither torch nor transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.commands.lines import Artifact, Files, LinesOutput
from compressor.request.recipe import TranslateRequest


def register(app: typer.Typer) -> None:
    o.add_command(app, "translate", translate, TranslateRequest, json=False)


def translate(
    request: TranslateRequest,
    directory: Artifact,
    files: Files = None,
    output: LinesOutput = None,
) -> int:
    """Translate lines with an artifact, one line each."""
    from compressor.pipeline.stream_lines import Lines, serve
    from compressor.runtime import Translator
    from compressor.runtime.artifact import read_artifact
    from compressor.runtime.session import choose_device

    lines = Lines(files or [])
    precision = request.precision or read_artifact(directory).default_precision
    chosen = choose_device(request.device, [precision])
    model = Translator(
        directory, precision=precision, device=chosen, threads=request.threads,
        verify=request.verify,
    )  # fmt: skip

    def answer(texts: Iterable[str], chunk: int) -> Iterator[str]:
        return model.translate_stream(
            texts, chunk_rows=chunk, batch_size=request.batch_size,
            batch_tokens=request.batch_tokens,
            num_beams=request.num_beams, max_new_tokens=request.max_new_tokens,
        )  # fmt: skip

    form = _as_json if request.jsonl else _as_text
    counts = console.counts_lines(to_stdout=output is None)
    serve(lines, answer, form, output, request.chunk_lines, console, counts)
    return 0


def _as_text(_: int, translation: str) -> str:
    return translation


def _as_json(number: int, translation: str) -> str:
    return json.dumps({"line": number, "translation": translation}, ensure_ascii=False)
