"""What tasks share whose models give each row one number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import LabelNames, Texts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.runtime.encoder import EncoderRuntime
    from compressor.tasks.batching import Tensors


class ScoreTask(EncoderTask):
    """One number for each text or pair; distillation matches the dense model's numbers."""

    def scores(self, logits: Any) -> Any:
        """The number of each row, [rows, outputs] -> [rows]; of a tensor or of an array."""
        return logits[:, 0]

    def blank_answer(self, labels: LabelNames) -> str:
        return "0"

    def predictions(self, logits: Tensor) -> Tensor:
        """The numbers, [rows, 1] float32."""
        numbers: Tensor = self.scores(logits).float()
        return numbers[:, None]

    def divergence(self, found: Tensor, wanted: Tensor) -> Tensor:
        """Half the squared difference, summed over rows."""
        return (found - wanted).square().sum() / 2

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        return [repr(x) for x in self.scores(logits).tolist()]

    def answer(
        self, runtime: EncoderRuntime[Any], sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        """The numbers."""
        return [repr(x) for x in self.scores(runtime.logits(sources, pairs)).tolist()]
