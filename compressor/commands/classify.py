"""`compress classify`: lines in, their labels out; needs neither torch nor transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import InputError, UsageError

if TYPE_CHECKING:
    from compressor.pipeline.stream_lines import Lines


def register(app: typer.Typer) -> None:
    app.command("classify")(classify)


def classify(
    directory: o.Artifact,
    files: o.Files = None,
    output: o.LinesOutput = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Each line is two texts, with one tab between them.")
    ] = False,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k", min=1, help="The N most probable labels: label, probability, label, ..."
        ),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="All labels in the model's order, as by --top-k."),
    ] = False,
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
    """Label lines with an artifact, one line each."""
    from compressor.pipeline.stream_lines import Lines, serve
    from compressor.runtime import Classifier
    from compressor.runtime.artifact import read_artifact
    from compressor.runtime.session import choose_device

    if probabilities and top_k is not None:
        raise UsageError("--top-k and --probabilities exclude each other; give one of them")
    lines = Lines(files or [])
    precision = precision or read_artifact(directory).default_precision
    chosen = choose_device(device or "auto", [precision])
    model = Classifier(directory, precision=precision, device=chosen, threads=threads)
    if top_k is not None and top_k > len(model.labels):
        raise UsageError(f"--top-k {top_k}: the model has only {len(model.labels)} labels")

    def answer(texts: Iterable[str], chunk: int) -> Iterator[list[tuple[str, float]]]:
        found = model.probabilities_stream(
            _columns(lines) if pairs else texts,
            chunk_rows=chunk, batch_size=batch_size, batch_tokens=batch_tokens,
        )  # fmt: skip
        wanted = None if probabilities else top_k or 1
        return ([] if row is None else _ranked(model.labels, row.tolist(), wanted) for row in found)

    def form(number: int, found: Sequence[tuple[str, float]]) -> str:
        if jsonl:
            return _as_json(number, found)
        if top_k is None and not probabilities:
            return "".join(label for label, _ in found)
        return "\t".join(f"{label}\t{probability:.6f}" for label, probability in found)

    counts = console.counts_lines(to_stdout=output is None)
    serve(lines, answer, form, output, chunk_lines, console, counts)
    return 0


def _columns(lines: Lines) -> Iterator[tuple[str, str]]:
    for line in lines:
        texts = line.split("\t") if line.strip() else ["", ""]
        if len(texts) != 2:
            raise InputError(
                f"{lines.place}: {len(texts)} columns, but --pairs wants two texts with one tab "
                "between them"
            )
        yield texts[0], texts[1]


def _ranked(
    labels: Sequence[str], probabilities: Sequence[float], count: int | None
) -> list[tuple[str, float]]:
    """The most probable labels, best first; all in their own order if `count` is None."""
    pairs = list(zip(labels, probabilities, strict=True))
    return pairs if count is None else sorted(pairs, key=lambda pair: -pair[1])[:count]


def _as_json(number: int, found: Sequence[tuple[str, float]]) -> str:
    best = max(found, key=lambda pair: pair[1])[0] if found else None
    rounded = {label: round(probability, 6) for label, probability in found}
    data = {"line": number, "label": best, "probabilities": rounded}
    return json.dumps(data, ensure_ascii=False)
