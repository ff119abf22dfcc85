"""Whether engines translate as PyTorch does: greedily, in fp32, line by line.

    python -m benchmarks.engine_answers ARTIFACT … [--exported CHECKPOINT=ARTIFACT …] --rows FILE

Each artifact was made with `--engines onnxruntime,ctranslate2`: by `compress run`, so that it holds
its checkpoint, or by `compress export` of another one. The first rows of FILE are translated by
transformers' `generate` from the checkpoint, and by each engine. Writes
benchmarks/results/engine-answers.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.pages import markdown_table, publish
from compressor.model.checkpoint import open_checkpoint
from compressor.runtime import Translator
from compressor.tasks import TASKS

TASK = TASKS["translation"]
COMPARED = ("onnxruntime", "ctranslate2")


def expected(directory: Path, rows: Path, count: int) -> tuple[list[str], list[str]]:
    """The sources, and what PyTorch translates them to."""
    checkpoint = open_checkpoint(str(directory))
    data = TASK.read_rows(rows, limit=count)
    examples = TASK.encode(data, checkpoint.tokenizer, checkpoint.max_source_tokens)
    model, found = checkpoint.model.eval(), [""] * data.count
    for batch in TASK.batches(examples, model):
        answers = TASK.predict(model, batch, checkpoint.tokenizer)
        for row, answer in zip(batch.rows, answers, strict=True):
            found[row] = answer
    return list(data.sources), found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("artifacts", nargs="+", metavar="ARTIFACT")
    parser.add_argument("--exported", nargs="*", default=[], metavar="CHECKPOINT=ARTIFACT")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--count", type=int, default=500)
    args = parser.parse_args()
    lines = []
    pairs = [(found, found) for found in args.artifacts]
    pairs += [tuple(found.split("=", 1)) for found in args.exported]
    for model, artifact in pairs:
        directory = Path(artifact)
        sources, wanted = expected(Path(model), args.rows, args.count)
        for engine in COMPARED:
            translator = Translator(directory, engine=engine, precision="fp32")
            found = translator.translate(sources, num_beams=1)
            differ = sum(a != b for a, b in zip(found, wanted, strict=True))
            named = f"{engine} {TASK.engine(engine).version()}"
            lines.append([directory.name, named, f"{differ} of {len(wanted)}"])
    titles = ["artifact", "engine", "translations that differ from PyTorch's"]
    note = "Greedy search in float32; translations are compared as text.\n"
    publish("engine-answers", f"{markdown_table(titles, 'llr', lines)}\n\n{note}")


if __name__ == "__main__":
    main()
