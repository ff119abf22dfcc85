"""Peak memory of reading data files, beside how many lines they have.

    python -m benchmarks.text_memory --work DIR [--lines 10000 1000000 10000000]

Rows: 1,000 calibration rows are read from a table, and encoded. Text: a file for `--distill-text`
is opened, unpacked if it is packed, and an epoch over it is begun and, as after a stop, taken up in
its middle, for 16 windows of 4,096 lines each. Plain, packed by gzip and by Zstandard (the program
zstd), and as JSONL. Each number is what a process of its own takes at most, in addition to what it
has with all libraries loaded. The lines are made up, and removed at the end. Linux alone.
Results: benchmarks/results/text-memory.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.pages import markdown_table, publish

FORMATS = {"plain": "", "gzip": ".gz", "Zstandard": ".zst", "JSONL": ".jsonl"}
WORDS, WORDS_PER_LINE = 5000, 8
DIFFERENT = 50_000  # lines; each is numbered as well
ROWS, WINDOWS = 1000, 16
PROCESSES = {"1,000 rows": "rows", "text": "text"}


def lines(count: int) -> Iterator[str]:
    """Made-up sentences."""
    rng = random.Random(0)
    words = [f"w{number}" for number in range(WORDS)]
    pool = [" ".join(rng.choices(words, k=WORDS_PER_LINE)) for _ in range(DIFFERENT)]
    return (f"{number} {pool[number % DIFFERENT]}" for number in range(count))


def write(directory: Path, what: str, count: int) -> dict[str, Path]:
    """Format -> a file with the same rows, or texts."""
    rows = what == "rows"
    plain = directory / f"{what}-{count}.{'tsv' if rows else 'txt'}"
    objects = plain.with_suffix(".jsonl")
    with plain.open("w", encoding="utf-8") as table, objects.open("w", encoding="utf-8") as file:
        if rows:
            table.write("text\tlabel\n")
        for number, line in enumerate(lines(count)):
            label = f"LABEL_{number % 2}"
            table.write(f"{line}\t{label}\n" if rows else f"{line}\n")
            file.write(f"{json.dumps({'text': line} | ({'label': label} if rows else {}))}\n")
    files = {name: plain.with_name(f"{plain.name}{suffix}") for name, suffix in FORMATS.items()}
    with plain.open("rb") as file, gzip.open(files["gzip"], "wb", compresslevel=1) as packed:
        shutil.copyfileobj(file, packed)
    subprocess.run(["zstd", "-q", "-1", "-f", plain, "-o", files["Zstandard"]], check=True)
    return files | {"JSONL": objects}


def peak_mib(what: str, path: Path) -> float:
    """What a process takes at most to read a file, in addition to its libraries."""
    command = [sys.executable, "-m", "benchmarks.text_memory", "--read", what, str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def read(what: str, path: Path) -> None:
    """Read a file, and print what that takes at most in addition."""
    from compressor.tasks import TASKS
    from compressor.throughput.memory_process import host_peak_mib

    task, tokenizer, model = TASKS["classification"], _tokenizer(), _model()
    task.batches(task.encode(_one_row(), tokenizer, 64), model)  # what is made once, is made
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again, at what is there now
    before = host_peak_mib()
    if what == "rows":
        rows = task.read_rows(path, labels=["LABEL_0", "LABEL_1"], limit=ROWS)
        assert len(task.encode(rows, tokenizer, 64)) == ROWS
    else:
        _read_text(path, task, tokenizer, model)
    after = host_peak_mib()
    assert before is not None
    assert after is not None
    print(after - before)


def _read_text(path: Path, task: Any, tokenizer: Any, model: Any) -> None:
    from compressor.tasks.texts import columns_of
    from compressor.training.data import WINDOW_ROWS, Batches, TrainingRows
    from compressor.training.text import Text, TextLines

    text = Text(
        TextLines(path, columns=columns_of(task, task.inputs[:1], {})), task, tokenizer, 64,
        ["LABEL_0", "LABEL_1"],
    )  # fmt: skip
    if text.lines.is_packed:
        stored = path.with_name(f"{path.name}.unpacked")
        text.lines.unpack(stored, lambda done, total: None)
        text = text.unpacked(stored)
    batches = Batches(TrainingRows([], task, model, stored=text), 32, seed=0)
    for skip in (0, len(batches) // 2):
        for _ in islice(batches.of_epoch(0, skip), WINDOWS * WINDOW_ROWS // 32):
            pass


def _one_row() -> Any:
    from compressor.tasks import Rows

    return Rows("classification", ["w1"], None, ["A"], [], "", ["A", "B"])


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<pad>", "<unk>"])}
    words |= {f"w{number}": number + 2 for number in range(WORDS)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>")


def _model() -> Any:
    """It tells the padding, and is not run."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=8, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--lines", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read is not None:
        read(args.read[0], Path(args.read[1]))
        return
    table = []
    for title, what in PROCESSES.items():
        for count in args.lines:
            with tempfile.TemporaryDirectory(dir=args.work) as directory:
                files = write(Path(directory), what, count)
                sizes = f"{files['plain'].stat().st_size / 1e6:.0f}"
                found = [f"{peak_mib(what, files[name]):.1f}" for name in FORMATS]
            table.append([title, f"{count:,}", sizes, *found])
            print(table[-1], file=sys.stderr, flush=True)
    titles = ["read", "lines", "plain file, MB", *(f"{name}, MiB" for name in FORMATS)]
    publish("text-memory", markdown_table(titles, "lr", table) + "\n")


if __name__ == "__main__":
    main()
