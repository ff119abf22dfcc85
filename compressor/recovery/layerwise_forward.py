"""Forward passes in pieces: each resumes where the last one stopped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from compressor.model.modes import fixed_outputs, hooks, is_normalization
from compressor.model.sublayers import Sublayer
from compressor.tasks import Batch, Objective


class _Reached(Exception):
    """Ends a forward pass when the observation is made."""


class LayerwiseForward:
    """A forward pass over all batches in pieces, each resuming where the last one stopped.

    Every finished block of a stack is skipped by returning its cached output, which knows its
    tokens where the model leaves some out. Embeddings, masks and the arguments of each block come
    from the model's own code. It takes memory for one hidden state per token and stack.

    Args:
        model: in evaluation mode.
        batches: on the model's device.
        task: computes logits.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Batch], task: Objective) -> None:
        self.model = model
        self.batches = batches
        self.task = task
        self.normalization = ""  # path of the one at which the last observation was made
        self._returned: dict[str, list[Any]] = {}  # stack -> outputs of its last finished block
        self._finished: list[str] = []

    def observe(self, sublayer: Sublayer, number: int) -> tuple[Tensor, Tensor]:
        """Run one batch up to the output projection of a sublayer.

        The residual stream is observed at the input of the next layer normalization, wherever an
        architecture has it.

        Args:
            sublayer: of the first block that is not finished.
            number: of the batch.

        Returns:
            The projection's input [batch, tokens, columns], and the residual stream with its output
            added [batch, tokens, width]; of the tokens that the block hands on.
        """
        values: dict[str, Tensor] = {}

        def before_projection(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            values["input"] = inputs[0]

        def before_norm(path: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if values:
                values["stream"], self.normalization = inputs[0], path
                raise _Reached

        projection = self.model.get_submodule(sublayer.output)
        norms = ((path, x) for path, x in self.model.named_modules() if is_normalization(x))
        self._run(
            number,
            projection.register_forward_pre_hook(before_projection),
            *(x.register_forward_pre_hook(partial(before_norm, path)) for path, x in norms),
        )
        return values["input"], values["stream"]

    def finish(self, block: str) -> None:
        """Run all batches through a block of a stack; skip it and those before from then on."""
        returned: list[Any] = []

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            returned.append(output)
            raise _Reached

        for number in range(len(self.batches)):
            self._run(number, self.model.get_submodule(block).register_forward_hook(after))
        stack, _, last = block.rpartition(".")
        self._returned[stack] = returned
        self._finished += [
            path
            for path in (f"{stack}.{i}" for i in range(int(last) + 1))
            if path not in self._finished
        ]

    @torch.no_grad()
    def _run(self, number: int, *registered: RemovableHandle) -> None:
        finished = {b: self._returned[b.rpartition(".")[0]][number] for b in self._finished}
        with hooks(registered), fixed_outputs(self.model, finished):
            try:
                self.task.logits(self.model, self.batches[number])
            except _Reached:
                return
        raise RuntimeError("the forward pass did not reach the projection or block to observe")
