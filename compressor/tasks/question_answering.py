"""Answering questions by a part of a text, the context, which may be read in several windows.

Examples are windows (`compressor.runtime.question_answerer`): a context that is longer than one
makes several. The label of a window without the whole answer is its first token, as it is if there
is no answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError, UsageError
from compressor.tasks.batching import Example, chunks, require_offsets
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.questions import answers_of, read_questions
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts, Texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime import QuestionAnswerer
    from compressor.runtime.question_answerer import Window
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

_NEVER = -1e4  # the logit of padding


class QuestionAnswering(EncoderTask):
    """The start and the end of an answer; a row's target is the right answers as JSON."""

    name = "question-answering"
    auto_class = "AutoModelForQuestionAnswering"
    plain_logits = False
    metrics = ("answer_f1", "exact_match")
    columns = ()
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text_column": ("question",),
        "text_pair_column": ("context",),
    }
    exporter = "compressor.export.encoder_heads:QuestionAnsweringGraphs"
    runtime = "compressor.runtime:QuestionAnswerer"
    pipeline_tag = "question-answering"
    usage = 'print(model.answer("Who came?", "Yesterday Ada came.").text)'
    answers = "starts and ends"
    head_on_tokens = True
    one_example_per_row = False

    def require(self, checkpoint: Checkpoint) -> None:
        """Check that a token has two logits, and that texts are joined and cut as here.

        transformers (its pipeline, and its scripts that train) puts the context first where padding
        is on the left, and cuts windows from the end where truncation is.
        """
        config: Any = checkpoint.model.config
        if config.num_labels != 2:
            raise InputError(
                f"{checkpoint.directory / 'config.json'} has {config.num_labels} labels, and a "
                "model for questions has 2, a start and an end; get the checkpoint again",
                id="config-malformed",
            )
        for name in ("padding_side", "truncation_side"):
            if getattr(checkpoint.tokenizer, name) != "right":
                raise InputError(
                    f"{checkpoint.directory / 'tokenizer_config.json'} sets {name} to left, with "
                    "which questions and contexts are joined otherwise than here; give a model "
                    "that was trained with right",
                    id="tokenizer-side-unsupported",
                )

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        return ((width, 2),)

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        """Questions as sources, contexts as their pairs; targets as `answers_of` reads them."""
        return RowTexts(
            [spec],
            (
                (question, context, json.dumps(gold, ensure_ascii=False))
                for question, context, gold in read_questions(spec, columns, header)
            ),
        )

    def label_values(self, rows: Rows) -> Sequence[tuple[str, int] | None]:
        """The first right answer of each row, and where it starts; None if it has none."""
        gold = [answers_of(target) for target in rows.targets]
        return [answers[0] if answers else None for answers in gold]

    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """As in `Task`, an example for each window, numbered from 0; long questions are cut."""
        from compressor.model.tokenizer import uncut_copy

        require_offsets(tokenizer)
        examples: list[Example] = []
        windows = _windows(uncut_copy(tokenizer), rows, max_source_tokens)
        for row_windows, gold in zip(windows, self.label_values(rows), strict=True):
            for window in row_windows:
                tokens = None
                if gold is not None:
                    text, start = gold
                    tokens = window.tokens_of(start, start + len(text))
                examples.append(
                    Example(
                        row=len(examples),
                        source=tuple(window.ids),
                        target=tokens or (0, 0),
                        types=tuple(window.types),
                        truncated=window.cut,
                    )
                )
        return examples

    def source_example(self, row: int, source: tuple[int, ...], end: int) -> Example:
        return Example(row, source, (0, 0))

    def label_tensor(self, examples: Sequence[Example]) -> Tensor:
        """[batch, 2]: the tokens where the answer starts and ends."""
        import torch

        return torch.tensor([example.target for example in examples])

    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Of each token to be the start, and the end: [batch, 2, window].

        The width is the same in every batch, with logits of padding far below all others, so rows
        of different batches can be joined.
        """
        import torch

        from compressor.runtime.question_answerer import WINDOW

        logits = super().logits(model, batch).float()  # [batch, tokens, 2]
        tokens = logits.shape[1]
        width = max(tokens, WINDOW)
        real = batch["attention_mask"].bool()[:, None]  # [batch, 1, tokens]
        masked = logits.transpose(1, 2).masked_fill(~real, _NEVER)
        return torch.nn.functional.pad(masked, (0, width - tokens), value=_NEVER)

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Cross-entropy of the starts and of the ends in nats, summed over the batch."""
        from torch.nn.functional import cross_entropy

        logits = self.logits(model, batch).flatten(0, 1)  # [batch x 2, window]
        return cross_entropy(logits, batch["labels"].flatten(), reduction="sum")

    def loss_terms(self, batch: Tensors) -> int:
        """Two for each window."""
        return batch["labels"].numel()

    def term_mask(self, batch: Tensors) -> Tensor:
        """Start and end of every window, [batch, 2] bool."""
        import torch

        return torch.ones_like(batch["labels"], dtype=torch.bool)

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        raise UsageError(
            "an answer is chosen from all windows of its context; give the artifact to `compress "
            "evaluate`",
            id="task-without-answers",
        )

    def read_logits(self, logits: Logits, attention_mask: NDArray[np.int64]) -> Logits:
        """Of the starts and of the ends, [rows x 2, tokens]."""
        import numpy as np

        real = np.where(attention_mask[..., None] > 0, logits, -np.inf)
        return real.transpose(0, 2, 1).reshape(-1, real.shape[1])

    def answer_settings(self, rows: Rows) -> Mapping[str, Any]:
        """No answer is allowed where that is right for one of the rows, as in SQuAD 2.0."""
        return {"null_answers": not all(map(answers_of, rows.targets))}

    def answer(
        self,
        runtime: QuestionAnswerer,
        sources: Texts,
        pairs: Texts | None = None,
        *,
        num_beams: int | None = None,
        null_answers: bool = False,
    ) -> list[str]:
        """The answers' texts, empty for no answer."""
        assert pairs is not None  # `read_texts` returns contexts
        return [x.text for x in runtime.answers(sources, pairs, null_answers=null_answers)]


def _windows(tokenizer: Any, rows: Rows, most: int) -> Iterator[list[Window]]:
    """The windows of each row, made for many rows at a time."""
    from compressor.runtime.question_answerer import split

    assert rows.pairs is not None  # `read_texts` returns contexts
    try:
        for chunk in chunks(rows.count):
            yield from split(tokenizer, rows.sources[chunk], rows.pairs[chunk], most)
    except ValueError as error:
        raise InputError(
            f"the checkpoint's tokenizer cannot join questions and contexts: {error}; give "
            "another checkpoint",
            id="tokenizer-without-pairs",
        ) from error


TASK = QuestionAnswering()
