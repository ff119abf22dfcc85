"""Tiny sentence encoders, saved as sentence-transformers saves them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as t
from safetensors.torch import save_file
from torch import nn

from compressor.model.checkpoint import Checkpoint
from compressor.tasks import TASKS
from compressor.tasks.rows import Rows
from tests.helpers import toy
from tests.helpers.tiny import tiny_model, word_tokenizer

# The encoders of the tiny classifiers, without their heads.
ENCODERS = {
    "bert": t.BertModel,
    "roberta": t.RobertaModel,
    "distilbert": t.DistilBertModel,
    "electra": t.ElectraModel,
}
WIDTH, DENSE = 32, 12


def tiny_encoder(name: str = "bert", seed: int = 0) -> Any:
    """The encoder of a tiny classifier; its weights have a realistic scale."""
    classifier: Any = tiny_model(name, seed)
    model = ENCODERS[name](classifier.config)
    model.load_state_dict(classifier.base_model.state_dict(), strict=False)
    return model.eval()


def dense_layer(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(WIDTH, DENSE)


def save_encoder(
    directory: Path,
    name: str = "bert",
    pooling: str | Mapping[str, Any] = "mean",
    dense: bool = False,
    normalize: bool = True,
    changes: Mapping[str, Any] | None = None,
    layers: int = 3,
) -> Path:
    """A checkpoint of a tiny encoder.

    Args:
        pooling: a mode, or the whole of the pooling's config.json.
        changes: file -> contents that take the place of what is written; None: it is missing.
        layers: at most 3; of BERT and its relatives alone.
    """
    model = tiny_encoder(name)
    if layers < 3:
        model.encoder.layer = model.encoder.layer[:layers]
        model.config.num_hidden_layers = layers
    model.save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * normalize]
    package = "sentence_transformers.models"
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"{package}.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    settings = (
        {"word_embedding_dimension": WIDTH, "pooling_mode": pooling}
        if isinstance(pooling, str)
        else pooling
    )
    files: dict[str, Any] = {"modules.json": modules, "1_Pooling/config.json": settings}
    if dense:
        layer = dense_layer()
        (directory / "2_Dense").mkdir()
        save_file(
            {"linear.weight": layer.weight.detach(), "linear.bias": layer.bias.detach()},
            directory / "2_Dense" / "model.safetensors",
        )
        files["2_Dense/config.json"] = {
            "in_features": WIDTH, "out_features": DENSE, "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }  # fmt: skip
    for file, contents in (files | dict(changes or {})).items():
        (directory / file).parent.mkdir(exist_ok=True)
        if contents is not None:
            (directory / file).write_text(json.dumps(contents), encoding="utf-8")
    return directory


def rows_of(texts: Sequence[str]) -> Rows:
    """Texts without labels."""
    targets = [""] * len(texts)
    return Rows("embedding", list(texts), None, targets, ["texts"], "none", None)


@torch.no_grad()
def embedded(opened: Checkpoint, texts: Sequence[str] | Rows) -> np.ndarray:
    """Embeddings of texts, and then of the second ones of pairs, as runs of PyTorch make them."""
    task, rows = TASKS["embedding"], texts if isinstance(texts, Rows) else rows_of(texts)
    examples = task.encode(rows, opened.tokenizer, opened.max_source_tokens)
    found: dict[int, np.ndarray] = {}
    for batch in task.batches(examples, opened.model):
        vectors = opened.model(**batch.inputs()).logits.numpy()
        found |= dict(zip(batch.rows, vectors, strict=True))
    return np.array([found[row] for row in sorted(found)])


def write_texts(path: Path, rows: int = 24, seed: int = 0) -> Path:
    """Unlabelled texts, a line each."""
    rng = random.Random(seed)
    path.write_text("".join(f"{toy.sentence(rng)}\n" for _ in range(rows)), encoding="utf-8")
    return path


def write_pairs(path: Path, rows: int = 24, seed: int = 1) -> Path:
    """Pairs of texts with a score of the words that they share, from 0 to 5."""
    rng = random.Random(seed)
    lines = ["sentence1\tsentence2\tscore"]
    for _ in range(rows):
        first, second = toy.sentence(rng), toy.sentence(rng)
        shared = rng.randint(0, 5)
        mixed: Sequence[str] = [*first.split()[:shared], *second.split()]
        lines.append(f"{first}\t{' '.join(mixed)}\t{shared}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
