"""Train the bundled intent classifier from scratch: a BERT of six layers and its vocabulary.

    python examples/help_desk/generate.py --output DIR
    python examples/help_desk/train.py --data DIR --output OUT

The vocabulary comes from the training rows alone; the weights are written in half precision. The
same seed on the same processor and versions of packages gives the same weights.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

Row = tuple[str, str]  # text, intent

VOCABULARY = 1_200
WIDTH = 224  # seven heads of 32; more than the task needs, as people's models have
LAYERS = 6
TOKENS = 64
STEPS = 1_600
WARMUP = 160
ROWS = 64  # of a step
RATE = 8e-4
DROPPED = 0.1  # words replaced by [MASK], so that no word alone decides
SMOOTHING = 0.1
SEED = 7


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of `generate.py`."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [(text, label) for text, _, label in (line.partition("\t") for line in lines)]


def train_tokenizer(texts: list[str], output: Path) -> BertTokenizerFast:
    """A lower-casing WordPiece tokenizer, whose files are written."""
    pieces = BertWordPieceTokenizer(lowercase=True)
    pieces.train_from_iterator(texts, vocab_size=VOCABULARY, min_frequency=2, show_progress=False)
    pieces.save_model(str(output))
    tokenizer = BertTokenizerFast(vocab=str(output / "vocab.txt"), model_max_length=TOKENS)
    tokenizer.save_pretrained(output)
    return tokenizer


def new_model(tokens: int, intents: list[str]) -> BertForSequenceClassification:
    """The model before training."""
    config = BertConfig(
        vocab_size=tokens,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=WIDTH // 32,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=TOKENS,
        num_labels=len(intents),
        id2label=dict(enumerate(intents)),
        label2id={intent: number for number, intent in enumerate(intents)},
    )
    return BertForSequenceClassification(config)


def rate_at(step: int) -> float:
    """The share of the learning rate: a linear warm-up, then half a cosine to zero."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def drop_words(ids: Tensor, tokenizer: BertTokenizerFast) -> Tensor:
    """Replace some tokens by [MASK], [rows, tokens]."""
    dropped = (torch.rand(ids.shape) < DROPPED) & (ids > max(tokenizer.all_special_ids))
    return torch.where(dropped, tokenizer.mask_token_id, ids)


@torch.inference_mode()
def accuracy(
    model: BertForSequenceClassification, tokenizer: BertTokenizerFast, rows: list[Row]
) -> float:
    """The share of rows whose intent the model finds."""
    model.eval()
    right = 0
    for start in range(0, len(rows), 100):
        texts, labels = zip(*rows[start : start + 100], strict=True)
        found = model(**tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt"))
        names = [model.config.id2label[int(number)] for number in found.logits.argmax(-1)]
        right += sum(name == label for name, label in zip(names, labels, strict=True))
    return right / len(rows)


def train(data: Path, output: Path) -> None:
    """Train on `train.tsv`, and write the checkpoint."""
    torch.manual_seed(SEED)
    draw = random.Random(SEED)
    output.mkdir(parents=True, exist_ok=True)
    rows = read_rows(data / "train.tsv")
    tokenizer = train_tokenizer([text for text, _ in rows], output)
    model = new_model(len(tokenizer), sorted({label for _, label in rows}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)
    began = time.monotonic()
    for step in range(1, STEPS + 1):
        model.train()
        texts, labels = zip(*draw.sample(rows, ROWS), strict=True)
        batch = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        batch["input_ids"] = drop_words(batch["input_ids"], tokenizer)
        targets = torch.tensor([model.config.label2id[label] for label in labels])
        loss = cross_entropy(model(**batch).logits, targets, label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            seconds = time.monotonic() - began
            print(f"step {step}: loss {loss.item():.3f}, {seconds:.0f} s", flush=True)
    for name in ("valid", "test"):
        print(f"{name}: {accuracy(model, tokenizer, read_rows(data / f'{name}.tsv')):.4f}")
    model.half().save_pretrained(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="directory of generate.py")
    parser.add_argument("--output", type=Path, required=True, help="directory of the checkpoint")
    args = parser.parse_args()
    train(args.data, args.output)


if __name__ == "__main__":
    main()
