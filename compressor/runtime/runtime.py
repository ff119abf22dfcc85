"""What all runtimes share: opening an artifact, encoding texts, reading streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact, read_artifact
from compressor.runtime.batching import Batch, by_length, collate, in_chunks
from compressor.runtime.consistency import read_unchanged, require_inside
from compressor.runtime.session import open_session, slower_optimizations
from compressor.runtime.text import Encoded, TextTokenizer

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Described = TypeVar("Described", bound=Artifact)
Answer = TypeVar("Answer")
Arrays = Mapping[str, NDArray[np.int64]]


class Runtime(ABC, Generic[Described]):
    """An exported model, opened; needs numpy, onnxruntime and tokenizers only.

    A subclass names its `task`, and the padded tokens of a batch by device where nothing else is
    asked for (`batch_tokens`).

    Args:
        directory: what `compress run` or `compress export` wrote, with `onnx/` in it.
        precision: one of the artifact's precisions; None takes its default.
        device: `cpu` or `cuda`; there is no fallback to another one.
        threads: threads within an operation; None leaves the choice to onnxruntime.
        verify: check the files against `manifest.json` first, about 3 s for each gigabyte; warn
            where there is none.

    Raises:
        InputError: not an artifact of the task, or one that is damaged.
        UsageError: an unknown precision or device, or a precision that the device has no kernels
            for.
        EnvironmentProblem: a package is missing, or the device is not usable.
    """

    task: ClassVar[str]
    batch_tokens: ClassVar[Mapping[str, int]]

    def __init__(
        self,
        directory: str | Path,
        *,
        precision: str | None = None,
        device: str = "cpu",
        threads: int | None = None,
        verify: bool = True,
    ) -> None:
        self._directory = Path(directory)
        if verify:
            artifact = read_unchanged(self._directory, [precision] if precision else None)
        else:
            artifact = read_artifact(self._directory)
            require_inside(self._directory, artifact)
        if artifact.task != self.task:
            raise InputError(
                f"{directory} holds a {artifact.task} model; open it with {artifact.opened_with}",
                id="artifact-of-another-task",
            )
        self.artifact = cast(Described, artifact)
        self.precision = artifact.precision(precision, device)
        self._device, self._threads = device, threads
        self._graphs = self._directory / GRAPH_DIRECTORY
        tokenizer = self._graphs / artifact.tokenizer
        self._tokenizer = TextTokenizer(tokenizer, artifact.max_source_tokens)
        session = self._open()
        self._batch_tokens = self.batch_tokens[device]
        self.provider = str(session.get_providers()[0])

    @abstractmethod
    def _open(self) -> InferenceSession:
        """Open the graphs, check them against the artifact's description, and give one back."""

    def _session(self, role: str) -> InferenceSession:
        """Open the graph with a role."""
        file = self._graphs / self.artifact.file(role, self.precision)
        without = slower_optimizations(self._device, self.precision)
        return open_session(file, self._device, self._threads, without=without)

    @abstractmethod
    def compute(self, batch: Arrays, **options: Any) -> object:
        """Do all the work of one padded batch; for timing it.

        Args:
            options: what tasks that generate need to know.
        """

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoded]:
        """Token ids of each text, or (text, pair), cut to the model's longest input."""
        rows = self._tokenizer.encode(texts, pairs)
        self._tokenizer.warn_of_cut(sum(row.cut for row in rows), len(rows))
        return rows

    def _answer(
        self,
        rows: Sequence[Encoded],
        answer: Callable[[Batch], Iterable[Answer]],
        batch_size: int | None,
        batch_tokens: int | None,
    ) -> list[Answer]:
        """Answers to encoded rows in their order; rows of similar length share a batch.

        Args:
            answer: to the rows of a padded batch.
        """
        answers: dict[int, Answer] = {}
        for numbers in by_length(rows, batch_size, batch_tokens, self._batch_tokens):
            batch = [rows[number] for number in numbers]
            padded = collate(batch, self.artifact.pad_token_id, self.artifact.inputs)
            answers.update(zip(numbers, answer(padded), strict=True))
        return [answers[number] for number in range(len(rows))]

    def _stream(
        self,
        rows: Iterable[str] | Iterable[tuple[str, str]],
        answer: Callable[[Batch], Iterable[Answer]],
        blank: Answer,
        chunk_rows: int,
        batch_size: int | None,
        batch_tokens: int | None,
    ) -> Iterator[Answer]:
        """Answers to texts or pairs, read a chunk at a time; `blank` to those of white space."""
        read = cut = 0
        for chunk in in_chunks(rows, chunk_rows):
            columns = [(row,) if isinstance(row, str) else row for row in chunk]
            filled = [row for row in columns if any(text.strip() for text in row)]
            encoded = self._tokenizer.encode(*zip(*filled, strict=True)) if filled else []
            read, cut = read + len(chunk), cut + sum(row.cut for row in encoded)
            answers = iter(self._answer(encoded, answer, batch_size, batch_tokens))
            for row in columns:
                yield next(answers) if any(text.strip() for text in row) else blank
        self._tokenizer.warn_of_cut(cut, read)
