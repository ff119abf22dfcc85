"""Tiny models with one output, or two classes, and rows for regression and reranking."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from compressor.model.architectures import architecture
from tests.helpers import toy
from tests.helpers.tiny import tiny_model, word_tokenizer


def save_scorer(directory: Path, outputs: int = 1, name: str = "bert") -> Path:
    """A tiny classifier with so many outputs, weights of realistic scale."""
    base: Any = tiny_model(name)
    base.config.num_labels = outputs
    torch.manual_seed(0)
    model = type(base)(base.config)
    kept = {k: v for k, v in base.state_dict().items() if v.shape == model.state_dict()[k].shape}
    model.load_state_dict(kept, strict=False)
    with torch.no_grad():
        model.classifier.weight.normal_(0, 0.5)
    model.save_pretrained(directory)
    word_tokenizer("token_type_ids" in architecture(name).inputs).save_pretrained(directory)
    return directory


def write_scores(path: Path, rows: int = 24, seed: int = 0) -> Path:
    """Pairs of texts with a number."""
    rng = random.Random(seed)
    lines = ["sentence1\tsentence2\tscore"]
    for _ in range(rows):
        lines.append(f"{toy.sentence(rng)}\t{toy.sentence(rng)}\t{rng.gauss(0, 1):.3f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_queries(path: Path, queries: int = 10, seed: int = 0) -> Path:
    """Queries with three to six texts each, in no order; the last query has no relevant one."""
    rng = random.Random(seed)
    lines = []
    for number in range(queries):
        query = f"{toy.sentence(rng)} w{3 + number}"
        for text in range(rng.randint(3, 6)):
            grade = 0 if number == queries - 1 else rng.choice([0, 1, 2]) if text else 1
            lines.append(f"{query}\t{toy.sentence(rng)}\t{grade}")
    rng.shuffle(lines)
    path.write_text("\n".join(["query\ttext\tlabel", *lines]) + "\n", encoding="utf-8")
    return path
