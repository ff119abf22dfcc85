"""A model for summaries: an artifact's summaries against those of transformers, and its report."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from rouge_score import rouge_scorer

from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.report.schema import load_report
from compressor.runtime import Generator, Translator
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(task_run):
    return task_run("summarization")


@torch.no_grad()
def test_summaries_are_those_of_transformers_with_the_models_settings(made):
    opened = open_checkpoint(str(made / "out"), task="summarization")
    texts = toy.sentences(6, seed=3)
    batch: Any = opened.tokenizer(texts, return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    model: Any = opened.model
    runtime = Generator(made / "out")
    for beams in (None, 1):
        ids = model.generate(**inputs, **({} if beams is None else {"num_beams": beams}))
        wanted = opened.tokenizer.batch_decode(ids, skip_special_tokens=True)
        assert runtime.generate_texts(texts, num_beams=beams) == wanted
    assert list(runtime.generate_stream([texts[0], " "], num_beams=1)) == [wanted[0], ""]
    with raises(InputError, "artifact-of-another-task") as caught:
        Translator(made / "out")
    assert "open it with Generator" in str(caught.value)


def test_the_report_has_the_scores_of_its_answers(made):
    (variant,) = load_report(made / "out" / "report.json").variants
    rows = TASKS["summarization"].read_rows(made / "test.tsv")
    answers = Generator(made / "out").generate_texts(rows.sources)
    scorer = rouge_scorer.RougeScorer(["rouge1"], use_stemmer=True)
    pairs = zip(rows.targets, answers, strict=True)
    scores = [scorer.score(*pair)["rouge1"].fmeasure for pair in pairs]
    assert variant.quality.metrics["rouge1"] == pytest.approx(100 * sum(scores) / len(scores))
    assert [c.metric for c in variant.comparisons] == ["rouge2", "rouge1", "rougelsum"]
    texts = {
        name: (made / "out" / name).read_text(encoding="utf-8")
        for name in ("report.json", "report.html", "report.md", "README.md")
    }
    assert 'pipeline_tag: "summarization"' in texts["README.md"]
    assert "ROUGE-2" in texts["README.md"]
    assert "own summaries" in texts["report.json"]
    for name, text in texts.items():
        assert re.findall(".*(?:translati|translator).*", text, re.IGNORECASE) == [], name


def test_predict_writes_a_line_for_each_line(made, tmp_path, monkeypatch):
    texts, path = [*toy.sentences(3, seed=4), ""], tmp_path / "texts"
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    given = ("predict", made / "out", path, "--num-beams", "2", "--max-new-tokens", "6")
    invoke(*given, "-o", tmp_path / "plain")
    wanted = Generator(made / "out").generate_texts(texts, num_beams=2, max_new_tokens=6)
    assert (tmp_path / "plain").read_text(encoding="utf-8").split("\n") == [*wanted, ""]
    # A summary of several lines stays one line, but is whole in JSON.
    monkeypatch.setattr(Generator, "decode", lambda self, ids: ["one\r\ntwo"] * len(ids))
    invoke(*given, "-o", tmp_path / "lines")
    assert (tmp_path / "lines").read_bytes() == b"one  two\n" * 3 + b"\n"
    invoke(*given, "--jsonl", "-o", tmp_path / "json")
    first, *_ = (tmp_path / "json").read_text(encoding="utf-8").splitlines()
    assert json.loads(first) == {"line": 1, "summary": "one\r\ntwo"}
