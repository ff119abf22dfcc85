"""The notebook's cells run from top to bottom, on fewer rows and the model's first layer."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import pytest

from compressor.request import example
from tests.helpers import toy

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook" / "prune_a_classifier.ipynb"
# What the test makes smaller: as it stands in the notebook, and as it runs here.
SMALLER = {
    "ROWS = 500": "ROWS = 64", "BENCH_SECONDS = 0.5": "BENCH_SECONDS = 0.02",
    'str(examples / "help-desk")': '"first-layer"',
}  # fmt: skip


@pytest.mark.slow
def test_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = "\n\n".join(sources)
    for original, smaller in SMALLER.items():
        assert script.count(original) == 1
        script = script.replace(original, smaller)
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    toy.first_layers(Path(example.help_desk()[0]), tmp_path / "first-layer")
    exec(compile(script, NOTEBOOK.name, "exec"), {})
    shown = capsys.readouterr().out
    assert "macs-0.3-int8" in shown
    assert "same" in shown
    assert (tmp_path / "pruned.png").stat().st_size > 0
    assert (tmp_path / "pruned" / "report.html").exists()
