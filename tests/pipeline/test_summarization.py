"""A model for summaries through the whole program: made, verified, measured, served."""

from __future__ import annotations

import json
import re
from pathlib import Path
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

# As in checkpoints for summaries.
SETTINGS = {
    "num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2, "min_length": 5,
    "max_length": 12, "early_stopping": True, "forced_bos_token_id": 7,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a BART of one layer, its data, and what a run made of it."""
    root = tmp_path_factory.mktemp("summaries")
    dense = toy.first_layers(toy.checkpoint(root / "full", "bart"), root / "model")
    path = dense / "generation_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | SETTINGS
    path.write_text(json.dumps(settings), encoding="utf-8")
    for seed, name in enumerate(("rows", "test")):
        toy.pairs_file(root / f"{name}.tsv", rows=16, seed=seed)
    (root / "text").write_text("\n".join(toy.sentences(4, seed=5)) + "\n", encoding="utf-8")
    invoke(
        "run", "-m", dense, "--task", "summarization", "--calibration", root / "rows.tsv",
        "--test", root / "test.tsv", "--macs", "0.7", "-o", root / "out", "-b", "2",
        "--bench-seconds", "0.05", "--resamples", "100", "--device", "cpu", "--recover", "distill",
        "--distill-epochs", "1", "--distill-text", root / "text", "--max-metric-drop", "rouge2=100",
    )  # fmt: skip
    return root


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


def test_the_report_has_the_scores_of_its_answers(made, capsys):
    report = load_report(made / "out" / "report.json")
    (variant,) = report.variants
    rows = TASKS["summarization"].read_rows(made / "test.tsv")
    answers = Generator(made / "out").generate_texts(rows.sources)
    scorer = rouge_scorer.RougeScorer(["rouge1"], use_stemmer=True)
    pairs = zip(rows.targets, answers, strict=True)
    scores = [scorer.score(*pair)["rouge1"].fmeasure for pair in pairs]
    assert variant.quality.metrics["rouge1"] == pytest.approx(100 * sum(scores) / len(scores))
    assert [c.metric for c in variant.comparisons] == ["rouge2", "rouge1", "rougelsum"]
    assert [(outcome.rule, outcome.met) for outcome in report.gate] == [
        ("max-metric-drop rouge2=100", True)
    ]
    made_of = (made / "out" / "README.md").read_text(encoding="utf-8")
    assert "from compressor.runtime import Generator" in made_of
    assert 'pipeline_tag: "summarization"' in made_of
    assert "ROUGE-2" in made_of
    assert "own summaries" in (made / "out" / "report.json").read_text(encoding="utf-8")
    for path in ("report.json", "report.html", "report.md", "README.md"):
        text = (made / "out" / path).read_text(encoding="utf-8")
        assert re.findall("(?i)translati|translator", text) == []
    invoke("verify", made / "out")
    capsys.readouterr()
    dense = made / "out" / ".compress" / "dense"
    invoke("evaluate", dense, made / "out", "--test", made / "test.tsv", "--resamples", "100")
    assert "rougelsum" in capsys.readouterr().out
    invoke("gate", made / "out" / "report.json", "--max-metric-drop", "rougeLsum=100")


def test_summarize_writes_a_line_for_each_line(made, tmp_path, monkeypatch):
    texts = [*toy.sentences(3, seed=4), ""]
    path = tmp_path / "texts"
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    options = ["--num-beams", "2", "--max-new-tokens", "6", "--device", "cpu"]
    invoke("predict", made / "out", path, *options, "-o", tmp_path / "plain")
    wanted = Generator(made / "out").generate_texts(texts, num_beams=2, max_new_tokens=6)
    assert (tmp_path / "plain").read_text(encoding="utf-8").split("\n") == [*wanted, ""]
    # A summary of several lines stays one line, but is whole in JSON.
    monkeypatch.setattr(Generator, "decode", lambda self, ids: ["one\r\ntwo"] * len(ids))
    invoke("predict", made / "out", path, *options, "-o", tmp_path / "lines")
    assert (tmp_path / "lines").read_bytes() == b"one  two\n" * 3 + b"\n"
    invoke("predict", made / "out", path, *options, "--jsonl", "-o", tmp_path / "json")
    first, *_ = (tmp_path / "json").read_text(encoding="utf-8").splitlines()
    assert json.loads(first) == {"line": 1, "summary": "one\r\ntwo"}
