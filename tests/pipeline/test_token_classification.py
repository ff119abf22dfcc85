"""Token classifiers: an artifact's entities against those of transformers, and its lines."""

from __future__ import annotations

import json
import random
import shutil
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from seqeval.metrics import f1_score

import compressor
from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.report.schema import load_report
from compressor.runtime import TokenClassifier
from compressor.tasks import TASKS
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.heads import TAGS, byte_tokenizer, piece_words

pytestmark = pytest.mark.slow

rng = random.Random(5)
SENTENCES = [piece_words(rng) for _ in range(20)]
# Punctuation, capitals, accents, unknown letters, spaces in a row, and nothing that is a token.
TEXTS = [*(" ".join(x) for x in SENTENCES), "Abba, cd-ef's  häb.Zz a", "é", "xyz", "\u200d"]


@pytest.fixture(scope="module")
def made(task_run):
    return task_run("token-classification")


@pytest.mark.parametrize(
    ("options", "close"),
    [({}, 1e-5), ({"engine": "openvino"}, 1e-5), ({"precision": "int8"}, 0.05)],
)
def test_entities_are_those_of_transformers(options: dict[str, str], close: float, made):
    """Its pipeline, each text alone; of int8 the probabilities may differ, and few labels."""
    tagger = TokenClassifier(made / "out", **{"precision": "fp32"} | options)
    pipeline: Any = transformers.pipeline(
        "token-classification",
        model=compressor.load(made / "out"),
        tokenizer=open_checkpoint(str(made / "out")).tokenizer,
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
    for answer in (tagger.tag_stream, tagger.tag_words, lambda text: tagger.tag_words([text])):
        with raises(UsageError, "text-not-in-a-list"):
            answer("one text")


def test_words_without_marks_end_at_spaces(made, tmp_path):
    """With a byte-level tokenizer, as RoBERTa has; against the pipeline of transformers."""
    tokenizer = byte_tokenizer()
    shutil.copytree(made / "out", tmp_path / "out")
    tokenizer.backend_tokenizer.save(str(tmp_path / "out" / "onnx" / "tokenizer.json"))
    pipeline: Any = transformers.pipeline(
        "token-classification", model=compressor.load(made / "out"), tokenizer=tokenizer,
        aggregation_strategy="first",
    )  # fmt: skip
    texts = ["abab, ab-cd e's abc", "a b", "hij"]
    tagger = TokenClassifier(tmp_path / "out", precision="fp32", verify=False)
    for text, found in zip(texts, tagger.tag(texts), strict=True):
        with pytest.warns(UserWarning, match="heuristic"):
            wanted = [(x["entity_group"], x["start"], x["end"]) for x in pipeline(text)]
        assert [(x.label, x.start, x.end) for x in found] == wanted


def test_words_have_the_label_of_their_first_token(made):
    """By PyTorch, each sentence alone, aligned by transformers."""
    opened = open_checkpoint(str(made / "out"))
    wanted = []
    for words in SENTENCES:
        inputs = opened.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            best = opened.model(**inputs).logits[0].argmax(-1).tolist()
        firsts = {x: i for i, x in reversed([*enumerate(inputs.word_ids())]) if x is not None}
        wanted.append([TAGS[best[firsts[word]]] for word in range(len(words))])
    tagger = TokenClassifier(made / "out", precision="fp32")
    assert tagger.tag_words(SENTENCES) == wanted
    assert tagger.tag_words([["\u200d", "ab"]])[0][0] == "O"
    first, *others = tagger.tag_words([["ab", "", "cd", "ef"], ["ab", "cd", "ef"], ["ab cd", "ef"]])
    assert [first[0], *first[2:]] == others[0], "an empty word moves no labels"
    assert first[1] == "O"
    assert others[1] == [others[0][0], others[0][2]], "one label for a word with a space"
    with pytest.warns(UserWarning, match="1 of 1 texts were cut"):
        (cut,) = tagger.tag_words([["abcdefghij"] * 5])
    assert cut[4:] == ["O"]


def test_the_report_has_the_f1_of_its_answers(made, tmp_path):
    report = load_report(made / "out" / "report.json")
    variant = next(x for x in report.variants if x.name == "macs-0.5")
    rows = TASKS["token-classification"].read_rows(made / "test.conll", labels=TAGS)
    tagger = TokenClassifier(made / "out", precision="fp32")
    answers = tagger.tag_words([text.split() for text in rows.sources])
    expected = 100 * f1_score([x.split() for x in rows.targets], answers)
    assert variant.quality.metrics["entity_f1"] == pytest.approx(expected)
    invoke("gate", made / "out" / "report.json", "--max-metric-drop", "entity_recall=100")
    invoke("study", "heads", "-m", made / "model", "--test", made / "test.conll", "-o",
           tmp_path / "study")  # fmt: skip


def test_tag_writes_a_line_for_each_line(made, tmp_path, capsys):
    (tmp_path / "lines.txt").write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\n", encoding="utf-8")
    first, second = TokenClassifier(made / "out").tag(TEXTS[:2])
    capsys.readouterr()
    invoke("predict", made / "out", tmp_path / "lines.txt")
    shown = capsys.readouterr().out.split("\n")
    assert shown == [
        *("\t".join(f"{x.label}\t{x.text}" for x in found) for found in (first, [], second)),
        "",
    ]
    invoke("predict", made / "out", tmp_path / "lines.txt", "--jsonl")
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [x["line"] for x in objects] == [1, 2, 3]
    assert [(x["label"], x["start"], x["end"]) for x in objects[2]["entities"]] == [
        (x.label, x.start, x.end) for x in second
    ]
    with raises(InputError, "artifact-of-another-task"):
        invoke("classify", made / "out", tmp_path / "lines.txt")
