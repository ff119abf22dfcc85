"""`compress classify`: lines in, their labels out; needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from compressor.commands import options as o
from compressor.commands.lines import PAIRS, Artifact, Files, LinesOutput, json_line, stream
from compressor.errors import UsageError
from compressor.request.serving import ClassifyRequest


@o.command(ClassifyRequest, json=False)
def classify(
    request: ClassifyRequest, directory: Artifact, files: Files = None, output: LinesOutput = None
) -> int:
    """Label lines with an artifact, one line each; several labels with tabs between them."""
    from compressor.runtime import Classifier, MultiLabelClassifier
    from compressor.runtime.artifact import read_artifact

    several = read_artifact(directory).task == MultiLabelClassifier.task
    over_half = several and request.top_k is None and not request.probabilities
    if request.probabilities and request.top_k is not None:
        raise UsageError(
            "--top-k and --probabilities exclude each other; give one of them",
            id="options-exclude-each-other",
        )

    def answer(
        model: Classifier | MultiLabelClassifier, rows: Iterable[Any], **batching: Any
    ) -> Iterator[list[tuple[str, float]]]:
        if request.top_k is not None and request.top_k > len(model.labels):
            raise UsageError(
                f"--top-k {request.top_k}: the model has only {len(model.labels)} labels; ask for "
                "at most that",
                id="top-k-too-large",
            )
        wanted = None if request.probabilities or over_half else request.top_k or 1
        for row in model.probabilities_stream(rows, **batching):
            found = [] if row is None else _ranked(model.labels, row.tolist(), wanted)
            yield _likely(found) if over_half else found

    def form(number: int, ranked: Sequence[tuple[str, float]]) -> str:
        if request.jsonl:
            rounded = {label: round(probability, 6) for label, probability in ranked}
            if several:
                labels = [label for label, _ in _likely(ranked)]
                return json_line(number, labels=labels, probabilities=rounded)
            best = max(ranked, key=lambda pair: pair[1])[0] if ranked else None
            return json_line(number, label=best, probabilities=rounded)
        if request.top_k is None and not request.probabilities:
            return "\t".join(label for label, _ in ranked)
        return "\t".join(f"{label}\t{probability:.6f}" for label, probability in ranked)

    runtime = MultiLabelClassifier if several else Classifier
    return stream(
        runtime, request, directory, files, output, answer, form,
        pairs=PAIRS if request.pairs else "", cache=request.cache,
    )  # fmt: skip


def _likely(pairs: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    return [pair for pair in pairs if pair[1] > 0.5]


def _ranked(
    labels: Sequence[str], probabilities: Sequence[float], count: int | None
) -> list[tuple[str, float]]:
    """The most probable labels, best first; all in their own order if `count` is None."""
    pairs = list(zip(labels, probabilities, strict=True))
    return pairs if count is None else sorted(pairs, key=lambda pair: -pair[1])[:count]
