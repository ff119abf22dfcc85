"""Questions that are answered by a part of a text, the context, maybe read in several windows.

Examples are windows (`compressor.runtime.question_answerer`). The label of a window without the
whole answer is its first token, as it is if there is no answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from compressor.errors import InputError, UsageError
from compressor.runtime.question_answerer import WINDOW, split_into_windows
from compressor.tasks import tables
from compressor.tasks.batching import Example, chunks, require_offsets
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import Reading, Rows, RowText, RowTexts, Texts
from compressor.tasks.tables import Record
from compressor.tasks.tried import MINILM, FirstRuns, Tried

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime import QuestionAnswerer
    from compressor.tasks.batching import Tensors
    from compressor.tasks.encoder import Logits

JSON = ".json"
_NEVER = -1e4  # the logit of padding
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)  # from JSON of another form
Gold = list[tuple[str, int]]  # the right answers, and where each starts in the context


class QuestionAnswering(EncoderTask):
    """The start and the end of an answer; a row's target is the right answers as JSON."""

    name = "question-answering"
    first_runs = FirstRuns(
        Tried(0.75, "answer F1", -1.12, (-2.68, 0.37), MINILM, "MiniLM-L6 and few questions")
    )
    auto_class = "AutoModelForQuestionAnswering"
    plain_logits = False
    metrics = ("answer_f1", "exact_match")
    columns = ()
    exporter = "compressor.export.encoder:QuestionAnsweringGraphs"
    runtime = "compressor.runtime:QuestionAnswerer"
    pipeline_tag = "question-answering"
    usage = 'print(model.answer("Who came?", "Yesterday Ada came.").text)'
    answers = "starts and ends"
    head_on_tokens = True
    one_example_per_row = False

    @override
    def fits(self, config: Any) -> bool:
        return config.num_labels == 2  # of each token: the start, and the end

    @override
    def require(self, checkpoint: Checkpoint) -> None:
        for name in ("padding_side", "truncation_side"):
            if getattr(checkpoint.tokenizer, name) != "right":
                raise InputError(
                    f"{checkpoint.directory / 'tokenizer_config.json'} sets {name} to left, with "
                    "which transformers joins or cuts questions and contexts otherwise than here; "
                    "give a model that was trained with right",
                    id="tokenizer-side-unsupported",
                )
        checkpoint.require_pairs()

    @override
    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        return ((width, 2),)

    @override
    def read_texts(self, spec: str, reading: Reading) -> RowTexts:
        """SQuAD's JSON, versions 1.1 and 2.0, or objects as in the datasets library.

            {"data": [{"paragraphs": [{"context": TEXT, "qas": [{"question": TEXT, "is_impossible":
                BOOL, "answers": [{"text": TEXT, "answer_start": NUMBER}]}]}]}]}
            {"question": TEXT, "context": TEXT,
                "answers": {"text": [TEXT], "answer_start": [NUMBER]}}

        Objects stand one per line in `.jsonl`, in `.json` as the list or in its `data`.
        """
        format = tables.require_format(spec, (JSON, tables.JSONL))
        if not reading.header or reading.quoted is not None:
            raise UsageError(
                f"{spec} is JSON, and no table; leave --no-header and --quoted out",
                id="option-without-use",
            )
        if format == JSON:
            return RowTexts([spec], _rows_of_squad(spec))
        rows = (_row(record.cells, record.where) for record in tables.read_table(spec).records)
        return RowTexts([spec], rows)

    @override
    def label_values(self, rows: Rows) -> Sequence[tuple[str, int] | None]:
        """Take the first right answer of each row, and where it starts; None if it has none."""
        gold = [answers_of(target) for target in rows.targets]
        return [answers[0] if answers else None for answers in gold]

    @override
    def encode(self, rows: Rows, tokenizer: Any, max_source_tokens: int) -> list[Example]:
        """Make an example for each window, numbered from 0; long questions are cut."""
        from compressor.model.tokenizer import uncut_copy

        require_offsets(tokenizer)
        assert rows.pairs is not None  # `read_texts` returns contexts
        uncut, labels = uncut_copy(tokenizer), self.label_values(rows)
        examples: list[Example] = []
        for chunk in chunks(rows.count):
            try:
                windows = split_into_windows(
                    uncut, rows.sources[chunk], rows.pairs[chunk], max_source_tokens
                )
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
                    ids, types = tuple(window.ids), tuple(window.types)
                    label = tokens or (0, 0)
                    examples.append(Example(len(examples), ids, label, types, window.cut))
        return examples

    @override
    def source_example(self, row: int, source: tuple[int, ...], end: int) -> Example:
        return Example(row, source, (0, 0))

    @override
    def label_tensor(self, examples: Sequence[Example]) -> Tensor:
        """Take the tokens where the answer starts and ends, [batch, 2]."""
        import torch

        return torch.tensor([example.target for example in examples])

    @override
    def logits(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Compute for each token the logits of being the start, and the end: [batch, 2, window].

        They are padded to the same width, so that rows of different batches can be joined.
        """
        import torch

        logits = super().logits(model, batch).float()  # [batch, tokens, 2]
        tokens = logits.shape[1]
        width = max(tokens, WINDOW)
        real = batch["attention_mask"].bool()[:, None]  # [batch, 1, tokens]
        masked = logits.transpose(1, 2).masked_fill(~real, _NEVER)
        return torch.nn.functional.pad(masked, (0, width - tokens), value=_NEVER)

    @override
    def loss_terms(self, batch: Tensors) -> int:
        """Count two terms for each window."""
        return batch["labels"].numel()

    @override
    def term_mask(self, batch: Tensors) -> Tensor:
        """Mark start and end of every window, [batch, 2] bool."""
        return batch["labels"] >= 0

    @override
    def read_logits(self, logits: Logits, attention_mask: NDArray[np.int64]) -> Logits:
        """Take the logits of the starts and of the ends, [rows x 2, tokens]."""
        real = np.where(attention_mask[..., None] > 0, logits, -np.inf)
        return real.transpose(0, 2, 1).reshape(-1, real.shape[1])

    @override
    def answer_settings(self, rows: Rows) -> Mapping[str, Any]:
        """Allow no answer where that is right for one of the rows, as in SQuAD 2.0."""
        return {"null_answers": not all(map(answers_of, rows.targets))}

    @override
    def answer(
        self, runtime: QuestionAnswerer, sources: Texts, pairs: Texts | None = None, **settings: Any
    ) -> list[str]:
        """Take the answers' texts, empty for no answer."""
        assert pairs is not None  # `read_texts` returns contexts
        null_answers = settings.get("null_answers", False)
        return [x.text for x in runtime.answers(sources, pairs, null_answers=null_answers)]


def answers_of(target: str) -> Gold:
    """The right answers of a row's target, the first one first; empty if it has none."""
    return [(text, start) for text, start in json.loads(target)]


def _rows_of_squad(spec: str) -> Iterator[RowText]:
    """All questions of a `.json` file, one after another, so that errors have their place."""
    contents = tables.parse_json_of("\n".join(tables.read_lines(spec)), spec, (dict, list))
    where = spec
    try:
        for a, article in enumerate(contents if isinstance(contents, list) else contents["data"]):
            where = f"{spec}: data[{a}]"
            if "paragraphs" not in article:
                yield _row(article, where)
                continue
            for p, paragraph in enumerate(article["paragraphs"]):
                for q, question in enumerate(paragraph["qas"]):
                    where = f"{spec}: data[{a}].paragraphs[{p}].qas[{q}]"
                    if question.get("is_impossible") is not True and question["answers"] == []:
                        raise InputError(
                            f'{where}: the question has no answer; give one, or "is_impossible": '
                            "true",
                            id="answer-missing",
                        )
                    yield _row({**question, "context": paragraph["context"]}, where)
    except _MALFORMED as error:
        raise _malformed(where, error) from error


def _row(question: Mapping[str, Any], where: str) -> RowText:
    """A question with its context, with answers as in SQuAD or in the datasets library."""
    record, gold = Record(where, question), []
    context = record.text("context")
    try:
        answers = [] if question.get("is_impossible") is True else question["answers"]
        if isinstance(answers, dict):
            gold = list(zip(answers["text"], answers["answer_start"], strict=True))
        else:
            gold = [(answer["text"], answer["answer_start"]) for answer in answers]
        for text, start in gold:
            if not text.strip() or start < 0 or context[start : start + len(text)] != text:
                raise InputError(
                    f"{where}: the context does not have the answer {text[:40]!r} at character "
                    f"{start}; give answers that are parts of their contexts",
                    id="answer-not-in-context",
                )
    except _MALFORMED as error:
        raise _malformed(where, error) from error
    return record.text("question"), context, json.dumps(gold, ensure_ascii=False)


def _malformed(where: str, error: Exception) -> InputError:
    return InputError(
        f"{where}: here or next, questions are not written as in SQuAD ({error!r}); give each a "
        "question, a context, and answers with text and answer_start",
        id="questions-malformed",
    )


QUESTION_ANSWERING = QuestionAnswering()
