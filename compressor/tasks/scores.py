"""Tasks whose answers are numbers: regression, reranking of texts for a query, and embedding.

A model for reranking has one output, the logit of "relevant", or two classes of which the second is
"relevant"; the score is then the difference of their logits, the logit of the second's probability.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from compressor.errors import CompressWarning, InputError
from compressor.model.sentence_settings import SIGMOID, activation_of
from compressor.runtime.cross_encoder import probabilities, relevance
from compressor.storage.text_files import format_suffix
from compressor.tasks.base import at_least_float32
from compressor.tasks.batching import Example
from compressor.tasks.columns import LABEL, PAIR, RELEVANCES, SCORES, TEXT, labelled, ranked
from compressor.tasks.encoder import AnswerTask, EncoderTask
from compressor.tasks.rows import LabelNames, Reading, Rows, RowTexts, Texts
from compressor.tasks.tables import Record, filled_lines, quoted, read_table
from compressor.tasks.tried import MINILM, FirstRuns, Tried

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime import Embedder
    from compressor.runtime.runtime import EncoderRuntime
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

RANKED_METRICS = ("ndcg@10", "mrr@10", "map")
# Numbers that differ by less, in shares of the largest of a batch, count as the same; so do texts
# whose probabilities of being relevant differ by less.
_SAME = 0.05
# Half the squared distance over the squared length of embeddings that count as the same; of those
# of length 1 it is 1 minus their cosine. Rounding to int8 turns MiniLM's to a cosine of 0.99, which
# does not change its Spearman correlation (docs/embedding.md).
_SAME_EMBEDDING = 0.02
_LEAST = 1e-24  # squared length of a vector of zeros
_RANKED_PROMPTS = ("query", "document")  # as `encode_query` and `encode_document` take them


class ScoreTask(AnswerTask):
    """One number for each text or pair; distillation matches the dense model's numbers."""

    @override
    def require(self, checkpoint: Checkpoint) -> None:
        activation_of(checkpoint.model.config)  # raises if it is unknown

    def scores(self, logits: Any) -> Any:
        """Take the number of each row of a tensor or an array, [rows, outputs] -> [rows]."""
        return logits[:, 0]

    @override
    def blank_answer(self, labels: LabelNames) -> str:
        return "0"

    @override
    def predictions(self, logits: Tensor) -> Tensor:
        """Take the numbers, [rows, 1], float32 or wider."""
        return at_least_float32(self.scores(logits))[:, None]

    @override
    def divergence(self, actual: Tensor, dense: Tensor) -> Tensor:
        """Compute half the squared difference, summed over rows."""
        return (actual - dense).square().sum() / 2


class Regression(ScoreTask):
    """A number for each text, or for a pair that is read as one text."""

    name = "regression"
    first_runs = FirstRuns(
        Tried(0.5, "Spearman", -0.31, (-1.08, 0.46), MINILM, "MiniLM-L6 and pairs of sentences")
    )
    metrics = ("spearman", "pearson")
    labels = SCORES
    exporter = "compressor.export.encoder:RegressionGraphs"
    runtime = "compressor.runtime:Regressor"
    usage = 'print(model.predict(["First text.", "Second one."]))'
    answers = f"numbers (within {_SAME:.0%} of the largest)"

    @override
    def fits(self, config: Any) -> bool:
        return config.num_labels == 1 and config.problem_type in (None, "regression")

    @override
    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        return Record.number

    @override
    def require_answers(self, rows: Rows) -> None:
        require_different_scores(rows)

    @override
    def label_values(self, rows: Rows) -> list[float]:
        return [float(target) for target in rows.targets]

    @override
    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Compute half the squared error, summed over the rows of the batch."""
        scores = self._activated(self.logits(model, batch).float(), model)
        return (scores - batch["labels"].to(scores)).square().sum() / 2

    @override
    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        largest = abs(expected).max()
        return (abs(actual - expected)[:, 0] <= _SAME * largest).tolist()

    @override
    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        return [repr(x) for x in self._activated(logits, model).tolist()]

    def _activated(self, logits: Tensor, model: nn.Module) -> Tensor:
        """The numbers, by a cross-encoder's activation function where there is one."""
        numbers: Tensor = self.scores(logits)
        return numbers.sigmoid() if activation_of(model.config) == SIGMOID else numbers

    @override
    def answer(
        self, runtime: Any, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return [repr(x) for x in runtime.predict(sources, pairs).tolist()]


class Reranking(ScoreTask):
    """Reranking: how relevant a text is to the query that it is read with."""

    name = "reranking"
    first_runs = FirstRuns(
        Tried(0.5, "nDCG@10", -0.51, (-1.69, 0.58), MINILM, "MiniLM-L6 and 58 questions of TREC-QA")
    )
    exporter = "compressor.export.encoder:RerankingGraphs"
    metrics = RANKED_METRICS
    runtime = "compressor.runtime:Reranker"
    pipeline_tag = "text-ranking"
    usage = 'print(model.rank("Which one?", ["First text.", "Second one."]))'
    labels = RELEVANCES
    pairs = "all"
    answers = f"probabilities (within {_SAME})"

    @override
    def fits(self, config: Any) -> bool:
        several = config.problem_type == "multi_label_classification"
        return config.num_labels in (1, 2) and not several

    @override
    def scores(self, logits: Any) -> Any:
        return relevance(logits)

    @override
    def read_texts(self, spec: str, reading: Reading) -> RowTexts:
        return replace(super().read_texts(spec, reading), ranked=True)

    @override
    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        return Record.relevance

    @override
    def label_values(self, rows: Rows) -> list[float]:
        """Give 1 for relevant texts, whatever their grade, and 0 for others."""
        return [float(target != "0") for target in rows.targets]

    @override
    def require(self, checkpoint: Checkpoint) -> None:
        super().require(checkpoint)
        checkpoint.require_pairs()

    @override
    def require_answers(self, rows: Rows) -> None:
        require_queries(rows)

    @override
    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Compute the binary cross-entropy of the score in nats, summed over rows."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        scores = self.scores(self.logits(model, batch)).float()
        labels = batch["labels"].to(scores)
        return binary_cross_entropy_with_logits(scores, labels, reduction="sum")

    @override
    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        return [repr(x) for x in self.scores(logits).tolist()]

    @override
    def answer(
        self, runtime: EncoderRuntime[Any], sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return [repr(x) for x in self.scores(runtime.logits(sources, pairs)).tolist()]

    @override
    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        difference = abs(probabilities(actual) - probabilities(expected))
        return (difference <= _SAME).tolist()


def require_different_scores(rows: Rows) -> None:
    """Check that not all rows have the same score, as where it is kept secret (GLUE: -1)."""
    scores = set(map(float, rows.targets))
    if len(scores) == 1:
        raise InputError(
            f"{', '.join(rows.files)}: all rows have the score {scores.pop():g}, and nothing "
            "correlates with that; give rows with scores of their own",
            id="scores-constant",
        )


def require_queries(rows: Rows) -> None:
    """Check that two queries or more have a relevant text, and warn of those that have none.

    Raises:
        InputError: fewer queries have one.
    """
    judged, _ = rows.counted
    queries, files = len(set(rows.sources)), ", ".join(rows.files)
    problem = f"{files}: {queries - judged} of {queries} queries have no relevant text"
    if judged < 2:
        raise InputError(
            f"{problem}, and quality is a mean over the others; give rows of 2 or more",
            id="too-few-queries",
        )
    if judged < queries:
        warnings.warn(f"{problem} and are left out of the metrics", CompressWarning, stacklevel=2)


class Embedding(EncoderTask):
    """Embedding of texts; the answer to a pair is how similar its embeddings are."""

    name = "embedding"
    first_runs = FirstRuns(
        Tried(0.75, "Spearman", 0.04, None, MINILM, "all-MiniLM-L6-v2, the mean of three sets"),
        Tried(0.5, "Spearman", -0.45, None, MINILM, "all-MiniLM-L6-v2, the mean of three sets"),
    )
    auto_class = "AutoModel"
    plain_logits = False
    metrics = ("spearman",)
    ranked_metrics = RANKED_METRICS
    exporter = "compressor.export.encoder:EmbeddingGraphs"
    runtime = "compressor.runtime:Embedder"
    pipeline_tag = "sentence-similarity"
    usage = 'print(model.embed(["First text.", "Second one."]).shape)'
    answers = f"embeddings (within {(2 * _SAME_EMBEDDING) ** 0.5:.0%} of their length)"
    has_answers = False
    joins_pairs = False
    labels = SCORES
    learning_rate = 2e-4
    hidden_weight = 0.1

    @override
    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        return tuple((inputs, outputs) for inputs, outputs in config.get("dense_sizes") or ())

    @override
    def read_texts(self, spec: str, reading: Reading) -> RowTexts:
        """Pairs with scores, queries, or texts alone: a column of a table, or lines.

        One set of options names the columns of all files, and only test files need pairs: a table
        without those that options name for the second text and the score contains texts. One with
        queries, texts and `label`, none of which an option names, has queries with texts to find.
        """
        if format_suffix(spec) == ".txt":
            lines = ((line, None, "") for line in filled_lines(spec))
            return RowTexts([spec], lines, read=lambda: "a text a line")
        table = read_table(spec, reading.header, reading.quoted)
        queries = ranked(table, reading.columns)
        if queries is not None:
            return table.texts(queries, Record.relevance, ranked=True)
        present = {x: name for x, name in reading.columns.items() if name in table.columns}
        if "text_column" in reading.columns:
            present["text_column"] = reading.columns["text_column"]
        chosen = labelled(table, present, SCORES, needs_label=False)
        if chosen[PAIR] is not None and chosen[LABEL] is not None:
            return table.texts(chosen, Record.number)
        if chosen[PAIR] is not None and "text_pair_column" not in present:
            raise InputError(
                f"{spec}: its columns ({quoted(table.columns)}) have pairs of texts, and no score; "
                "name that with --label-column, or one text alone with --text-column",
                id="columns-unclear",
            )
        text = str(chosen[TEXT])
        rows = ((row.text(text), None, "") for row in table.records)
        return RowTexts([spec], rows, read=partial(table.read, {TEXT: text}))

    @override
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
        else:
            require_different_scores(rows)

    @override
    def label_values(self, rows: Rows) -> list[int]:
        """Take the rows' numbers, which their directions are drawn by."""
        return list(range(rows.count))

    @override
    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """Encode texts; of pairs first all first texts, then all second ones."""
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

    @override
    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Compute embeddings, [batch, width]; of length 1 where the cosine compares them."""
        from torch.nn.functional import normalize

        embeddings = super().logits(model, batch)
        return normalize(embeddings.float(), dim=-1) if _by_cosine(model) else embeddings

    @override
    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Sum <v, e / |e|> over rows, the parts of their embeddings in random directions.

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

    @override
    def predictions(self, logits: Tensor) -> Tensor:
        return at_least_float32(logits)

    @override
    def divergence(self, actual: Tensor, dense: Tensor) -> Tensor:
        """Compute half the squared distance over the dense one's squared length.

        At length 1 it is 1 - cosine.
        """
        distance, length = (actual - dense).square().sum(-1), dense.square().sum(-1)
        return (distance / length.clamp_min(_LEAST)).sum() / 2

    @override
    def same_answers(self, actual: Logits, expected: Logits) -> list[bool]:
        distance, length = ((actual - expected) ** 2).sum(-1), (expected**2).sum(-1)
        return (distance <= 2 * _SAME_EMBEDDING * length).tolist()

    @override
    def answer_settings(self, rows: Rows) -> Mapping[str, Any]:
        return {"prompts": _RANKED_PROMPTS} if rows.ranked else {}

    @override
    def answer(
        self, runtime: Embedder, sources: Texts, pairs: Texts | None = None, **settings: Any
    ) -> list[str]:
        """Answer how similar the embeddings of each pair are; equal texts are read once."""
        assert pairs is not None  # see `require_answers`
        prompts, sides = settings.get("prompts", (None, None)), []
        for prompt, texts in zip(prompts, (sources, pairs), strict=True):
            numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
            vectors = runtime.with_prompt(prompt).embed(list(numbers))
            sides.append(vectors[[numbers[text] for text in texts]])
        return [repr(float(value)) for value in runtime.compare(*sides)]


def _by_cosine(model: nn.Module) -> bool:
    from compressor.model.sentence_head import head_of

    return head_of(model).settings.similarity == "cosine"


REGRESSION = Regression()
RERANKING = Reranking()
EMBEDDING = Embedding()
