"""Regression and reranking through the whole program: run, gate, verify, serve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

import compressor
from compressor import commands
from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.inputs import DataRows, hold_out
from compressor.report.schema import load_report
from compressor.runtime import Regressor, Reranker
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.score_models import save_scorer, write_queries, write_scores

QUERY, TEXTS = "w3 w4", [*toy.sentences(9, seed=5), "w3"]
QUICK = ("--no-bench", "--resamples", "100", "--device", "cpu")


def scorer(directory: Path, outputs: int = 1) -> Path:
    """One layer, whose graphs are exported the fastest."""
    return toy.first_layers(save_scorer(directory / "three-layers", outputs), directory / "model")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory) -> Path:
    """A folder with a regression model, its data, and what a run made of it."""
    root = tmp_path_factory.mktemp("regression")
    calibration, test = write_scores(root / "a.tsv", 40), write_scores(root / "b.tsv", 30, seed=1)
    (root / "text.tsv").write_text("w3 w4\tw5\n" * 8, encoding="utf-8")
    invoke(
        "run", "-m", scorer(root), "--calibration", calibration, "--test", test, "--macs", "0.6",
        "--precision", "fp32,int8", "-o", root / "out", *QUICK,
        "--recover", "reconstruct+distill", "--distill-epochs", "1",
        "--distill-text", root / "text.tsv", "--max-metric-drop", "pearson=200",
    )  # fmt: skip
    return root


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Path:
    """The same of a reranker with two classes, searched on half of the queries."""
    root = tmp_path_factory.mktemp("reranking")
    calibration = write_queries(root / "a.tsv", 12)
    test = write_queries(root / "b.tsv", 24, seed=1)
    invoke(
        "run", "-m", scorer(root, 2), "--task", "reranking", "--calibration", calibration,
        "--test", test, "--max-drop", "100", "--drop-proof", "measured", "-o", root / "out",
        *QUICK, "--recover", "none", "--max-metric-drop", "ndcg@10=1000",
    )  # fmt: skip
    return root


@torch.no_grad()
def by_pytorch(directory: Path, texts, pairs=None) -> np.ndarray:
    """Logits of the saved model, each row alone, so that nothing is padded."""
    model = compressor.load(directory)
    tokenizer = open_checkpoint(str(directory)).tokenizer
    names = ("input_ids", "attention_mask", "token_type_ids")
    rows = zip(texts, pairs or [None] * len(texts), strict=True)
    options = {"return_tensors": "pt", "return_token_type_ids": True}
    batches = [tokenizer(text, pair, **options) for text, pair in rows]
    return np.array([model(**{n: b[n] for n in names}).logits[0].numpy() for b in batches])


@pytest.mark.slow
def test_a_regression_model_through_run_gate_verify_and_predict(numbers, tmp_path, capsys):
    out = numbers / "out"
    regressor = Regressor(out, precision="fp32")
    pairs = TEXTS[::-1]
    expected = by_pytorch(out, TEXTS, pairs)[:, 0]
    np.testing.assert_allclose(regressor.predict(TEXTS, pairs), expected, atol=1e-4)
    np.testing.assert_allclose(
        Regressor(out, precision="int8").predict(TEXTS, pairs), expected, atol=0.2
    )

    report = load_report(out / "report.json")
    variant = next(x for x in report.variants if x.precision == "fp32")
    rows = TASKS["regression"].read_rows(numbers / "b.tsv")
    answers, right = regressor.predict(rows.sources, rows.pairs), [float(x) for x in rows.targets]
    found = {"spearman": spearmanr(answers, right), "pearson": pearsonr(answers, right)}
    assert variant.quality.metrics == pytest.approx(
        {name: 100 * x.statistic for name, x in found.items()}, abs=1e-4
    )
    assert [outcome.met for outcome in report.gate] == [True]
    assert "distill" in variant.recovery
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "from compressor.runtime import Regressor" in card
    invoke("verify", out)
    invoke("gate", out / "report.json", "--max-metric-drop", "spearman=200")
    invoke("report", out / "report.json", "-o", tmp_path / "reports")
    assert "Pearson" in (tmp_path / "reports" / "report.md").read_text(encoding="utf-8")
    capsys.readouterr()
    dense = out / ".compress" / "dense"
    invoke("evaluate", dense, out, "--test", numbers / "b.tsv", "--resamples", "100", "--json")
    assert "pearson" in capsys.readouterr().out
    invoke("inspect", out, "--json")
    assert json.loads(capsys.readouterr().out)["task"] == "regression"

    lines = tmp_path / "lines.tsv"
    lines.write_text("".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, pairs, strict=True)) + "\n")
    invoke("predict", out, lines, "--pairs", "--precision", "fp32", "-o", tmp_path / "numbers")
    *written, blank = (tmp_path / "numbers").read_text(encoding="utf-8").split("\n")[:-1]
    np.testing.assert_allclose([float(x) for x in written], expected, atol=1e-4)
    assert blank == ""
    with raises(InputError, "artifact-of-another-task") as caught:
        invoke("classify", out, lines)
    assert "compress predict" in str(caught.value)


@pytest.mark.slow
def test_a_reranker_through_run_verify_and_rerank(ranks, tmp_path, capsys):
    out = ranks / "out"
    reranker = Reranker(out, precision="fp32")
    logits = by_pytorch(out, [QUERY] * len(TEXTS), TEXTS)
    expected = logits[:, 1] - logits[:, 0]
    np.testing.assert_allclose(reranker.scores([QUERY] * len(TEXTS), TEXTS), expected, atol=1e-4)
    ranked = reranker.rank(QUERY, TEXTS)
    assert [x.number for x in ranked] == np.argsort(-expected).tolist()
    assert reranker.rank(QUERY, TEXTS, top_k=3) == ranked[:3]
    assert reranker.rank(QUERY, ["w3", "w3"])[0].number == 0
    assert reranker.rank(QUERY, []) == []

    report = load_report(out / "report.json")
    variant = next(x for x in report.variants if x.precision == "fp32")
    assert set(variant.quality.metrics) == {"ndcg@10", "mrr@10", "map"}
    assert variant.quality.rows < 24 - 8  # the queries that were held out
    assert [outcome.met for outcome in report.gate] == [True]
    text = (out / "report.md").read_text(encoding="utf-8")
    assert f"Quality on the test rows, means over {variant.quality.rows} queries." in text
    assert "print(model.rank(" in (out / "README.md").read_text(encoding="utf-8")
    invoke("verify", out)
    capsys.readouterr()
    invoke("evaluate", out, "--test", ranks / "a.tsv", "--resamples", "100", "--json")
    assert "mrr@10" in capsys.readouterr().out

    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(["", *TEXTS]) + "\n", encoding="utf-8")
    given = ("predict", out, lines, "--precision", "fp32", "--query", QUERY, "--chunk-lines", "4")
    invoke(*given, "-o", tmp_path / "ranked")
    written = [x.split("\t") for x in (tmp_path / "ranked").read_text("utf-8").splitlines()]
    assert [text for _, text in written] == [TEXTS[x.number] for x in ranked]
    np.testing.assert_allclose([float(x) for x, _ in written], [x.score for x in ranked], atol=1e-4)
    invoke(*given, "--top-k", "2", "--jsonl", "-o", tmp_path / "best")
    best = [json.loads(x) for x in (tmp_path / "best").read_text("utf-8").splitlines()]
    assert [x["line"] for x in best] == [x.number + 2 for x in ranked[:2]]
    assert [x["text"] for x in best] == [TEXTS[x.number] for x in ranked[:2]]
    with raises(UsageError, "query-missing"):
        invoke("predict", out, lines, "-o", tmp_path / "none")
    lines.write_text(f"{'w5 ' * 60}\n" * 6, encoding="utf-8")
    capsys.readouterr()
    invoke(*given, "-o", tmp_path / "cut")
    assert capsys.readouterr().err.count("6 of the texts were cut") == 1  # not for each chunk


def test_half_of_the_queries_are_held_out(tmp_path):
    rows = TASKS["reranking"].read_rows(write_queries(tmp_path / "a.tsv", 24))
    parts = hold_out(DataRows(None, rows), seed=0)
    assert not set(parts.search.sources) & set(parts.test.sources)
    few = TASKS["reranking"].read_rows(write_queries(tmp_path / "b.tsv", 12))
    assert few.count > 32  # rows would be enough
    with raises(InputError, "too-few-rows") as caught:
        hold_out(DataRows(None, few), seed=0)
    assert "too few test queries, 11" in str(caught.value)


def test_metrics_and_options_of_other_tasks_are_refused(tmp_path):
    model, rows = save_scorer(tmp_path / "m"), write_scores(tmp_path / "a.tsv")
    given = ("run", "-m", model, "--calibration", rows, "--test", rows, "--keep", "0.5")
    given += ("-o", tmp_path / "out", "--device", "cpu")
    with raises(UsageError, "metric-of-another-task"):
        invoke(*given, "--max-metric-drop", "ndcg@10=1")
    with raises(UsageError, "option-without-use"):
        invoke(*given, "--num-beams", "2")
    with raises(InputError, "column-missing"):
        invoke(*given, "--task", "reranking")
    assert not (tmp_path / "out").exists()


def test_the_task_is_told_where_it_cannot_be_seen_and_is_recorded(tmp_path, capsys):
    """A model with one output is for regression, unless `--task` or its artifact says otherwise."""
    dense, rows = str(save_scorer(tmp_path / "dense")), str(write_queries(tmp_path / "rows.tsv"))
    asked = ["--task", "reranking"]
    for more, task in (([], "regression"), (asked, "reranking")):
        assert commands.invoke(["inspect", dense, *more, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["task"] == task
    study = ["study", "agreement", "-m", dense, *asked, "--calibration", rows, "--other", rows]
    cheap = ["--method", "taylor", "-o", str(tmp_path / "study"), "--device", "cpu"]
    assert commands.invoke([*study, *cheap]) == 0
    scores = str(tmp_path / "scores.json")
    assert commands.invoke(["score", "-m", dense, "--calibration", rows, *asked, "-o", scores]) == 0
    smaller = ["prune", "-m", dense, *asked, "--scores", scores, "--keep", "heads=0.5"]
    assert commands.invoke([*smaller, "-o", str(tmp_path / "pruned")]) == 0
    capsys.readouterr()
    assert commands.invoke(["inspect", str(tmp_path / "pruned"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "reranking"
    assert commands.invoke(["inspect", dense, "--task", "translation"]) == 2
