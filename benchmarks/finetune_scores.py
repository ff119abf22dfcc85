"""Fine-tune the MiniLM-L6 sentence encoder as a regression model and as a reranker.

    python -m benchmarks.finetune_scores regression --data DATA --output OUT
    python -m benchmarks.finetune_scores reranking --data DATA --output OUT

DATA holds sick/train.tsv (pairs of sentences with a score from 1 to 5) and trec-qa/train.tsv
(questions, candidate answers, 1 for a right one). The rows are split in train.tsv and test.tsv in
OUT.work: of SICK the first 1,000 pairs are for testing, of TREC-QA half of the rows, those of a
question together. The same command resumes a stopped training.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.finetune_minilm import BATCH_ROWS, SEED, fetch_encoder, fine_tune
from compressor.evaluation import main_metric
from compressor.tasks import TASKS, split_rows

FILES = {"regression": "sick/train.tsv", "reranking": "trec-qa/train.tsv"}
EPOCHS = {"regression": 2, "reranking": 2}
PEAK_LR = 1e-4
TEST_ROWS = 1000
MOST_TOKENS = 128


def split(name: str, data: Path, work: Path) -> tuple[Path, Path]:
    """Write the rows to train on and those to test on; returns the two files."""
    with (data / FILES[name]).open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    if name == "regression":
        test, train = rows[:TEST_ROWS], rows[TEST_ROWS:]
    else:
        _, held = split_rows(TASKS[name].read_rows(data / FILES[name]), SEED)
        queries = set(held.sources)
        train = [row for row in rows if row[0] not in queries]
        test = [row for row in rows if row[0] in queries]
    return _write(work / "train.tsv", header, train), _write(work / "test.tsv", header, test)


def _write(path: Path, header: list[str], rows: Iterable[list[str]]) -> Path:
    lines = ["\t".join(row) for row in (header, *rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=FILES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--split", action="store_true", help="only write the rows")
    args = parser.parse_args()
    if (args.output / "config.json").exists():
        print(f"{args.output} is finished")
        return
    work = args.output.with_name(args.output.name + ".work")
    work.mkdir(parents=True, exist_ok=True)
    task = TASKS[args.task]
    paths = split(args.task, args.data, work)
    if args.split:
        return
    train, test = (task.read_rows(path) for path in paths)
    encoder = fetch_encoder(work)
    tokenizer = AutoTokenizer.from_pretrained(encoder, model_max_length=MOST_TOKENS)
    torch.manual_seed(SEED)
    model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=1)
    numbers = torch.tensor([float(target) for target in train.targets])
    if args.task == "regression":
        torch.nn.init.constant_(model.classifier.bias, float(numbers.mean()))
    batches, held = (
        task.batches(
            task.encode(rows, tokenizer, MOST_TOKENS), model, batch_tokens=None,
            batch_size=BATCH_ROWS,
        )
        for rows in (train, test)
    )  # fmt: skip

    def validate() -> str:
        model.eval()
        answers = {
            row: answer
            for batch in held
            for row, answer in zip(batch.rows, task.predict(model, batch, tokenizer), strict=True)
        }
        value, _ = main_metric(test, [answers[row] for row in range(test.count)])
        return f"test {task.main_metric} {value:.2f}"

    fine_tune(
        task, model, batches, validate, work / "state.pt", EPOCHS[args.task], PEAK_LR
    )  # fmt: skip
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()
