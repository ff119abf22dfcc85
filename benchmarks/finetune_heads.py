"""Fine-tune the MiniLM-L6 sentence encoder to tag words, or to answer questions.

    python -m benchmarks.finetune_heads --task token-classification --train TRAIN --output OUT
    python -m benchmarks.finetune_heads --task question-answering --train xquad.en.json \
        --hold-out 4 --batch-rows 8 --rate 2e-4 --output OUT

The encoder is that of `benchmarks.finetune_minilm`, and so is the schedule. It takes some minutes
of one core; one seed. With --hold-out N every Nth article of a file of questions is left out, and
written to OUT.work/test.json, the others to OUT.work/train.json. Nothing is chosen by looking at
other rows than those.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer

from benchmarks.finetune_minilm import BATCH_ROWS, SEED, fetch_encoder, fine_tune
from compressor.model.architecture import READER
from compressor.model.span_logits import add_logits
from compressor.tasks import TASKS

POSITIONS = 512  # of the encoder; as a sentence encoder it was trained on 128 and reads no more


def configured(rows: Any) -> dict[str, Any]:
    """What the model's configuration says of the labels of some rows."""
    labels = sorted({label for target in rows.targets for label in target.split()})
    ids = {name: number for number, name in enumerate(labels)}
    return {"num_labels": len(labels), "id2label": dict(enumerate(labels)), "label2id": ids}


def split_articles(path: Path, every: int, work: Path) -> Path:
    """Write articles to train on, and every so many-th one to test on; the file of the first."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    parts: dict[str, list[Any]] = {"train": [], "test": []}
    for number, article in enumerate(articles):
        parts["train" if number % every else "test"].append(article)
    for name, part in parts.items():
        (work / f"{name}.json").write_text(json.dumps({"data": part}), encoding="utf-8")
    return work / "train.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", required=True)
    parser.add_argument("--train", type=Path, required=True, help="rows of the task")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--hold-out", type=int, help="of questions: keep every Nth article")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS)
    parser.add_argument("--rate", type=float, default=3e-4, help="peak of the learning rate")
    args = parser.parse_args()
    task = TASKS[args.task]
    work = args.output.with_name(args.output.name + ".work")
    encoder = fetch_encoder(work)
    train = args.train if args.hold_out is None else split_articles(args.train, args.hold_out, work)
    tokenizer = AutoTokenizer.from_pretrained(encoder, model_max_length=POSITIONS)
    rows = task.read_rows(train)
    settings = configured(rows) if task.name == "token-classification" else {"num_labels": 2}
    torch.manual_seed(SEED)
    model = getattr(transformers, task.auto_class).from_pretrained(encoder, **settings)
    if task.auto_class == READER:
        add_logits(model)
    if "id2label" in settings:
        rows = task.read_rows(train, labels=task.label_names(model.config))
    examples = task.encode(rows, tokenizer, POSITIONS)
    batches = task.batches(examples, model, batch_tokens=None, batch_size=args.batch_rows)
    began = time.process_time()
    fine_tune(
        task, model, batches,
        lambda: f"{time.process_time() - began:.0f} s of CPU time",
        work / "state.pt", args.epochs, args.rate,
    )  # fmt: skip
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()
