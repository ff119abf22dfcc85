"""A decoder of PyTorch for the runtime's search."""

from __future__ import annotations

import numpy as np
import torch
from transformers import EncoderDecoderCache, MarianMTModel


class TorchDecoder:
    """The decoder of a PyTorch model behind the runtime's protocol; counts the rows it runs."""

    def __init__(self, model: MarianMTModel, batch: dict[str, torch.Tensor]) -> None:
        self.model = model
        with torch.no_grad():
            self.hidden = model.get_encoder()(**batch).last_hidden_state
        self.mask = batch["attention_mask"]
        self.cache: EncoderDecoderCache | None = None
        self.row_steps = 0

    @torch.no_grad()
    def step(self, tokens: np.ndarray) -> None:
        self.row_steps += len(tokens)
        output = self.model(
            encoder_outputs=(self.hidden,),
            attention_mask=self.mask,
            decoder_input_ids=torch.tensor(tokens)[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache, self.logits = output.past_key_values, output.logits[:, -1]

    def best(self) -> np.ndarray:
        return self.logits.argmax(-1).numpy()

    def scores(self) -> np.ndarray:
        return self.logits.numpy().copy()

    def top(self, count: int) -> tuple[np.ndarray, np.ndarray] | None:
        return None

    def reorder(self, rows: np.ndarray) -> None:
        assert self.cache is not None
        self.cache.reorder_cache(torch.tensor(rows))

    def keep(self, rows: np.ndarray) -> None:
        self.hidden, self.mask = self.hidden[rows], self.mask[rows]
        self.reorder(rows)
