"""Models for questions: an artifact's answers against the best spans of PyTorch, and its lines."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.report.schema import load_report
from compressor.runtime import QuestionAnswerer
from compressor.tasks import TASKS
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.heads import piece_words, questions
from tests.helpers.metrics import score_answers
from tests.helpers.tiny import ragged_batch

pytestmark = pytest.mark.slow

rng = random.Random(5)
ASKED = [" ".join(piece_words(rng, 2)) for _ in range(12)]
# Long and short ones, with punctuation, capitals and accents.
CONTEXTS = [
    *(x["context"] for x in questions(10, seed=6)), "Abba, cd-ef's  häb.Zz a", "abc",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(task_run):
    return task_run("question-answering")


@torch.no_grad()
def by_pytorch(directory: Path, null_answers: bool) -> list[tuple[str, float, int, int]]:
    """Text, score, start and end: every span of every window of transformers is tried."""
    opened = open_checkpoint(str(directory))
    tokenizer: Any = opened.tokenizer
    found = []
    for question, context in zip(ASKED, CONTEXTS, strict=True):
        room = 32 - 3 - len(tokenizer(question, add_special_tokens=False)["input_ids"])
        inputs = tokenizer(
            question, context, truncation="only_second", max_length=32, stride=room // 2,
            return_overflowing_tokens=True, return_token_type_ids=True,
        )  # fmt: skip
        best, none = ("", -1.0, 0, 0), 1.0
        for part, ids in enumerate(inputs["input_ids"]):
            output = opened.model(
                input_ids=torch.tensor([ids]),
                token_type_ids=torch.tensor([inputs["token_type_ids"][part]]),
            )
            places = [i for i, text in enumerate(inputs.sequence_ids(part)) if text == 1]
            starts, ends = (
                logits[0, [0, *places]].softmax(0).tolist()
                for logits in (output.start_logits, output.end_logits)
            )
            none = min(none, starts[0] * ends[0])
            for i, first in enumerate(places):
                for j, last in enumerate(places[i:], i):
                    score = starts[1 + i] * ends[1 + j]
                    if score > best[1]:
                        words = [inputs.token_to_word(part, token) for token in (first, last)]
                        start = inputs.word_to_chars(part, words[0], 1).start
                        end = inputs.word_to_chars(part, words[1], 1).end
                        # A word that a window cuts is taken as far as it goes.
                        start = max(start, inputs.token_to_chars(part, places[0]).start)
                        end = min(end, inputs.token_to_chars(part, places[-1]).end)
                        best = (context[start:end], score, start, end)
        found.append(("", none, 0, 0) if null_answers and none > best[1] else best)
    return found


@pytest.mark.parametrize(
    ("null_answers", "engine"), [(False, "onnxruntime"), (True, "onnxruntime"), (True, "openvino")]
)
def test_answers_are_the_best_spans_of_pytorch(null_answers: bool, engine: str, made):
    answerer = QuestionAnswerer(made / "out", precision="fp32", engine=engine)
    found = answerer.answers(ASKED, CONTEXTS, null_answers=null_answers)
    wanted = by_pytorch(made / "out", null_answers)
    assert [(x.text, x.start, x.end) for x in found] == [(x[0], *x[2:]) for x in wanted]
    np.testing.assert_allclose([x.score for x in found], [x[1] for x in wanted], rtol=1e-4)
    empty = sum(not x.text for x in found)
    assert (empty > 0, empty < len(found)) == (null_answers, True)
    alone = answerer.answer(ASKED[0], CONTEXTS[0], null_answers=null_answers)
    assert alone.text == found[0].text
    rows = [(ASKED[0], CONTEXTS[0]), (" ", ""), (ASKED[1], CONTEXTS[1])]
    streamed = list(answerer.answer_stream(rows, null_answers=null_answers, chunk_rows=2))
    assert [x.text for x in streamed] == [found[0].text, "", found[1].text]
    for answer in (lambda text: answerer.answers(text, text), answerer.answer_stream):
        with raises(UsageError, "text-not-in-a-list"):
            answer("ab")


def test_windows_and_what_does_not_fit(made):
    answerer = QuestionAnswerer(made / "out", precision="int8")
    count = [len(answerer.encode(ASKED[:1], [" ".join(["ab"] * n)])) for n in (5, 40, 80)]
    assert count[0] == 1 < count[1] < count[2]
    assert answerer.answers([], []) == []
    assert answerer.answer("ab", "").text == ""
    with pytest.warns(UserWarning, match="1 of 2 questions were cut"):
        answerer.answers(["abcdefghij" * 5, "ab"], ["ab", "ab"])
    with raises(UsageError, "pairs-do-not-match-texts"):
        answerer.answers(ASKED, [])
    with raises(UsageError, "number-below-one"):
        answerer.answer("ab", "ab", stride=0)


def test_the_report_has_the_scores_of_its_answers(made):
    report = load_report(made / "out" / "report.json")
    variant = next(x for x in report.variants if x.name == "macs-0.5")
    rows = TASKS["question-answering"].read_rows(made / "test.json")
    answerer = QuestionAnswerer(made / "out", precision="fp32")
    texts = [x.text for x in answerer.answers(rows.sources, rows.pairs, null_answers=True)]
    expected = score_answers("question-answering", texts, rows.targets, None).metrics
    assert variant.quality.metrics == pytest.approx(expected)
    assert 0 < expected["answer_f1"] < 100


def test_answer_writes_a_line_for_each_line(made, tmp_path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text(f"{ASKED[0]}\t{CONTEXTS[0]}\n\n{ASKED[1]}\t{CONTEXTS[1]}\n", encoding="utf-8")
    first, second = QuestionAnswerer(made / "out").answers(ASKED[:2], CONTEXTS[:2], stride=2)
    capsys.readouterr()
    invoke("predict", made / "out", lines, "--stride", "2")
    assert capsys.readouterr().out.split("\n") == [first.text, "", second.text, ""]
    invoke("predict", made / "out", lines, "--jsonl", "--stride", "2")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(x["line"], x["answer"]) for x in found] == [
        (1, first.text), (2, ""), (3, second.text)
    ]  # fmt: skip
    assert (found[2]["start"], found[2]["end"]) == (second.start, second.end)
    lines.write_text("no tab\n", encoding="utf-8")
    with raises(InputError, "cell-count-differs") as caught:
        invoke("predict", made / "out", lines)
    assert str(caught.value).endswith("with one tab between them, and the line has none")


@torch.no_grad()
def test_optimums_layout_has_starts_and_ends(made, tmp_path):
    invoke("export", "-m", made / "out", "-o", tmp_path / "o", "--layout", "optimum")
    opened = open_checkpoint(str(made / "out"))
    batch = ragged_batch(opened.model) | {"token_type_ids": torch.zeros(3, 9, dtype=torch.long)}
    expected = opened.model(**batch)
    session = onnxruntime.InferenceSession(tmp_path / "o" / "model.onnx")
    found = session.run(
        ["start_logits", "end_logits"], {name: value.numpy() for name, value in batch.items()}
    )
    np.testing.assert_allclose(found[0], expected.start_logits, atol=1e-5)
    np.testing.assert_allclose(found[1], expected.end_logits, atol=1e-5)
