"""`compress predict`: lines in, answers out, by any artifact; needs no torch, no transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import InputError, UsageError
from compressor.options.predict import (
    OPENING_OPTIONS,
    TASK_OPTIONS,
    ClassifyRequest,
    PredictRequest,
    Served,
    TranslateRequest,
)
from compressor.progress import SILENT, Progress

if TYPE_CHECKING:
    from compressor.commands.stream_lines import Lines
    from compressor.runtime.runtime import Line, Runtime

Artifact = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="What `compress run` or `compress export` wrote, with onnx/ in it."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE...", help="One text per line; standard input by default, or -."),
]
LinesOutput = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        rich_help_panel="Answers",
        help="A new file, instead of standard output; of embeddings, .npy for a NumPy array.",
    ),
]


def _answering(
    help: str, example: str, takes: type[Served], tasks: Sequence[str] = ()
) -> o.Command:
    """A command that answers lines by artifacts for these tasks; none: for any."""

    def answer(
        request: Served,
        directory: Artifact,
        files: Files = None,
        output: LinesOutput = None,
    ) -> int:
        from compressor.commands.stream_lines import Lines, serve

        to_array = output is not None and output.suffix == ".npy"
        if to_array and request.jsonl:
            raise UsageError(
                f"--jsonl has no effect on the array --output {output}; leave it out",
                id="option-without-use",
            )
        lines = Lines(files or [])
        model = _open(request, directory, tasks)
        given = {name: getattr(request, name, None) for name in model.line_options}
        options = {
            name: value
            for name, value in given.items()
            if value is not None and name not in OPENING_OPTIONS
        }
        paired = "each line is two texts" if options.pop("pairs", False) else model.pair_lines
        rows = _pairs(lines, paired) if paired else lines
        limits = {"batch_size": request.batch_size, "batch_tokens": request.batch_tokens}
        progress = console if console.counts_lines(to_stdout=output is None) else SILENT
        if output is not None and to_array:
            _write_array(model, rows, output, request, progress)
            return 0

        def form(number: int, line: Line) -> str:
            text, data = line
            if request.jsonl:
                return json.dumps({"line": number} | data, ensure_ascii=False)
            return text

        serve(
            lines,
            lambda _, chunk: model.answer_lines(rows, chunk_rows=chunk, **limits, **options),
            form,
            output,
            request.chunk_lines,
            progress,
        )
        return 0

    return o.Command(answer, takes, json=False, help=help, example=example)


predict = _answering(
    "Answer lines with an artifact, one line each; the line format depends on the task.",
    "compress predict out lines.txt -o answers.txt",
    PredictRequest,
)
translate = _answering(
    "Translate lines: `predict` for translators alone.",
    "compress translate out lines.txt -o answers.txt",
    TranslateRequest,
    ("translation",),
)
classify = _answering(
    "Label lines: `predict` for classifiers alone.",
    "compress classify out lines.txt --top-k 3",
    ClassifyRequest,
    ("classification", "multilabel"),
)


def _open(request: Served, directory: Path, tasks: Sequence[str]) -> Runtime[Any]:
    from compressor.options.declare import as_flag
    from compressor.options.table import import_object
    from compressor.runtime.engines import choose_engine
    from compressor.runtime.opening import read_artifact
    from compressor.tasks import TASKS

    artifact, named = read_artifact(directory), request.precision
    if tasks and artifact.task not in tasks:
        raise InputError(
            f"{directory} holds a model for {artifact.task}; use `compress predict`",
            id="artifact-of-another-task",
        )
    runtime: type[Runtime[Any]] = import_object(TASKS[artifact.task].runtime)
    for name in TASK_OPTIONS:
        value = getattr(request, name, None)
        if value not in (None, False) and name not in runtime.line_options:
            raise UsageError(
                f"{as_flag(name)} has no effect on {artifact.task}; leave it out",
                id="option-without-use",
            )
    engine = choose_engine(request.engine, runtime.kind, artifact, named, request.device)
    precision = named or engine.default_precision(artifact)
    given = {name: getattr(request, name, None) for name in OPENING_OPTIONS}
    return runtime(
        directory,
        precision=precision,
        engine=engine.name,
        device=engine.choose_device(request.device, [precision]),
        threads=request.threads,
        workers=request.workers,
        cuda_graphs=request.cuda_graphs,
        verify=request.verify,
        **{name: value for name, value in given.items() if value is not None},
    )


def _pairs(lines: Lines, wanted: str) -> Iterator[tuple[str, str]]:
    """The two texts of each line, with a tab between them; `wanted` says what a line has to be."""
    for line in lines:
        texts = line.split("\t") if line.strip() else ["", ""]
        if len(texts) != 2:
            raise InputError(
                f"{lines.place}: {wanted} with one tab between them, and the line has "
                f"{len(texts) - 1 or 'none'}",
                id="cell-count-differs",
            )
        yield texts[0], texts[1]


def _write_array(
    model: Runtime[Any], rows: Any, output: Path, request: Served, progress: Progress
) -> None:
    """Write the embeddings of lines as an array, float32 [lines, width]."""
    import numpy as np

    from compressor.commands.stream_lines import refuse_existing
    from compressor.runtime import Embedder
    from compressor.runtime.batching import CHUNK_ROWS
    from compressor.storage.files import require_directory, written_at_once

    if not isinstance(model, Embedder):
        raise UsageError(
            f"--output {output}: only embeddings are written as an array; give another name",
            id="output-not-array",
        )
    refuse_existing(output)
    require_directory(output.parent)
    chunk, prompted = (
        request.chunk_lines or CHUNK_ROWS,
        model.with_prompt(getattr(request, "prompt", None)),
    )
    embeddings = []
    limits = {"batch_size": request.batch_size, "batch_tokens": request.batch_tokens}
    for row in prompted.embed_stream(rows, chunk_rows=chunk, **limits):
        embeddings.append(row)
        if len(embeddings) % chunk == 0:
            progress.update("lines", len(embeddings), None)
    progress.update("lines", len(embeddings), len(embeddings))
    array = np.array(embeddings, dtype=np.float32).reshape(-1, model.width)
    with written_at_once(output, replace=False) as path, path.open("xb") as file:
        np.save(file, array)
