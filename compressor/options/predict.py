"""The options of `compress predict`."""

from __future__ import annotations

from typing import ClassVar

from compressor.options.assemble import Request
from compressor.options.bounds import BatchSize, BatchTokens, Beams, Threads, Tokens
from compressor.options.declare import Options, option
from compressor.options.sections import CUDA_GRAPHS, DEVICE, VERIFY, Device
from compressor.storage.names import ONNXRUNTIME


class _Engine(Options):
    panel: ClassVar[str] = "Engine"

    precision: str | None = option(
        None, help="One that was exported, or bf16 with openvino; the artifact's default otherwise."
    )
    engine: str = option(
        ONNXRUNTIME,
        help="Library that computes: onnxruntime, openvino, ctranslate2, or auto: the fastest in "
        "the same precision when the artifact was made, where that was measured.",
    )
    batch_size: BatchSize | None = option(None, short="-b", help="Rows per batch at most.")
    batch_tokens: BatchTokens | None = option(
        None,
        help="Rows x longest row of a batch at most, in tokens. Default without -b: 1024 for "
        "encoder-decoders and 512 for other models on CPU, 4096 on CUDA.",
    )
    chunk_lines: int | None = option(
        None,
        ge=1,
        le=1 << 20,
        help="Lines to read ahead and sort by length. Default: 2048, and 1 on a terminal.",
    )
    threads: Threads | None = option(
        None, help="CPU threads of the runtime. Default: one for each physical core."
    )
    workers: Threads = option(
        1, help="Batches that are computed at the same time, each with --threads (default then 1)."
    )
    cuda_graphs: bool = CUDA_GRAPHS
    cache: str | None = option(
        None, help="Directory outside of the artifact where openvino keeps compiled models."
    )


class _Lines(Options):
    panel: ClassVar[str] = "Answers"

    jsonl: bool = option(False, help="One JSON object per line instead of plain text.")


class _Labels(_Lines):
    panel: ClassVar[str] = "Answers"

    pairs: bool = option(
        False,
        help="Classification and regression: each line is two texts, with one tab between them.",
    )
    top_k: Tokens | None = option(
        None,
        help="Classification: the N most probable labels: label, probability, label, ... "
        "Reranking: only the first N lines.",
    )
    probabilities: bool = option(
        False, help="Classification: all labels in the model's order, as by --top-k."
    )


class _Texts(_Lines):
    panel: ClassVar[str] = "Answers"

    num_beams: Beams | None = option(
        None, help="Translation and summarization: beam width; the checkpoint's own by default."
    )
    max_new_tokens: Tokens | None = option(
        None,
        help="Translation and summarization: most tokens of an answer; the model's by default.",
    )
    source_language: str | None = option(
        None,
        help="Translation: language of the lines; by default the one that the artifact was made "
        "for.",
    )
    target_language: str | None = option(
        None, help="Translation: language to translate into; by default the one of the artifact."
    )


class _Answers(_Texts, _Labels):
    panel: ClassVar[str] = "Answers"

    prompt: str | None = option(
        None, help="Embedding: name of the model's prompt that lines begin with, such as query."
    )
    query: str | None = option(None, help="Reranking: what the lines are to be relevant to.")
    null_answers: bool = option(
        False,
        help="Question answering: there may be no answer, for models that have learned that "
        "(SQuAD 2.0).",
    )
    stride: Tokens | None = option(
        None,
        help="Question answering: tokens of the text that two windows share where it is too long "
        "for one; at most half of a window. Default: 128.",
    )


class Served(_Lines, _Engine, Request):
    """What all commands that answer lines take."""

    device: Device = DEVICE
    verify: bool = VERIFY


class TranslateRequest(_Texts, Served):
    """What `compress translate` takes."""


class ClassifyRequest(_Labels, Served):
    """What `compress classify` takes."""


class PredictRequest(_Answers, Served):
    """What `compress predict` takes."""


# Passed on when the artifact is opened.
OPENING_OPTIONS = ("cache", "source_language", "target_language")
# Options that some tasks have, which their runtimes name (`Runtime.line_options`).
TASK_OPTIONS = tuple(name for name in _Answers.model_fields if name != "jsonl")
