"""`compress classify`: lines in, their labels out; needs neither torch nor transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.commands.lines import Artifact, Files, LinesOutput
from compressor.errors import InputError, UsageError
from compressor.request.recipe import ClassifyRequest

if TYPE_CHECKING:
    from compressor.pipeline.stream_lines import Lines


def register(app: typer.Typer) -> None:
    o.add_command(app, "classify", classify, ClassifyRequest, json=False)


def classify(
    request: ClassifyRequest,
    directory: Artifact,
    files: Files = None,
    output: LinesOutput = None,
) -> int:
    """Label lines with an artifact, one line each."""
    from compressor.pipeline.stream_lines import Lines, serve
    from compressor.runtime import Classifier
    from compressor.runtime.artifact import read_artifact
    from compressor.runtime.session import choose_device

    if request.probabilities and request.top_k is not None:
        raise UsageError(
            "--top-k and --probabilities exclude each other; give one of them",
            id="options-exclude-each-other",
        )
    lines = Lines(files or [])
    precision = request.precision or read_artifact(directory).default_precision
    chosen = choose_device(request.device, [precision])
    model = Classifier(
        directory, precision=precision, device=chosen, threads=request.threads,
        verify=request.verify,
    )  # fmt: skip
    if request.top_k is not None and request.top_k > len(model.labels):
        raise UsageError(
            f"--top-k {request.top_k}: the model has only {len(model.labels)} labels; ask for at "
            "most that",
            id="top-k-too-large",
        )

    def answer(texts: Iterable[str], chunk: int) -> Iterator[list[tuple[str, float]]]:
        found = model.probabilities_stream(
            _columns(lines) if request.pairs else texts,
            chunk_rows=chunk, batch_size=request.batch_size, batch_tokens=request.batch_tokens,
        )  # fmt: skip
        wanted = None if request.probabilities else request.top_k or 1
        return ([] if row is None else _ranked(model.labels, row.tolist(), wanted) for row in found)

    def form(number: int, found: Sequence[tuple[str, float]]) -> str:
        if request.jsonl:
            return _as_json(number, found)
        if request.top_k is None and not request.probabilities:
            return "".join(label for label, _ in found)
        return "\t".join(f"{label}\t{probability:.6f}" for label, probability in found)

    counts = console.counts_lines(to_stdout=output is None)
    serve(lines, answer, form, output, request.chunk_lines, console, counts)
    return 0


def _columns(lines: Lines) -> Iterator[tuple[str, str]]:
    for line in lines:
        texts = line.split("\t") if line.strip() else ["", ""]
        if len(texts) != 2:
            raise InputError(
                f"{lines.place}: {len(texts)} columns, but --pairs wants two texts with one tab "
                "between them",
                id="cell-count-differs",
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
