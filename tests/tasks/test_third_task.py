"""A task that the package does not know, registered from outside, through the whole program."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compressor.evaluation import METRICS
from compressor.report.schema import load_report
from compressor.runtime.artifact import ARTIFACTS
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.tiny import tiny_model, word_tokenizer
from tests.tasks import rating_task
from tests.tasks.rating_task.runtime import Rater


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The task is known to the tests of this file alone."""
    for table in (TASKS, METRICS):
        monkeypatch.setattr(table, "_rows", dict(table._rows))
    monkeypatch.setitem(ARTIFACTS, "rating", ARTIFACTS["rating"])
    rating_task.register()


def rater(directory: Path) -> Path:
    model: Any = tiny_model("bert")
    model.config.num_labels, model.config.problem_type = 1, "regression"
    model.config.num_hidden_layers = 1
    model = type(model)(model.config).eval()
    model.save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return directory


def rows(path: Path, seed: int) -> Path:
    rng = random.Random(seed)
    lines = [f"{toy.sentence(rng)}\t{rng.gauss(0, 1):.3f}" for _ in range(24)]
    path.write_text("\n".join(["text\tscore", *lines]) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_run_gate_verify_and_predict(tmp_path, capsys):
    model, out = rater(tmp_path / "model"), tmp_path / "out"
    calibration, test = rows(tmp_path / "calibration.tsv", 0), rows(tmp_path / "test.tsv", 1)
    invoke(
        "run", "-m", model, "--task", "rating", "--calibration", calibration, "--test", test,
        "--label-column", "score", "--keep", "0.5", "--precision", "fp32,int8", "-o", out,
        "-b", "2", "--bench-seconds", "0.05", "--resamples", "100", "--device", "cpu",
        "--recover", "reconstruct", "--max-metric-drop", "within_one=100"
    )  # fmt: skip
    report = load_report(out / "report.json")
    variant = next(x for x in report.variants if x.precision == "fp32")
    assert {check.name for check in variant.checks} >= {"ONNX equals PyTorch"}
    assert [outcome.met for outcome in report.gate] == [True]
    # What is measured is what the artifact answers, by NumPy.
    table = [line.split("\t") for line in test.read_text(encoding="utf-8").splitlines()[1:]]
    texts, right = [row[0] for row in table], [float(row[1]) for row in table]
    answers = Rater(out, precision="fp32").numbers(texts)
    expected = 100 * np.mean(abs(np.array(answers) - right) <= 1)
    assert variant.quality.metrics["within_one"] == pytest.approx(expected, abs=1e-9)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "from tests.tasks.rating_task.runtime import Rater" in card
    assert "Within one" in (out / "report.md").read_text(encoding="utf-8")
    invoke("gate", out / "report.json", "--max-metric-drop", "within_one=100")
    invoke("verify", out)
    assert all(row.peak_memory_mib > 10 for row in report.throughput.rows)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts), encoding="utf-8")
    capsys.readouterr()
    invoke("predict", out, lines, "--precision", "fp32")
    printed = [float(line) for line in capsys.readouterr().out.split()]
    assert printed == pytest.approx(answers, abs=6e-4)
