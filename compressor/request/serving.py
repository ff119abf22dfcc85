"""What the commands take that run an artifact on lines."""

from __future__ import annotations

from compressor.options.bounds import (
    MOST_BATCH,
    MOST_BATCH_TOKENS,
    MOST_BEAMS,
    MOST_CHUNK_LINES,
    MOST_THREADS,
    MOST_TOKENS,
)
from compressor.options.declare import Section, option
from compressor.request.sections import CUDA_GRAPHS, DEVICE, VERIFY, Device


class ServeRequest(Section):
    """What commands take that run an artifact on lines."""

    batch_size: int | None = option(
        None, short="-b", ge=1, le=MOST_BATCH, help="Rows per batch at most."
    )
    batch_tokens: int | None = option(
        None,
        ge=1,
        le=MOST_BATCH_TOKENS,
        help="Rows x longest row of a batch at most, in tokens. Default without -b: 1024 for "
        "encoder-decoders and 512 for other models on CPU, 4096 on CUDA.",
    )
    chunk_lines: int | None = option(
        None,
        ge=1,
        le=MOST_CHUNK_LINES,
        help="Lines to read ahead and sort by length. Default: 2048, and 1 on a terminal.",
    )
    precision: str | None = option(
        None, help="One that was exported, or bf16 with openvino; the artifact's default otherwise."
    )
    engine: str = option(
        "onnxruntime",
        help="Library that computes: onnxruntime, openvino, ctranslate2, or auto: the fastest in "
        "the same precision when the artifact was made, where that was measured.",
    )
    device: Device = DEVICE
    threads: int | None = option(None, ge=1, le=MOST_THREADS, help="CPU threads of the runtime.")
    workers: int = option(
        1,
        ge=1,
        le=MOST_THREADS,
        help="Batches that are computed at the same time, each with --threads (default then 1).",
    )
    cuda_graphs: bool = CUDA_GRAPHS
    verify: bool = VERIFY


COMPILED = option(
    None, help="Directory outside of the artifact where openvino keeps compiled models."
)


class StreamRequest(ServeRequest):
    """What commands take that stream lines through an artifact."""

    jsonl: bool = option(False, help="One JSON object per line instead of plain text.")


class EmbedRequest(ServeRequest):
    """What `compress embed` takes."""

    cache: str | None = COMPILED


class GenerateRequest(StreamRequest):
    """What `compress translate` and `compress summarize` take."""

    num_beams: int | None = option(
        None, ge=1, le=MOST_BEAMS, help="Beam width; the checkpoint's own by default."
    )
    max_new_tokens: int | None = option(
        None, ge=1, le=MOST_TOKENS, help="Most tokens of an answer; the model's by default."
    )


class TranslateRequest(GenerateRequest):
    """What `compress translate` takes."""

    source_language: str | None = option(
        None, help="Language of the lines; by default the one that the artifact was made for."
    )
    target_language: str | None = option(
        None, help="Language to translate into; by default the one of the artifact."
    )


class ClassifyRequest(StreamRequest):
    """What `compress classify` takes."""

    pairs: bool = option(False, help="Each line is two texts, with one tab between them.")
    top_k: int | None = option(
        None,
        ge=1,
        le=MOST_TOKENS,
        help="The N most probable labels: label, probability, label, ...",
    )
    probabilities: bool = option(False, help="All labels in the model's order, as by --top-k.")
    cache: str | None = COMPILED


class TagRequest(StreamRequest):
    """What `compress tag` takes."""

    cache: str | None = COMPILED


class PredictRequest(StreamRequest):
    """What `compress predict` takes."""

    pairs: bool = option(False, help="Each line is two texts, with one tab between them.")
    cache: str | None = COMPILED


class RerankRequest(StreamRequest):
    """What `compress rerank` takes."""

    query: str = option(help="What the lines are to be relevant to.")
    top_k: int | None = option(None, ge=1, le=MOST_TOKENS, help="Only the first N.")
    cache: str | None = COMPILED


class AnswerRequest(StreamRequest):
    """What `compress answer` takes."""

    null_answers: bool = option(
        False, help="There may be no answer: for models that have learned that (SQuAD 2.0)."
    )
    stride: int = option(
        128,
        ge=1,
        le=MOST_TOKENS,
        help="Tokens of the text that two windows share where it is too long for one; at most half "
        "of a window.",
    )
    cache: str | None = COMPILED
