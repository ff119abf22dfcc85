"""Embedding of texts as vectors, which are compared by the cosine or as the model says.

Calibration rows have no answers. The loss that units are scored by is

    L = sum over rows of <v, e / |e|>,   v ~ N(0, I) for each row, fixed by its number,

the embedding's part in a random direction. Where lengths count, because embeddings are not compared
by the cosine, |e| is taken for a constant. The distance to the dense model's embedding has no
gradient at the dense model; the gradients of L have: for a small change of the embedding,
E (dL)^2 = |d(e / |e|)|^2, so the second moments that scores are made of are those of the
Gauss-Newton approximation of that distance (Martens 2010, "Deep learning via Hessian-free
optimization", section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError, UsageError
from compressor.tasks.batching import Example
from compressor.tasks.embedding import rows as embedding_rows
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.ranked import METRICS, require_queries
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts, Texts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.runtime import Embedder
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

# Half the squared distance over the squared length of embeddings that count as the same; of those
# of length 1 it is 1 minus their cosine. Rounding to int8 turns MiniLM's to a cosine of 0.99, which
# does not change its Spearman correlation (docs/embedding.md).
_SAME = 0.02
_LEAST = 1e-24  # squared length of a vector of zeros
_RANKED_PROMPTS = ("query", "document")  # as `encode_query` and `encode_document` take them


class Embedding(EncoderTask):
    """Embedding of texts; answers to pairs of them tell how similar their embeddings are."""

    name = "embedding"
    auto_class = "AutoModel"
    plain_logits = False
    metrics = ("spearman",)
    ranked_metrics = METRICS
    exporter = "compressor.export.encoder_heads:EmbeddingGraphs"
    runtime = "compressor.runtime:Embedder"
    pipeline_tag = "sentence-similarity"
    usage = 'print(model.embed(["First text.", "Second one."]).shape)'
    answers = f"embeddings (within {(2 * _SAME) ** 0.5:.0%} of their length)"
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
        from compressor.model.sentence_texts import prompts_of

        prompts = prompts_of(tokenizer)
        first = second = prompts.default
        if rows.ranked:
            first, second = (prompts.named.get(name, "") for name in _RANKED_PROMPTS)
        begun = [f"{first}{text}" for text in rows.sources]
        begun += [f"{second}{text}" for text in rows.pairs or ()]
        texts = replace(rows, sources=begun, pairs=None)
        return super().encode(texts, tokenizer, max_source_tokens)

    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """The embeddings, [batch, width]; of length 1 where they are compared by the cosine."""
        from torch.nn.functional import normalize

        found = super().logits(model, batch)
        return normalize(found.float(), dim=-1) if _by_cosine(model) else found

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """The sum of all rows' parts in their directions."""
        import torch

        found = self.predictions(self.logits(model, batch))
        if not _by_cosine(model):
            found = found / found.detach().square().sum(-1, keepdim=True).clamp_min(_LEAST).sqrt()
        drawn = [
            torch.randn(found.shape[1], generator=torch.Generator().manual_seed(row))
            for row in batch["labels"].tolist()
        ]
        return (torch.stack(drawn).to(found) * found).sum()

    def predictions(self, logits: Tensor) -> Tensor:
        """The embeddings."""
        return logits.float()

    def divergence(self, found: Tensor, wanted: Tensor) -> Tensor:
        """The sum over rows of half the squared distance over the wanted one's squared length.

        Of embeddings of length 1 that is 1 minus the cosine.
        """
        far, length = (found - wanted).square().sum(-1), wanted.square().sum(-1)
        return (far / length.clamp_min(_LEAST)).sum() / 2

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        raise UsageError(
            "a model for embeddings has no answer to a text alone; give pairs of texts with a "
            "score to `compress evaluate`",
            id="task-without-answers",
        )

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        far, length = ((actual - expected) ** 2).sum(-1), (expected**2).sum(-1)
        same: list[bool] = (far <= 2 * _SAME * length).tolist()
        return same

    def answer_settings(self, rows: Rows) -> Mapping[str, Any]:
        return {"prompts": _RANKED_PROMPTS} if rows.ranked else {}

    def answer(
        self,
        runtime: Embedder,
        sources: Texts,
        pairs: Texts | None = None,
        *,
        num_beams: int | None = None,
        prompts: tuple[str | None, str | None] = (None, None),
    ) -> list[str]:
        """How similar the embeddings of each pair are; a text that occurs again is read once.

        Args:
            prompts: names of those of the first and of the second texts; None: the default one.
        """
        assert pairs is not None  # see `require_answers`
        sides = []
        for prompt, texts in zip(prompts, (sources, pairs), strict=True):
            numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
            vectors = runtime.with_prompt(prompt).embed(list(numbers))
            sides.append(vectors[[numbers[text] for text in texts]])
        return [repr(float(value)) for value in runtime.compare(*sides)]


def _by_cosine(model: nn.Module) -> bool:
    from compressor.model.sentence_head import head_of

    return head_of(model).layout.settings.similarity == "cosine"


TASK = Embedding()
