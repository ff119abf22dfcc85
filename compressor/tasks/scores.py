"""What tasks share whose models give each row a number, or rank texts for a query."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

from compressor.errors import CompressWarning, InputError
from compressor.tasks.cells import label_cell
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import LabelNames, Rows, Texts
from compressor.tasks.tables import Record, shortened

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.runtime.runtime import EncoderRuntime
    from compressor.tasks.batching import Tensors

# Columns of texts, or pairs of them, with a number.
NUMBER_COLUMNS = {
    "text_column": ("sentence1", "text1", "text", "sentence"),
    "text_pair_column": ("sentence2", "text2"),
    "label_column": ("score", "label", "similarity"),
}
# Of ranked rows, see `Rows.ranked`: option -> the default column, and the metrics.
RANKED_COLUMNS = {"text_column": "query", "text_pair_column": "text", "label_column": "label"}
RANKED_METRICS = ("ndcg@10", "mrr@10", "map")
_WHOLE = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


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

    def divergence(self, actual: Tensor, dense: Tensor) -> Tensor:
        """Half the squared difference, summed over rows."""
        return (actual - dense).square().sum() / 2

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        return [repr(x) for x in self.scores(logits).tolist()]

    def answer(
        self, runtime: EncoderRuntime[Any], sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return [repr(x) for x in self.scores(runtime.logits(sources, pairs)).tolist()]


def relevance_cell(record: Record, column: str) -> str:
    """A cell with the relevance of a text: a whole number, 0 for not at all."""
    cell = label_cell(record, column)
    if not _WHOLE.fullmatch(cell):
        raise InputError(
            f"{record.where}: the relevance {shortened(cell, 40)!r} is not a whole number; write 0 "
            "for a text that is not relevant and 1 for one that is, or grades",
            id="relevance-not-whole",
        )
    return cell


def require_queries(rows: Rows) -> None:
    """Check that two queries or more have a relevant text, and warn of those that have none."""
    judged, _ = rows.counted
    queries = len(set(rows.sources))
    files = ", ".join(rows.files)
    if judged < 2:
        raise InputError(
            f"{files}: {judged} of {queries} queries have a relevant text, and quality is a mean "
            "over these; give rows of 2 or more",
            id="too-few-queries",
        )
    if judged < queries:
        warnings.warn(
            f"{files}: {queries - judged} of {queries} queries have no relevant text and are left "
            "out of the metrics",
            CompressWarning,
            stacklevel=2,
        )
