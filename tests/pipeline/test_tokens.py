"""Token classifiers and models for questions, against transformers and PyTorch; their lines."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from seqeval.metrics import f1_score

import compressor
from compressor.errors import UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.report.schema import load_report
from compressor.runtime import QuestionAnswerer, TokenClassifier
from compressor.tasks import TASKS
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.heads import (
    SMALL,
    TAGS,
    piece_words,
    questions,
    save_reader,
    save_tagger,
    write_questions,
    write_tagged,
)

pytestmark = pytest.mark.slow

rng = random.Random(5)
SENTENCES = [piece_words(rng) for _ in range(20)]
# Punctuation, capitals, accents, unknown letters, spaces in a row, and nothing that is a token.
TEXTS = [*(" ".join(x) for x in SENTENCES), "Abba, cd-ef's  häb.Zz a", "é", "xyz", "\u200d"]


@pytest.fixture(scope="module")
def tagged(task_run):
    return task_run("token-classification")


@pytest.mark.parametrize(
    ("options", "close"),
    [({}, 1e-5), ({"engine": "openvino"}, 1e-5), ({"precision": "int8"}, 0.05)],
)
def test_entities_are_those_of_transformers(options: dict[str, str], close: float, tagged):
    """Its pipeline, each text alone; of int8 the probabilities may differ, and few labels."""
    tagger = TokenClassifier(tagged / "out", **{"precision": "fp32"} | options)
    pipeline: Any = transformers.pipeline(
        "token-classification",
        model=compressor.load(tagged / "out"),
        tokenizer=open_checkpoint(str(tagged / "out")).tokenizer,
        aggregation_strategy="first",
    )
    agreeing, answers = 0, tagger.tag(TEXTS)
    for text, found in zip(TEXTS, answers, strict=True):
        wanted = pipeline(text) if text != "\u200d" else []
        places = [(x["entity_group"], x["start"], x["end"]) for x in wanted]
        assert all(x.text == text[x.start : x.end] for x in found)
        if [(x.label, x.start, x.end) for x in found] == places:
            agreeing += 1
            scores = [x.score for x in found]
            np.testing.assert_allclose(scores, [x["score"] for x in wanted], atol=close)
    assert agreeing >= len(TEXTS) - (4 if "precision" in options else 0)
    assert sum(map(len, answers)) > 20
    streamed = list(tagger.tag_stream([TEXTS[0], " ", TEXTS[1]], chunk_rows=2))
    assert [[(x.label, x.end) for x in found] for found in streamed] == [
        [(x.label, x.end) for x in found] for found in (answers[0], [], answers[1])
    ]
    assert tagger.tag([]) == []
    with raises(UsageError, "text-not-in-a-list"):
        tagger.tag_stream("one text")


def test_words_have_the_label_of_their_first_token(tagged):
    """By PyTorch, each sentence alone, aligned by transformers."""
    opened = open_checkpoint(str(tagged / "out"))
    wanted = []
    for words in SENTENCES:
        inputs = opened.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            best = opened.model(**inputs).logits[0].argmax(-1).tolist()
        firsts = {x: i for i, x in reversed([*enumerate(inputs.word_ids())]) if x is not None}
        wanted.append([TAGS[best[firsts[word]]] for word in range(len(words))])
    tagger = TokenClassifier(tagged / "out", precision="fp32")
    assert tagger.tag_words(SENTENCES) == wanted
    assert tagger.tag_words([["\u200d", "ab"]])[0][0] == "O"
    first, other = tagger.tag_words([["ab", "", "cd", "ef"], ["ab", "cd", "ef"]])
    assert (first[1], [first[0], *first[2:]]) == ("O", other), "an empty word moves no labels"
    with pytest.warns(UserWarning, match="1 of 1 texts were cut"):
        (cut,) = tagger.tag_words([["abcdefghij"] * 5])
    assert cut[4:] == ["O"]


def test_the_report_has_the_f1_of_its_answers(tagged, tmp_path):
    report = load_report(tagged / "out" / "report.json")
    variant = next(x for x in report.variants if x.name == "macs-0.5")
    rows = TASKS["token-classification"].read_rows(tagged / "test.conll", labels=TAGS)
    tagger = TokenClassifier(tagged / "out", precision="fp32")
    answers = tagger.tag_words([text.split() for text in rows.sources])
    expected = 100 * f1_score([x.split() for x in rows.targets], answers)
    assert variant.quality.metrics["entity_f1"] == pytest.approx(expected)
    invoke("study", "heads", "-m", tagged / "model", "--test", tagged / "test.conll", "-o",
           tmp_path / "study")  # fmt: skip


def test_tag_writes_a_line_for_each_line(tagged, tmp_path, capsys):
    (tmp_path / "lines.txt").write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\n", encoding="utf-8")
    first, second = TokenClassifier(tagged / "out").tag(TEXTS[:2])
    capsys.readouterr()
    invoke("predict", tagged / "out", tmp_path / "lines.txt")
    shown = capsys.readouterr().out.splitlines()
    wanted = (first, [], second)
    assert shown == ["\t".join(f"{x.label}\t{x.text}" for x in found) for found in wanted]
    invoke("predict", tagged / "out", tmp_path / "lines.txt", "--jsonl")
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for found, x in zip(wanted, objects, strict=True):
        entities = [(x["label"], x["start"], x["end"]) for x in x["entities"]]
        assert entities == [(x.label, x.start, x.end) for x in found]


@pytest.mark.parametrize("name", SMALL)
def test_encoders_that_mask_padding_in_ways_of_their_own_are_compressed(name: str, tmp_path):
    """Rows of very different length; a tagger of one, a reader of the other."""
    save = save_tagger if name == "modernbert" else save_reader
    model = save(tmp_path / "m", name, **SMALL[name])
    if name == "modernbert":
        rows = write_tagged(tmp_path / "a.conll")
    else:
        rows = write_questions(tmp_path / "a.json", questions(12))
    invoke("run", "-m", model, "--calibration", rows, "-o", tmp_path / "out", "--macs", "0.6",
           "--precision", "fp32,int8", "--recover", "none", "--no-bench")  # fmt: skip
    report = load_report(tmp_path / "out" / "report.json")
    checks = {check.name: check for variant in report.variants for check in variant.checks}
    for check in ("pruned equals masked", "ONNX equals PyTorch"):
        assert checks[check].largest_difference < 2e-5


drawn = random.Random(5)
ASKED = [" ".join(piece_words(drawn, 2)) for _ in range(12)]
# Long and short ones, with punctuation, capitals and accents.
CONTEXTS = [
    *(x["context"] for x in questions(10, seed=6)), "Abba, cd-ef's  häb.Zz a", "abc",
]  # fmt: skip


@pytest.fixture(scope="module")
def reader(task_run):
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
def test_answers_are_the_best_spans_of_pytorch(null_answers: bool, engine: str, reader):
    answerer = QuestionAnswerer(reader / "out", precision="fp32", engine=engine)
    found = answerer.answers(ASKED, CONTEXTS, null_answers=null_answers)
    wanted = by_pytorch(reader / "out", null_answers)
    assert [(x.text, x.start, x.end) for x in found] == [(x[0], *x[2:]) for x in wanted]
    np.testing.assert_allclose([x.score for x in found], [x[1] for x in wanted], rtol=1e-4)
    empty = sum(not x.text for x in found)
    assert (empty > 0, empty < len(found)) == (null_answers, True)
    alone = answerer.answer(ASKED[0], CONTEXTS[0], null_answers=null_answers)
    assert alone.text == found[0].text
    rows = [(ASKED[0], CONTEXTS[0]), (" ", ""), (ASKED[1], CONTEXTS[1])]
    streamed = list(answerer.answer_stream(rows, null_answers=null_answers, chunk_rows=2))
    assert [x.text for x in streamed] == [found[0].text, "", found[1].text]


def test_answer_writes_a_line_for_each_line(reader, tmp_path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text(f"{ASKED[0]}\t{CONTEXTS[0]}\n\n{ASKED[1]}\t{CONTEXTS[1]}\n", encoding="utf-8")
    first, second = QuestionAnswerer(reader / "out").answers(ASKED[:2], CONTEXTS[:2], stride=2)
    capsys.readouterr()
    invoke("predict", reader / "out", lines, "--stride", "2")
    assert capsys.readouterr().out.split("\n") == [first.text, "", second.text, ""]
    invoke("predict", reader / "out", lines, "--jsonl", "--stride", "2")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(x["line"], x["answer"]) for x in found] == [
        (1, first.text), (2, ""), (3, second.text)
    ]  # fmt: skip
    assert (found[2]["start"], found[2]["end"]) == (second.start, second.end)
