"""Fine-tune the MiniLM-L6 sentence encoder to tag words, or to answer questions.

    python -m benchmarks.finetune_heads --task token-classification --train TRAIN --output OUT

The encoder is that of `benchmarks.finetune_minilm`; so are the schedule and the batches of 32 rows.
It takes some minutes of one core; one seed. Nothing is chosen by looking at other rows than those.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer

from benchmarks.finetune_minilm import BATCH_ROWS, SEED, fetch_encoder, train_epoch
from compressor.tasks import TASKS

POSITIONS = 512  # of the encoder; as a sentence encoder it was trained on 128 and reads no more


def configured(rows: Any) -> dict[str, Any]:
    """What the model's configuration says of the labels of some rows."""
    labels = sorted({label for target in rows.targets for label in target.split()})
    ids = {name: number for number, name in enumerate(labels)}
    return {"num_labels": len(labels), "id2label": dict(enumerate(labels)), "label2id": ids}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", required=True)
    parser.add_argument("--train", type=Path, required=True, help="rows of the task")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=3e-4, help="peak of the learning rate")
    args = parser.parse_args()
    task = TASKS[args.task]
    encoder = fetch_encoder(args.output.with_name(args.output.name + ".work"))
    tokenizer = AutoTokenizer.from_pretrained(encoder, model_max_length=POSITIONS)
    rows = task.read_rows(args.train)
    settings = configured(rows) if task.name == "token-classification" else {"num_labels": 2}
    torch.manual_seed(SEED)
    model = getattr(transformers, task.auto_class).from_pretrained(encoder, **settings)
    if "id2label" in settings:
        rows = task.read_rows(args.train, labels=task.label_names(model.config))
    examples = task.encode(rows, tokenizer, POSITIONS)
    batches = task.batches(examples, model, batch_tokens=None, batch_size=BATCH_ROWS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.01, fused=True)
    began = time.process_time()
    for epoch in range(args.epochs):
        loss = train_epoch(model, batches, optimizer, epoch, task, args.epochs, args.rate)
        spent = time.process_time() - began
        print(f"epoch {epoch + 1}: loss {loss:.3f}, {spent:.0f} s of CPU time", flush=True)
    model.eval().save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()
