"""What the commands share that stream lines through an artifact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from compressor.commands.console import console
from compressor.errors import InputError
from compressor.progress import SILENT
from compressor.request.serving import GenerateRequest, ServeRequest, StreamRequest

if TYPE_CHECKING:
    from compressor.pipeline.stream_lines import Lines
    from compressor.runtime import Generator, Runtime

Artifact = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="What `compress run` or `compress export` wrote, with onnx/ in it."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="One text per line; standard input by default, or -."),
]
LinesOutput = Annotated[
    Path | None, typer.Option("-o", "--output", help="A new file, instead of standard output.")
]

PAIRS = "--pairs wants two texts"  # of lines, see `text_pairs`

Answer = TypeVar("Answer")
RuntimeType = TypeVar("RuntimeType", bound="Runtime[Any]")


def stream(
    runtime: type[Runtime[Any]],
    request: StreamRequest,
    directory: Path,
    files: list[Path] | None,
    output: Path | None,
    answer: Callable[..., Iterator[Answer]],
    form: Callable[[int, Answer], str],
    pairs: str = "",
    **options: Any,
) -> int:
    """Write the answer to each line.

    Args:
        answer: called with the artifact, opened, with the texts or pairs of texts of the lines, and
            with how to batch them, as keywords.
        form: the line to write for an answer and its number, counted from 1.
        pairs: what a line of two texts has to be, see `text_pairs`; empty: each is one text.
        options: further ones of the runtime.
    """
    from compressor.pipeline.stream_lines import Lines, serve

    lines = Lines(files or [])
    rows = text_pairs(lines, pairs) if pairs else lines
    model = opened(runtime, request, directory, **options)
    limits = {"batch_size": request.batch_size, "batch_tokens": request.batch_tokens}
    progress = console if console.counts_lines(to_stdout=output is None) else SILENT
    serve(
        lines, lambda _, chunk: answer(model, rows, chunk_rows=chunk, **limits), form, output,
        request.chunk_lines, progress,
    )  # fmt: skip
    return 0


def generated(
    runtime: type[Generator],
    name: str,
    request: GenerateRequest,
    directory: Path,
    files: list[Path] | None,
    output: Path | None,
    **options: Any,
) -> int:
    """Write the text that a model generates from each line, on one line.

    Args:
        name: of that text in the objects of `--jsonl`.
        options: further ones of the runtime.
    """
    answer = partial(
        runtime.generate_stream, num_beams=request.num_beams, max_new_tokens=request.max_new_tokens
    )

    def form(number: int, text: str) -> str:
        return json_line(number, **{name: text}) if request.jsonl else text

    return stream(runtime, request, directory, files, output, answer, form, **options)


def opened(
    runtime: type[RuntimeType], request: ServeRequest, directory: Path, **options: Any
) -> RuntimeType:
    """An artifact, opened as a request says.

    Args:
        options: further ones of the runtime.
    """
    from compressor.runtime.artifact import read_artifact
    from compressor.runtime.engines import choose_engine

    artifact, named = read_artifact(directory), request.precision
    engine = choose_engine(request.engine, runtime.kind, artifact, named, request.device)
    precision = named or engine.default_precision(artifact)
    return runtime(
        directory,
        precision=precision,
        engine=engine.name,
        device=engine.choose_device(request.device, [precision]),
        threads=request.threads,
        workers=request.workers,
        cuda_graphs=request.cuda_graphs,
        verify=request.verify,
        **options,
    )


def text_pairs(lines: Lines, wanted: str) -> Iterator[tuple[str, str]]:
    """The two texts of each line, with a tab between them.

    Args:
        wanted: what a line has to be, for the message.

    Raises:
        InputError: a line has fewer or more.
    """
    for line in lines:
        texts = line.split("\t") if line.strip() else ["", ""]
        if len(texts) != 2:
            raise InputError(
                f"{lines.place}: {wanted} with one tab between them, and the line has "
                f"{len(texts) - 1 or 'none'}",
                id="cell-count-differs",
            )
        yield texts[0], texts[1]


def json_line(number: int, **data: Any) -> str:
    """A line of `--jsonl`."""
    return json.dumps({"line": number, **data}, ensure_ascii=False)
