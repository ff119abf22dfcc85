"""Embedding of texts as vectors, which are compared by the cosine or as the model says.

Rows to calibrate on are texts without answers; those to measure on are pairs with a score, or
queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.storage.text_files import format_suffix
from compressor.tasks.batching import Example
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts, Texts
from compressor.tasks.scores import NUMBER_COLUMNS, RANKED_COLUMNS, RANKED_METRICS, require_queries
from compressor.tasks.tables import Record, filled_lines, read_table, require_columns, usual_column

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
    """Embedding of texts; the answer to a pair is how similar its embeddings are."""

    name = "embedding"
    auto_class = "AutoModel"
    plain_logits = False
    metrics = ("spearman",)
    ranked_metrics = RANKED_METRICS
    exporter = "compressor.export.encoder:EmbeddingGraphs"
    runtime = "compressor.runtime:Embedder"
    pipeline_tag = "sentence-similarity"
    usage = 'print(model.embed(["First text.", "Second one."]).shape)'
    answers = f"embeddings (within {(2 * _SAME) ** 0.5:.0%} of their length)"
    has_answers = False
    joins_pairs = False
    usual_columns = NUMBER_COLUMNS
    learning_rate = 2e-4
    hidden_weight = 0.1

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        return tuple((inputs, outputs) for inputs, outputs in config.get("dense_sizes") or ())

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        """Pairs with scores, queries, or texts alone: a column of a table, or lines.

        One set of options names the columns of all files, and only test files need pairs: a table
        without the columns of the second text and of the score contains texts. One with the columns
        query, text and label, none of which an option names, contains queries with texts to find.
        """
        if format_suffix(spec) == ".txt":
            return RowTexts([spec], ((line, None, "") for line in filled_lines(spec)))
        table = read_table(spec, header)
        if {*RANKED_COLUMNS.values()} <= {*table.columns} - {*columns.values()}:
            query, answer, label = RANKED_COLUMNS.values()
            return table.texts(query, answer, label, Record.relevance, ranked=True)
        text, pair, score = (
            columns.get(option) or usual_column(table, names)
            for option, names in NUMBER_COLUMNS.items()
        )
        text = text or (*table.columns, "text")[0]
        require_columns(table, [text])
        if pair is not None and score is not None and {pair, score} <= {*table.columns}:
            return table.texts(text, pair, score, Record.number)
        return RowTexts([spec], ((row.text(text), None, "") for row in table.records))

    def require_answers(self, rows: Rows) -> None:
        if rows.pairs is None:
            raise InputError(
                f"{', '.join(rows.files)}: quality is measured on pairs of texts with a score, or "
                "on queries; give a table with the columns sentence1, sentence2 and score (or name "
                "yours with --text-column and the like), or one with query, text and label",
                id="pairs-missing",
            )
        if rows.ranked:
            require_queries(rows)

    def label_values(self, rows: Rows) -> list[int]:
        """The rows' numbers, which their directions are drawn by."""
        return list(range(rows.count))

    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """As in `Task`; of pairs first all first texts, then all second ones."""
        from compressor.model.tokenizer import sentence_settings_of

        settings = sentence_settings_of(tokenizer)
        first = second = settings.default_prompt
        if rows.ranked:
            first, second = (settings.prompts.get(name, "") for name in _RANKED_PROMPTS)
        texts = [f"{first}{text}" for text in rows.sources]
        texts += [f"{second}{text}" for text in rows.pairs or ()]
        return super().encode(
            replace(rows, sources=texts, pairs=None), tokenizer, max_source_tokens
        )

    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """The embeddings, [batch, width]; of length 1 where they are compared by the cosine."""
        from torch.nn.functional import normalize

        embeddings = super().logits(model, batch)
        return normalize(embeddings.float(), dim=-1) if _by_cosine(model) else embeddings

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """The sum of <v, e / |e|> over rows, the parts of their embeddings in random directions.

        v ~ N(0, I) is fixed by a row's number. Where embeddings are not compared by the cosine, |e|
        is taken for a constant. The distance to the dense model's embedding has no gradient at the
        dense model; this has: for a small change of the embedding E (dL)^2 = |d(e / |e|)|^2, so the
        second moments that scores are made of are those of the Gauss-Newton approximation of that
        distance (Martens 2010, "Deep learning via Hessian-free optimization", section 4.2).
        """
        import torch

        vectors = self.predictions(self.logits(model, batch))
        if not _by_cosine(model):
            lengths = vectors.detach().square().sum(-1, keepdim=True).clamp_min(_LEAST).sqrt()
            vectors = vectors / lengths
        directions = [
            torch.randn(vectors.shape[1], generator=torch.Generator().manual_seed(row))
            for row in batch["labels"].tolist()
        ]
        return (torch.stack(directions).to(vectors) * vectors).sum()

    def predictions(self, logits: Tensor) -> Tensor:
        """The embeddings."""
        return logits.float()

    def divergence(self, actual: Tensor, dense: Tensor) -> Tensor:
        """Half the squared distance over the dense one's squared length: 1 - cosine at length 1."""
        distance, length = (actual - dense).square().sum(-1), dense.square().sum(-1)
        return (distance / length.clamp_min(_LEAST)).sum() / 2

    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        distance, length = ((actual - expected) ** 2).sum(-1), (expected**2).sum(-1)
        return (distance <= 2 * _SAME * length).tolist()

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

        `prompts` are names of those of the first and of the second texts; None: the default one.
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

    return head_of(model).settings.similarity == "cosine"


EMBEDDING = Embedding()
