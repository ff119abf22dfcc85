"""What `compress inspect` says of measured models is what was measured (benchmarks/results)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compressor.tasks import TASKS
from compressor.tasks.tried import Tried

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
NAMES = {"entity F1": "entity_f1", "answer F1": "answer_f1", "nDCG@10": "ndcg@10"}


def read(name: str):
    return json.loads((RESULTS / name).read_text("utf-8"))


def runs(task: str) -> list[tuple[Tried, str]]:
    first = TASKS[task].first_runs
    assert first is not None
    return [(x, how) for x, how in ((first.untrained, ""), (first.distilled, "+distill")) if x]


def agree(tried: Tried, difference: float, interval: list[float]):
    assert tried.change == pytest.approx(difference, abs=0.0051)
    assert tried.interval == pytest.approx(interval, abs=0.0051)


@pytest.mark.parametrize(("task", "name"), [("classification", "classifier"), ("translation",) * 2])
def test_of_runs(task: str, name: str):
    for tried, how in runs(task):
        # Of classifiers tokens go by default; without training they were measured without.
        units = "-all" if how and task == "classification" else ""
        file = f"tradeoff-{name if name != task else 'translator'}-reconstruct{how}{units}.json"
        report = read(file)
        (cut,) = (x for x in report["variants"] if x["name"] == f"macs-{tried.macs:g}")
        (found,) = (x for x in cut["comparisons"] if x["metric"] == tried.metric.lower())
        agree(tried, found["difference"], found["interval"])
        assert tried.parameters == report["dense"]["parameters"]


@pytest.mark.parametrize(
    "task", ["regression", "reranking", "token-classification", "question-answering"]
)
def test_of_tasks(task: str):
    ((tried, _),) = runs(task)
    (row,) = (
        x
        for x in read("tasks.json")
        if (x["task"], x["precision"]) == (task, "fp32")
        and abs(x["macs"] - tried.macs) < 0.01
        and not x["repair"].startswith("distilled")
    )
    difference, *interval = row["differences"][NAMES.get(tried.metric, tried.metric.lower())]
    agree(tried, difference, interval)


def test_of_embeddings():
    rows = [x for x in read("embedding.json") if x["precision"] == "fp32"]

    def mean(macs: float, distilled: bool) -> float:
        scores = [
            x["spearman"]
            for x in rows
            if abs(x["macs"] - macs) < 0.01 and bool(x["distilled"]) is distilled
        ]
        assert len(scores) == 3
        return sum(scores) / 3

    for tried, how in runs("embedding"):
        assert tried.change == pytest.approx(
            mean(tried.macs, bool(how)) - mean(1, False), abs=0.005
        )
