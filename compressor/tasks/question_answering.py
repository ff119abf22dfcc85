"""Answering questions by a part of a text, the context, which may be read in several windows.

Examples are windows (`compressor.runtime.question_answerer`): a context that is longer than one
makes several. The label of a window without the whole answer is its first token, as it is if there
is no answer. Rows are read from SQuAD's JSON, versions 1.1 and 2.0:

    {"data": [{"paragraphs": [{"context": TEXT, "qas": [
        {"question": TEXT, "answers": [{"text": TEXT, "answer_start": CHARACTER}]}]}]}]}

In version 2.0 a question that the context does not answer has `"is_impossible": true`. Or an object
per question, as in the datasets library: in a `.jsonl` file one per line, in a `.json` file as the
list or in its `data`. With an empty list of answers the context has none.

    {"question": TEXT, "context": TEXT, "answers": {"text": [TEXT], "answer_start": [CHARACTER]}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.errors import InputError, UsageError
from compressor.storage.input_files import parse_json
from compressor.storage.text_files import format_suffix
from compressor.tasks.batching import Example, chunks, require_offsets
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import ColumnNames, LabelNames, Rows, RowTexts, Texts
from compressor.tasks.tables import JSONL, read_lines, read_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime import QuestionAnswerer
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

JSON = ".json"
_NEVER = -1e4  # the logit of padding
Gold = list[tuple[str, int]]  # the right answers, and where each starts in the context
Question = tuple[str, str, Gold]  # question, context, right answers


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
    exporter = "compressor.export.encoder:QuestionAnsweringGraphs"
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
        """Questions as sources, contexts as their pairs; targets as `answers_of` reads them.

        Each row is checked when it is read: errors have its place in the JSON.
        """
        suffix = format_suffix(spec)
        if suffix not in (JSON, JSONL):
            raise InputError(
                f"the format of {spec} is not known by its suffix; give questions as SQuAD has "
                f"them, in a file that ends in {JSON}, or one an object in {JSONL}",
                id="format-unknown",
            )
        if columns or not header:
            raise UsageError(
                f"{spec} is JSON as SQuAD has it, without columns; leave options of tables out",
                id="columns-of-json",
            )
        if suffix == JSON:
            questions = _nested_questions(spec)
        else:
            questions = (_flat_question(x.cells, f"{x.where}: ") for x in read_table(spec).records)
        rows = (
            (question, context, json.dumps(gold, ensure_ascii=False))
            for question, context, gold in questions
        )
        return RowTexts([spec], rows)

    def label_values(self, rows: Rows) -> Sequence[tuple[str, int] | None]:
        """The first right answer of each row, and where it starts; None if it has none."""
        gold = [answers_of(target) for target in rows.targets]
        return [answers[0] if answers else None for answers in gold]

    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """As in `Task`, an example for each window, numbered from 0; long questions are cut."""
        from compressor.model.tokenizer import uncut_copy
        from compressor.runtime.question_answerer import split

        require_offsets(tokenizer)
        assert rows.pairs is not None  # `read_texts` returns contexts
        uncut, labels = uncut_copy(tokenizer), self.label_values(rows)
        examples: list[Example] = []
        for chunk in chunks(rows.count):
            try:
                windows = split(uncut, rows.sources[chunk], rows.pairs[chunk], max_source_tokens)
            except ValueError as error:
                raise InputError(
                    f"the checkpoint's tokenizer cannot join questions and contexts: {error}; give "
                    "another checkpoint",
                    id="tokenizer-without-pairs",
                ) from error
            for row_windows, gold in zip(windows, labels[chunk], strict=True):
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


def answers_of(target: str) -> Gold:
    """The right answers of a row's target, the first one first; empty if it has none."""
    return [(text, start) for text, start in json.loads(target)]


def _nested_questions(spec: str) -> Iterator[Question]:
    """All questions of a `.json` file."""
    try:
        contents = parse_json("\n".join(read_lines(spec)))
    except ValueError as error:
        line, hint = "", ""
        if isinstance(error, json.JSONDecodeError):
            line = f":{error.lineno}"
            if error.msg == "Extra data":
                hint = f"; if there is one object a line, call the file {JSONL}"
        raise InputError(
            f"{spec}{line}: not valid JSON: {error}{hint}", id="json-malformed"
        ) from error
    if isinstance(contents, list):
        contents = {"data": contents}
    for a, article in enumerate(_part(contents, "data", list, f"{spec}: ")):
        where = f"{spec}: data[{a}]."
        if isinstance(article, dict) and "paragraphs" not in article and "context" in article:
            yield _flat_question(article, where)
            continue
        for p, paragraph in enumerate(_part(article, "paragraphs", list, where)):
            in_paragraph = f"{where}paragraphs[{p}]."
            context = _text(paragraph, "context", in_paragraph)
            for q, question in enumerate(_part(paragraph, "qas", list, in_paragraph)):
                in_question = f"{in_paragraph}qas[{q}]."
                gold = _gold(question, context, in_question)
                yield _text(question, "question", in_question), context, gold


def _flat_question(row: Any, where: str) -> Question:
    """A question as in the datasets library."""
    context = _text(row, "context", where)
    answers = row.get("answers")
    if isinstance(answers, dict):
        texts, starts = (
            _part(answers, name, list, f"{where}answers.") for name in ("text", "answer_start")
        )
        if len(texts) != len(starts):
            raise InputError(
                f"{where}answers has {len(texts)} in text and {len(starts)} in answer_start; give "
                "each answer both",
                id="questions-malformed",
            )
        answers = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    gold = [] if answers == [] else _gold({**row, "answers": answers}, context, where)
    return _text(row, "question", where), context, gold


def _gold(question: Any, context: str, where: str) -> Gold:
    """The right answers of a question, as SQuAD has it."""
    if isinstance(question, dict) and question.get("is_impossible") is True:
        return []
    gold: Gold = []
    for number, answer in enumerate(_part(question, "answers", list, where)):
        text = _text(answer, "text", f"{where}answers[{number}].")
        start = _part(answer, "answer_start", int, f"{where}answers[{number}].")
        if start < 0 or context[start : start + len(text)] != text:
            raise InputError(
                f"{where}answers[{number}]: the context does not have {text[:40]!r} at character "
                f"{start}; give answers that are parts of their contexts",
                id="answer-not-in-context",
            )
        gold.append((text, start))
    if not gold:
        raise InputError(
            f"{where.removesuffix('.')}: the question has no answer; give one, or "
            '"is_impossible": true',
            id="answer-missing",
        )
    return gold


def _part(value: Any, name: str, kind: type[Any], where: str) -> Any:
    part = value.get(name) if isinstance(value, dict) else None
    if not isinstance(part, kind) or isinstance(part, bool):
        words = {list: "a list", str: "a text", int: "a whole number"}
        raise InputError(
            f"{where}{name} is missing or not {words[kind]}; give questions as SQuAD has them",
            id="questions-malformed",
        )
    return part


def _text(value: Any, name: str, where: str) -> str:
    text: str = _part(value, name, str, where)
    if not text.strip():
        raise InputError(f"{where}{name} is empty", id="cell-empty")
    return text


QUESTION_ANSWERING = QuestionAnswering()
