"""How much faster a decoder is that scores candidates alone, by how many they are.

    python -m benchmarks.candidates --work DIR [--rounds 40]

A translator of OPUS-MT's size with random weights, two decoder layers and a quarter of its heads
and neurons, whose decoder scores 32,112 tokens. Processor time of one thread, for sources of 12
tokens: of a step at the tenth token, of taking and gathering a batch's candidates, and of a
translation to 12 tokens with both and the encoder. Decoders with candidates and with all tokens run
in turns; the intervals are those of `compressor.throughput.statistics`.

Results: benchmarks/results/candidates.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.speed import models
from compressor.export.candidate_graphs import add_candidates
from compressor.export.precisions import write_precision
from compressor.export.task_graphs import Network
from compressor.export.tokenizer import write_tokenizer
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune, without_skipped
from compressor.runtime import Translator
from compressor.runtime.candidates import FREQUENT_ROWS
from compressor.tasks import TASKS
from compressor.throughput.hardware import describe
from compressor.throughput.statistics import speedup_of

# Rows of a batch, and how many candidates it has.
CASES = ((1, 768), (1, 1536), (1, 3072), (16, 1984), (16, 2560), (16, 5120), (16, 7680))
SOURCE, STEPS, FIRST = 12, 12, 9  # tokens: of a source, of a translation, before the timed step
SOURCE_TOKENS = 2000  # different ones
REPEATED = 12  # steps that are timed together, as those of a translation


def make(work: Path) -> Path:
    """The artifact, unless the directory has it already."""
    out = work / "candidates"
    if (out / "onnx/graphs.json").exists():
        return out
    checkpoint = open_checkpoint(str(models.translator(work / "opus")))
    quarter = {
        x.name: tuple(unit < x.units // 4 for unit in range(x.units)) for x in checkpoint.layers
    }
    mask = Mask(quarter).without_layers([f"decoder.{layer}" for layer in range(2, 6)])
    cut = prune(checkpoint.model, checkpoint.layers, mask)
    small = without_skipped(checkpoint, cut, mask)
    graphs = TASKS[checkpoint.task].graphs
    tokens = graphs.output_tokens(small)
    graphs.export(Network(small, small.model, small.mask, tokens), out / "onnx")
    write_tokenizer(small.tokenizer, out / "onnx/tokenizer.json", graphs.layout)
    # Replaced by `with_candidates`.
    np.save(work / "candidates.npy", np.zeros((1 + FREQUENT_ROWS, 1), np.int32))
    add_candidates(out, work / "candidates.npy")
    write_precision(out, "int8", ())
    return out


def with_candidates(runtime: Translator, count: int) -> None:
    """Let all batches have so many candidates, random ones."""
    candidates = runtime._graph.candidates
    assert candidates is not None
    rng = np.random.default_rng(0)
    named = runtime._generation.named
    others = np.setdiff1d(np.arange(len(runtime.tokens.ids)), named)
    pool = np.sort([*named, *rng.choice(others, count - len(named), replace=False)])
    shape = SOURCE_TOKENS + FREQUENT_ROWS, -(-count // FREQUENT_ROWS)
    table = np.resize(pool, shape).astype(np.int32)
    table[-FREQUENT_ROWS:] = np.resize(pool, (FREQUENT_ROWS, shape[1]))
    candidates.table = table


def seconds(rounds: int, *functions: Callable[[], object], repeated: int = 1) -> list[np.ndarray]:
    """Processor seconds of functions in turns, [rounds, 1] each."""
    found: list[list[float]] = [[] for _ in functions]
    for number in range(rounds + 1):
        for taken, function in zip(found, functions, strict=True):
            before = time.thread_time()
            for _ in range(repeated):
                function()
            if number:  # the first round warms up
                taken.append((time.thread_time() - before) / repeated)
    return [np.array(taken)[:, None] for taken in found]


def measure(directory: Path, precision: str, rows: int, count: int, rounds: int) -> list[str]:
    """A row of the table."""
    runtime = Translator(directory, precision=precision, threads=1, verify=False)
    with_candidates(runtime, count)
    rng = np.random.default_rng(1)
    ids = rng.integers(SOURCE_TOKENS, size=(rows, SOURCE))
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    named, some = runtime._generation.named, runtime._graph.candidates
    assert some is not None
    tokens = some.of(batch, named).tokens
    assert tokens is not None
    assert len(tokens) == count
    whole = Translator(directory, precision=precision, threads=1, verify=False, candidates=False)
    decoders = whole.start(batch), runtime.start(batch, named)
    step_tokens = np.full(rows, named[0])
    for decoder in decoders:
        for _ in range(FIRST):
            decoder.step(step_tokens)

    def step(decoder: Any) -> Callable[[], object]:
        position, past = decoder._position, decoder.past

        def run() -> None:  # the same step each time
            decoder._position, decoder.past = position, past
            decoder.step(step_tokens)

        return run

    steps = seconds(rounds, *map(step, decoders), repeated=REPEATED)
    (gathering,) = seconds(rounds, lambda: some.of(batch, named))
    translations = seconds(
        rounds, *(lambda x=x: x.generate(batch, forced_length=STEPS) for x in (whole, runtime))
    )
    return [
        precision,
        str(rows),
        f"{count:,}",
        *(f"{1e3 * np.median(x):.2f}" for x in (*steps, gathering)),
        *(pages.with_interval(*speedup_of(*pair)) for pair in (steps, translations)),
    ]


def main() -> None:
    parser = pages.arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="models, reused by later calls")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    directory = make(args.work)
    titles = ["precision", "rows", "candidates", "all tokens, ms", "candidates, ms"]
    titles += ["gathering, ms", "a step, times as fast", "a translation, times as fast"]
    table = pages.markdown_table(
        titles,
        "lrrrrrl",
        [measure(directory, x, *case, args.rounds) for x in ("int8", "fp32") for case in CASES],
    )
    hardware = describe()
    note = f"{hardware['cpu']} with {hardware['instructions']}, one thread."
    pages.publish("candidates", f"{table}\n\n{note}\n")


if __name__ == "__main__":
    main()
