"""What a run writes for every task; answers of summaries, numbers and rankings, and their lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rouge_score import rouge_scorer
from scipy.stats import pearsonr, spearmanr

import compressor
from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.report.schema import load_report
from compressor.runtime import Generator, Regressor, Reranker, Translator
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.heads import save_scorer, write_queries
from tests.pipeline.task_runs import RUNS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", RUNS)
def test_a_task_is_verified_judged_and_described(name, task_run, tmp_path, capsys):
    job, folder = RUNS[name], task_run(name)
    out, dense, test = folder / "out", folder / "out" / ".compress" / "dense", folder / job.test
    report = load_report(out / "report.json")
    assert report.task == job.task
    assert [(x.rule, x.met) for x in report.gate] == [(f"max-metric-drop {job.drop}=1000", True)]
    pruned = next(x for x in report.variants if x.family != "dense")
    wanted = [word for word in ("reconstruct", "distill") if word in str(job.options)]
    assert all(word in pruned.recovery for word in wanted)
    card = (out / "README.md").read_text(encoding="utf-8")
    runtime, auto_class = job.classes
    assert f"from compressor.runtime import {runtime}\n" in card
    assert f"from transformers import {auto_class}\n" in card

    invoke("verify", out)
    invoke("gate", out / "report.json", "--max-metric-drop", f"{job.drop}=1000")
    invoke("report", out / "report.json", "-o", tmp_path / "reports")
    assert pruned.name in (tmp_path / "reports" / "report.md").read_text(encoding="utf-8")
    capsys.readouterr()
    invoke("evaluate", dense, out, "--test", test, "--resamples", "100", "--json")
    evaluated = json.loads(capsys.readouterr().out)["artifacts"]
    assert all(job.drop in x["quality"]["metrics"] for x in evaluated)
    assert any(x["comparisons"] for x in evaluated)
    invoke("inspect", out, "--json")
    assert json.loads(capsys.readouterr().out)["task"] == job.task


@pytest.fixture(scope="module")
def summarized(task_run):
    return task_run("summarization")


@torch.no_grad()
def test_summaries_are_those_of_transformers_with_the_models_settings(summarized):
    opened = open_checkpoint(str(summarized / "out"), task="summarization")
    texts = toy.sentences(6, seed=3)
    batch: Any = opened.tokenizer(texts, return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    model: Any = opened.model
    runtime = Generator(summarized / "out")
    for beams in (None, 1):
        ids = model.generate(**inputs, **({} if beams is None else {"num_beams": beams}))
        wanted = opened.tokenizer.batch_decode(ids, skip_special_tokens=True)
        assert runtime.generate_texts(texts, num_beams=beams) == wanted
    assert list(runtime.generate_stream([texts[0], " "], num_beams=1)) == [wanted[0], ""]
    with raises(InputError, "artifact-of-another-task"):
        Translator(summarized / "out")


def test_the_report_has_the_scores_of_its_answers(summarized):
    (variant,) = load_report(summarized / "out" / "report.json").variants
    rows = TASKS["summarization"].read_rows(summarized / "test.tsv")
    answers = Generator(summarized / "out").generate_texts(rows.sources)
    scorer = rouge_scorer.RougeScorer(["rouge1"], use_stemmer=True)
    pairs = zip(rows.targets, answers, strict=True)
    scores = [scorer.score(*pair)["rouge1"].fmeasure for pair in pairs]
    assert variant.quality.metrics["rouge1"] == pytest.approx(100 * sum(scores) / len(scores))
    assert [c.metric for c in variant.comparisons] == ["rouge2", "rouge1", "rougelsum"]
    for name in ("report.json", "report.html", "report.md", "README.md"):
        text = (summarized / "out" / name).read_text(encoding="utf-8")
        assert re.findall(".*(?:translati|translator).*", text, re.IGNORECASE) == [], name


def test_predict_writes_a_line_for_each_line(summarized, tmp_path, monkeypatch):
    texts, path = [*toy.sentences(3, seed=4), ""], tmp_path / "texts"
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    given = ("predict", summarized / "out", path, "--num-beams", "2", "--max-new-tokens", "6")
    invoke(*given, "-o", tmp_path / "plain")
    wanted = Generator(summarized / "out").generate_texts(texts, num_beams=2, max_new_tokens=6)
    assert (tmp_path / "plain").read_text(encoding="utf-8").split("\n") == [*wanted, ""]
    # A summary of several lines stays one line.
    monkeypatch.setattr(Generator, "decode", lambda self, ids: ["one\r\ntwo"] * len(ids))
    invoke(*given, "-o", tmp_path / "lines")
    assert (tmp_path / "lines").read_bytes() == b"one  two\n" * 3 + b"\n"


QUERY, TEXTS = "w3 w4", [*toy.sentences(9, seed=5), "w3"]


@torch.no_grad()
def by_pytorch(directory: Path, texts, pairs) -> np.ndarray:
    """Logits of the saved model, each row alone, so that nothing is padded."""
    model = compressor.load(directory)
    tokenizer = open_checkpoint(str(directory)).tokenizer
    names = ("input_ids", "attention_mask", "token_type_ids")
    options = {"return_tensors": "pt", "return_token_type_ids": True}
    batches = [tokenizer(*pair, **options) for pair in zip(texts, pairs, strict=True)]
    return np.array([model(**{n: b[n] for n in names}).logits[0].numpy() for b in batches])


def test_numbers_are_those_of_pytorch(task_run, tmp_path):
    folder = task_run("regression")
    out, pairs = folder / "out", TEXTS[::-1]
    regressor = Regressor(out, precision="fp32")
    expected = by_pytorch(out, TEXTS, pairs)[:, 0]
    np.testing.assert_allclose(regressor.predict(TEXTS, pairs), expected, atol=1e-4)
    rounded = Regressor(out, precision="int8").predict(TEXTS, pairs)
    np.testing.assert_allclose(rounded, expected, atol=0.2)

    report = load_report(out / "report.json")
    variant = next(x for x in report.variants if x.precision == "fp32")
    rows = TASKS["regression"].read_rows(folder / "test.tsv")
    answers, right = regressor.predict(rows.sources, rows.pairs), [float(x) for x in rows.targets]
    assert variant.quality.metrics == pytest.approx(
        {"spearman": 100 * spearmanr(answers, right).statistic,
         "pearson": 100 * pearsonr(answers, right).statistic}, abs=1e-4,
    )  # fmt: skip

    lines = tmp_path / "lines.tsv"
    lines.write_text("".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, pairs, strict=True)) + "\n")
    invoke("predict", out, lines, "--pairs", "--precision", "fp32", "-o", tmp_path / "numbers")
    *written, blank = (tmp_path / "numbers").read_text(encoding="utf-8").split("\n")[:-1]
    np.testing.assert_allclose([float(x) for x in written], expected, atol=1e-4)
    assert blank == ""


def test_ranks_are_those_of_pytorch(task_run):
    """A model of two classes, whose score is the difference of its logits."""
    out = task_run("reranking") / "out"
    reranker = Reranker(out, precision="fp32")
    logits = by_pytorch(out, [QUERY] * len(TEXTS), TEXTS)
    expected = logits[:, 1] - logits[:, 0]
    np.testing.assert_allclose(reranker.scores([QUERY] * len(TEXTS), TEXTS), expected, atol=1e-4)
    ranked = reranker.rank(QUERY, TEXTS)
    assert [x.number for x in ranked] == np.argsort(-expected).tolist()
    assert reranker.rank(QUERY, TEXTS, top_k=3) == ranked[:3]
    assert reranker.rank(QUERY, ["w3", "w3"])[0].number == 0
    assert reranker.rank(QUERY, []) == []
    variant = next(x for x in load_report(out / "report.json").variants if x.precision == "fp32")
    assert set(variant.quality.metrics) == {"ndcg@10", "mrr@10", "map"}
    assert variant.quality.rows < 24 - 8  # the queries that were held out
    text = (out / "report.md").read_text(encoding="utf-8")
    assert f"Quality on the test rows, means over {variant.quality.rows} queries." in text
    assert "print(model.rank(" in (out / "README.md").read_text(encoding="utf-8")


def test_lines_are_ranked_for_a_query(task_run, tmp_path, capsys):
    out, lines = task_run("reranking") / "out", tmp_path / "lines.txt"
    ranked = Reranker(out, precision="fp32").rank(QUERY, TEXTS)
    lines.write_text("\n".join(["", *TEXTS]) + "\n", encoding="utf-8")
    given = ("predict", out, lines, "--precision", "fp32", "--query", QUERY, "--chunk-lines", "4")
    invoke(*given, "-o", tmp_path / "ranked")
    written = [x.split("\t") for x in (tmp_path / "ranked").read_text("utf-8").splitlines()]
    assert [text for _, text in written] == [TEXTS[x.number] for x in ranked]
    np.testing.assert_allclose([float(x) for x, _ in written], [x.score for x in ranked], atol=1e-4)
    with raises(UsageError, "query-missing"):
        invoke("predict", out, lines, "-o", tmp_path / "none")


def test_the_task_is_that_of_the_option_and_recorded(tmp_path, capsys):
    """A model with one output is for regression, unless `--task` or its artifact says otherwise."""
    dense, rows = save_scorer(tmp_path / "dense"), write_queries(tmp_path / "rows.tsv")
    asked = ("--task", "reranking")

    def task_of(*words: object) -> str:
        capsys.readouterr()
        invoke("inspect", *words, "--json")
        return json.loads(capsys.readouterr().out)["task"]

    assert task_of(dense) == "regression"
    assert task_of(dense, *asked) == "reranking"
    scores = tmp_path / "scores.json"
    invoke("score", "-m", dense, "--calibration", rows, *asked, "-o", scores)
    keep = ("--scores", scores, "--keep", "heads=0.5")
    invoke("prune", "-m", dense, *asked, *keep, "-o", tmp_path / "pruned")
    assert task_of(tmp_path / "pruned") == "reranking"
