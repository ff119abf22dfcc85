"""Embedding of texts, compared by the cosine of their vectors.

Calibration rows have no answers. The loss that units are scored by is

    L = sum over rows of <v, e / |e|>,   v ~ N(0, I) for each row, fixed by its number,

the embedding's part in a random direction. The distance to the dense model's embedding has no
gradient at the dense model; the gradients of L have: for a small change of the embedding,
E (dL)^2 = |d(e / |e|)|^2, so the second moments that scores are made of are those of the
Gauss-Newton approximation of that distance (Martens 2010, "Deep learning via Hessian-free
optimization", section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError, UsageError
from compressor.tasks.batching import Example
from compressor.tasks.embedding import rows as embedding_rows
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.ranked import METRICS, require_queries
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.runtime import Embedder
    from compressor.tasks.encoder import Logits

# Of embeddings that count as the same. Rounding to int8 turns MiniLM's to a cosine of 0.99, which
# does not change its Spearman correlation (docs/embedding.md).
_SAME = 0.98


class Embedding(EncoderTask):
    """Embedding of texts; answers to pairs of them are the cosines of their embeddings."""

    name = "embedding"
    auto_class = "AutoModel"
    plain_logits = False
    metrics = ("spearman",)
    ranked_metrics = METRICS
    exporter = "compressor.export.embedding:EmbeddingGraphs"
    runtime = "compressor.runtime:Embedder"
    pipeline_tag = "sentence-similarity"
    usage = 'print(model.embed(["First text.", "Second one."]).shape)'
    answers = f"embeddings (cosine of at least {_SAME})"
    has_answers = False
    joins_pairs = False
    usual_columns = embedding_rows.USUAL_COLUMNS
    learning_rate = 2e-4
    hidden_weight = 0.1

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        return tuple((inputs, outputs) for inputs, outputs in config.get("dense_sizes") or ())

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        """Texts, pairs with a score or queries, see `compressor.tasks.embedding.rows`."""
        return embedding_rows.read(spec, columns, header)

    def require_answers(self, rows: Rows) -> None:
        if rows.pairs is None:
            raise InputError(
                f"{', '.join(rows.files)}: quality is measured on pairs of texts with a score, or "
                "on queries; give a table with the columns sentence1, sentence2 and score, or name "
                f"them with {self.column_options}, or one with the columns query, text and label",
                id="pairs-missing",
            )
        if rows.ranked:
            require_queries(rows)

    def label_values(self, rows: Rows) -> list[int]:
        """The rows' numbers, which their directions are drawn by."""
        return list(range(rows.count))

    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """As in `Task`; of pairs first all first texts, then all second ones."""
        texts = replace(rows, sources=[*rows.sources, *(rows.pairs or ())], pairs=None)
        return super().encode(texts, tokenizer, max_source_tokens)

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """The sum of all rows' parts in their directions."""
        import torch

        found = self.predictions(self.logits(model, batch))
        drawn = [
            torch.randn(found.shape[1], generator=torch.Generator().manual_seed(row))
            for row in batch["labels"].tolist()
        ]
        return (torch.stack(drawn).to(found) * found).sum()

    def predictions(self, logits: Tensor) -> Tensor:
        """The embeddings with an L2 norm of 1."""
        from torch.nn.functional import normalize

        return normalize(logits.float(), dim=-1)

    def divergence(self, found: Tensor, wanted: Tensor) -> Tensor:
        """The sum over rows of 1 minus the cosine, half the squared distance."""
        return (found - wanted).square().sum() / 2

    def answers_of(self, logits: Tensor, model: nn.Module) -> list[str]:
        raise UsageError(
            "a model for embeddings has no answer to a text alone; give pairs of texts with a "
            "score to `compress evaluate`",
            id="task-without-answers",
        )

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        from compressor.runtime.embedder import cosines

        same: list[bool] = (cosines(actual, expected) >= _SAME).tolist()
        return same

    def answer(
        self,
        runtime: Embedder,
        sources: Sequence[str],
        pairs: Sequence[str] | None = None,
        num_beams: int | None = None,
    ) -> list[str]:
        """The cosine of the embeddings of each pair; a text that occurs again is read once."""
        from compressor.runtime.embedder import cosines

        assert pairs is not None  # see `require_answers`
        numbers = {text: i for i, text in enumerate(dict.fromkeys([*sources, *pairs]))}
        vectors = runtime.embed(list(numbers))
        first, second = (vectors[[numbers[text] for text in texts]] for texts in (sources, pairs))
        return [repr(float(value)) for value in cosines(first, second)]


TASK = Embedding()
