"""`logits` of models that answer questions, which transformers gives as two outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def add_logits(model: nn.Module) -> None:
    """Add `logits` [batch, tokens, 2] to the output, in place: of starts and of ends of answers."""
    model.register_forward_hook(_with_logits)


def _with_logits(model: nn.Module, inputs: Any, output: Any) -> Any:
    output["logits"] = torch.stack([output.start_logits, output.end_logits], -1)
    return output
