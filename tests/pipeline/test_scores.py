"""Regression and reranking: an artifact's answers against PyTorch's, its report and its lines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

import compressor
from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.report.schema import load_report
from compressor.runtime import Regressor, Reranker
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.score_models import save_scorer, write_queries

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


@pytest.mark.slow
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
    with raises(InputError, "artifact-of-another-task") as caught:
        invoke("classify", out, lines)
    assert "compress predict" in str(caught.value)


@pytest.mark.slow
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


@pytest.mark.slow
def test_lines_are_ranked_for_a_query(task_run, tmp_path, capsys):
    out, lines = task_run("reranking") / "out", tmp_path / "lines.txt"
    ranked = Reranker(out, precision="fp32").rank(QUERY, TEXTS)
    lines.write_text("\n".join(["", *TEXTS]) + "\n", encoding="utf-8")
    given = ("predict", out, lines, "--precision", "fp32", "--query", QUERY, "--chunk-lines", "4")
    invoke(*given, "-o", tmp_path / "ranked")
    written = [x.split("\t") for x in (tmp_path / "ranked").read_text("utf-8").splitlines()]
    assert [text for _, text in written] == [TEXTS[x.number] for x in ranked]
    np.testing.assert_allclose([float(x) for x, _ in written], [x.score for x in ranked], atol=1e-4)
    invoke(*given, "--top-k", "2", "--jsonl", "-o", tmp_path / "best")
    best = [json.loads(x) for x in (tmp_path / "best").read_text("utf-8").splitlines()]
    assert [(x["line"], x["text"]) for x in best] == [
        (x.number + 2, TEXTS[x.number]) for x in ranked[:2]
    ]
    with raises(UsageError, "query-missing"):
        invoke("predict", out, lines, "-o", tmp_path / "none")
    lines.write_text(f"{'w5 ' * 60}\n" * 6, encoding="utf-8")
    capsys.readouterr()
    invoke(*given, "-o", tmp_path / "cut")
    assert capsys.readouterr().err.count("6 of the texts were cut") == 1  # not for each chunk


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
    invoke(
        "study", "agreement", "-m", dense, *asked, "--calibration", rows, "--other", rows,
        "--method", "taylor", "-o", tmp_path / "study", "--device", "cpu",
    )  # fmt: skip
    scores = tmp_path / "scores.json"
    invoke("score", "-m", dense, "--calibration", rows, *asked, "-o", scores)
    keep = ("--scores", scores, "--keep", "heads=0.5")
    invoke("prune", "-m", dense, *asked, *keep, "-o", tmp_path / "pruned")
    assert task_of(tmp_path / "pruned") == "reranking"
