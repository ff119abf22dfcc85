"""The tiny encoders with the heads of other tasks than the classification of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from compressor.model.architectures import READER, TOKEN_CLASSIFIER
from tests.helpers.tiny import BUILDERS, TRANSLATORS, tiny_model, word_tokenizer

ENCODERS = tuple(name for name in BUILDERS if name not in TRANSLATORS)
HEADS = {"token-classification": TOKEN_CLASSIFIER, "question-answering": READER}


def tiny_head(name: str, task: str, seed: int = 0, **config: Any) -> Any:
    """A tiny encoder with the head for a task; its weights have a realistic scale.

    Args:
        config: what differs in its configuration.
    """
    classifier: Any = tiny_model(name, seed)
    if task == "question-answering":
        classifier.config.num_labels = 2  # a start and an end
    classifier.config.update(config)
    model = getattr(transformers, HEADS[task]).from_config(classifier.config)
    model.base_model.load_state_dict(classifier.base_model.state_dict(), strict=False)
    torch.manual_seed(seed)
    for module in model.children():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 1.5 / module.in_features**0.5)
    return model.eval()


def save_head(directory: Path, name: str, task: str, **config: Any) -> Path:
    """A checkpoint of such a model, whose tokens are the words w3 … w59."""
    tiny_head(name, task, **config).save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return directory
