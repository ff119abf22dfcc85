"""The bases of all runtimes: opening an artifact, answering texts in batches, reading streams."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, Unpack, cast

import numpy as np

from compressor.errors import InputError, UsageError
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact, EncoderArtifact
from compressor.runtime.batching import (
    CHUNK_ROWS,
    Batch,
    Floats,
    by_length,
    check_limits,
    collate,
    in_chunks,
    require_texts,
)
from compressor.runtime.capture import Captured
from compressor.runtime.engines import EncoderEngine, Setup, choose_engine
from compressor.runtime.opening import read_description, require_files
from compressor.runtime.text import Encoded, TextsCut, TextTokenizer
from compressor.storage.names import ONNXRUNTIME

Described = TypeVar("Described", bound=Artifact)
DescribedEncoder = TypeVar("DescribedEncoder", bound=EncoderArtifact)
Answer = TypeVar("Answer")
_CLASSES: dict[str, str] = {}  # task -> the class that runs its models
# From texts (and second texts, of pairs) and `BatchSizes` to answers, and how many texts were cut.
Answers = Callable[..., tuple[list[Answer], int]]
Line = tuple[str, dict[str, Any]]


class BatchSizes(TypedDict, total=False):
    """How large batches may get: `batch_size` rows, and `batch_tokens` tokens, padding included.

    Without both the number of tokens is one that was measured (docs/tuning.md, "How batches are
    made").
    """

    batch_size: int | None
    batch_tokens: int | None


class StreamLimits(BatchSizes, total=False):
    """How large batches may get, and `chunk_rows`: how many rows a stream reads ahead."""

    chunk_rows: int  # that are read ahead and sorted by length; all that is held at a time


class Runtime(ABC, Generic[Described]):
    """An exported model, opened; needs numpy, tokenizers and an engine's library only.

    Threads may share one. Each call computes by itself; with several threads give `threads=1`.

    Args:
        directory: what `compress run` or `compress export` wrote, with `onnx/` in it.
        precision: one that the engine has for the artifact; None takes the artifact's default, or
            fp32 where the engine lacks that one.
        device: `cpu` or `cuda`; there is no fallback to another one.
        threads: within an operation; None leaves the choice to the engine, and is 1 with workers.
        workers: batches that are computed at the same time, by one copy of the weights. Small
            models gain more from them than from threads (docs/tuning.md, "Workers").
        verify: check the files against `manifest.json` first, about 3 s a gigabyte.
        engine: the library that computes, a name in `compressor.runtime.engines.ENGINES`; there is
            no fallback to another one. `auto` is the one that was the fastest in the same precision
            when the artifact was made, where that was measured, and onnxruntime elsewhere.
        cache: directory where OpenVINO keeps the models that it compiles.
        cuda_graphs: on CUDA, run small batches as captured CUDA graphs (docs/gpu-guide.md).

    Raises:
        InputError: not an artifact of the task, or one that is damaged.
        UsageError: an unknown engine, precision or device, or one that the others exclude.
        EnvironmentProblem: a package is missing or too old, or the device is not usable.
    """

    task: ClassVar[str]
    kind: ClassVar[str]  # of model, as engines know it
    # Padded tokens of a batch by device, where nothing else is asked for.
    batch_tokens: ClassVar[Mapping[str, int]]
    cuts_texts: ClassVar[bool] = True  # else it reads long texts in parts
    cut_message: ClassVar[str] = (
        "texts were cut to the {most} tokens that the model can read; split them into sentences"
    )
    line_options: ClassVar[tuple[str, ...]] = ()  # of `answer_lines`
    pair_lines: ClassVar[str] = ""  # what a line is, where that is two texts

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "task" in vars(cls):
            _CLASSES[cls.task] = cls.__name__

    def __init__(
        self,
        directory: str | Path,
        *,
        precision: str | None = None,
        device: str = "cpu",
        threads: int | None = None,
        verify: bool = True,
        engine: str = ONNXRUNTIME,
        cache: str | Path | None = None,
        workers: int = 1,
        cuda_graphs: bool = True,
    ) -> None:
        self._directory = Path(directory)
        artifact = read_description(self._directory, verify)
        # Before the files are checked, since engines open different ones.
        library = choose_engine(engine, self.kind, artifact, precision, device)
        chosen = precision or library.default_precision(artifact)
        files = library.files(self._directory, artifact, chosen)
        require_files(self._directory, files, verify=verify)
        if artifact.task != self.task:
            raise InputError(
                f"{directory} holds a model for {artifact.task}; open it with "
                f"{_CLASSES.get(artifact.task, 'its class')}, or use `compress predict`",
                id="artifact-of-another-task",
            )
        self.artifact = cast(Described, artifact)
        check_limits(threads=threads, workers=workers)
        threads = 1 if threads is None and workers > 1 else threads
        self.engine = library.name
        self.precision = library.precision(self._directory, artifact, precision, device)
        self._device, self._workers = device, workers
        self._tokenizer = TextTokenizer(
            self._directory / GRAPH_DIRECTORY / artifact.tokenizer,
            artifact.max_source_tokens if self.cuts_texts else None,
            artifact.truncation_side,
        )
        self._tokenizer.token_types = artifact.token_types
        inside = cache and Path(cache).resolve().is_relative_to(self._directory.resolve())
        if cache is not None and (inside or not library.compiles):
            raise UsageError(
                f"cache {cache}: the engine {library.name} keeps no compiled models there; leave "
                "it out, or give openvino a directory outside of the artifact",
                id="option-without-use",
            )
        setup = Setup(
            self._directory, artifact, self.precision, device, threads, workers, cache, cuda_graphs
        )
        self._engine = library(setup)
        self._open()
        self.provider = self._engine.provider

    @property
    def captured(self) -> Sequence[Captured]:
        """The shapes of batches that have run as captured CUDA graphs, with their memory."""
        return self._engine.captured

    @property
    def ran_by(self) -> str:
        """The provider that has computed so far, and how many CUDA graphs it replayed."""
        if not self.captured:
            return self.provider
        size = sum(shape.bytes for shape in self.captured) / 2**20
        return f"{self.provider}, {len(self.captured)} CUDA graphs with {size:,.0f} MiB"

    @abstractmethod
    def _open(self) -> None:
        """Open the model with the engine."""

    @property
    def encode_batch(self) -> Callable[[Batch], object] | None:
        """What encodes a batch before tokens are generated, for timing it by itself.

        None where nothing is generated, or where the engine does both at once.
        """
        return None

    @abstractmethod
    def compute(self, batch: Batch, **options: Any) -> object:
        """Do all the work of one padded batch, for timing it.

        Args:
            batch: name -> [rows, longest row], as `collate` makes it.
            options: of tasks that generate: those of `Generator.generate`.

        Returns:
            The answers, in a form of the task's own.
        """

    @abstractmethod
    def answer_lines(self, rows: Iterable[Any], **options: Any) -> Iterator[Line]:
        """Answer the lines of a stream, for `compress predict`.

        Args:
            rows: texts, or pairs of texts; read a chunk at a time.
            options: those of `StreamLimits`, and those that `line_options` names.

        Returns:
            For each line its answer as text, and as the fields of a JSON object.

        Raises:
            UsageError: an option is missing, or a number is below 1.
        """

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoded]:
        """Encode texts, or pairs of texts, cut to the model's longest input, with a warning.

        Args:
            texts: the texts, or the first one of each pair.
            pairs: the second one of each.

        Returns:
            The token ids of each, special tokens included.

        Raises:
            UsageError: not as many pairs as texts, or one text in place of a list.
            InputError: the tokenizer gives a pair a token type that the model does not know.
        """
        rows = self._tokenizer.encode(texts, pairs)
        self._warn_of_cut(sum(row.cut for row in rows), len(rows))
        return rows

    def _answer(
        self,
        rows: Sequence[Encoded],
        answer: Callable[[Batch], Iterable[Answer]],
        **limits: Unpack[BatchSizes],
    ) -> list[Answer]:
        """Answer encoded rows; those of similar length share a batch.

        Args:
            rows: token ids.
            answer: computes the answers to the rows of a padded batch.
            limits: how large batches may get.

        Returns:
            The answers in the order of the rows.
        """

        def compute(numbers: Sequence[int]) -> list[tuple[int, Answer]]:
            batch = [rows[number] for number in numbers]
            padded = collate(batch, self.artifact.pad_token_id, self.artifact.inputs)
            return list(zip(numbers, answer(padded), strict=True))

        batches = by_length(rows, default_tokens=self.batch_tokens[self._device], **limits)
        # One batch cannot be shared out, so threads would only cost time.
        if self._workers == 1 or len(batches) < 2:
            answered = [compute(numbers) for numbers in batches]
        else:
            # Threads are enough: engines release Python's global lock while they compute.
            with ThreadPoolExecutor(self._workers) as pool:
                answered = list(pool.map(compute, batches))
        # Batches go by length; answers go back to the order of the rows.
        answers = dict(pair for pairs in answered for pair in pairs)
        return [answers[number] for number in range(len(rows))]

    def _texts_to(self, answer: Callable[[Batch], Iterable[Answer]]) -> Answers[Answer]:
        """Make what answers texts, for `_stream`, of a function that answers a padded batch."""

        def answers(*columns: Sequence[str], **limits: Any) -> tuple[list[Answer], int]:
            encoded = self._tokenizer.encode(*columns)
            return self._answer(encoded, answer, **limits), sum(row.cut for row in encoded)

        return answers

    def _stream(
        self,
        rows: Iterable[str] | Iterable[tuple[str, str]],
        answers: Answers[Answer],
        blank: Answer,
        chunk_rows: int = CHUNK_ROWS,
        **limits: Any,
    ) -> Iterator[Answer]:
        """Answer texts or pairs, read a chunk at a time; one warning at the end counts those cut.

        Args:
            rows: texts, or tuples of two.
            answers: to a chunk's texts (and, of pairs, its second texts), and how many of them were
                cut.
            blank: the answer to a row of white space alone.
            chunk_rows: rows that are read ahead and sorted by length; all that is held at a time.
            limits: how large batches may get.

        Raises:
            UsageError: a number below 1, or one text in place of several.
        """
        # Here, since a generator raises only when its first answer is asked for.
        check_limits(chunk_rows=chunk_rows, **limits)
        require_texts(rows)

        def answered() -> Iterator[Answer]:
            # Rows of white space are in no batch; their answers are put back in between.
            read = cut = 0
            for chunk in in_chunks(rows, chunk_rows):
                columns = [(row,) if isinstance(row, str) else row for row in chunk]
                filled = [row for row in columns if any(text.strip() for text in row)]
                ready, more = answers(*zip(*filled, strict=True), **limits) if filled else ([], 0)
                read += len(chunk)
                cut += more
                waiting = iter(ready)
                for row in columns:
                    yield next(waiting) if any(text.strip() for text in row) else blank
            self._warn_of_cut(cut, read)

        return answered()

    def _warn_of_cut(self, cut: int, texts: int) -> None:
        if cut:
            what = self.cut_message.format(most=self.artifact.max_source_tokens)
            # The level points at the line that reads the stream.
            warnings.warn(TextsCut(cut, texts, what), stacklevel=3)


class EncoderRuntime(Runtime[DescribedEncoder]):
    """An exported encoder with a head; arguments and errors are those of `Runtime`."""

    kind = "encoder"
    # docs/tuning.md, "How batches are made", has the measurements on CPUs; CUDA is not measured.
    batch_tokens: ClassVar[Mapping[str, int]] = {"cpu": 512, "cuda": 4096}

    def _open(self) -> None:
        assert isinstance(self._engine, EncoderEngine)  # by its `kinds`
        self._model = self._engine.encoder()

    def _logits_to(self, answer: Callable[[Floats], Iterable[Answer]]) -> Answers[Answer]:
        """Make what answers texts, for `_stream`, of a function that answers logits."""
        return self._texts_to(lambda batch: answer(self.run(batch)))

    def run(self, batch: Batch) -> Floats:
        """Compute the logits of one padded batch.

        Args:
            batch: the arrays of `artifact.inputs`, int64 [rows, longest row].

        Returns:
            float32 [rows, outputs], or [rows, tokens, outputs] of tasks with an answer for every
            token.

        Raises:
            InputError: the graph does not take what the tokenizer and `graphs.json` make.
        """
        return self._model(batch)

    def compute(self, batch: Batch, **options: Any) -> object:
        """Compute the logits of one padded batch; there are no options."""
        return self.run(batch)

    def logits(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, **limits: Unpack[BatchSizes]
    ) -> Floats:
        """Compute the logits of texts, or of pairs of texts; rows of similar length share a batch.

        Args:
            texts: in any order of lengths; tokens beyond the model's longest input are left out,
                with a warning.
            pairs: the second text of each row, for tasks on pairs.
            limits: `batch_size` rows in a batch at most, and `batch_tokens` padded tokens.

        Returns:
            [rows, outputs], in the order of the texts.

        Raises:
            UsageError: a number below 1, not as many pairs as texts, or one text in place of a
                list.
            InputError: the tokenizer gives a pair a token type that the model does not know.
        """
        rows = self._answer(self.encode(texts, pairs), self.run, **limits)
        # NumPy cannot know how many logits no rows would have.
        return np.array(rows, dtype=np.float32).reshape(-1, self.artifact.outputs)
