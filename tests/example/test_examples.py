"""The bundled models and sentences, and the notebook: complete, disjoint, licensed, and running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
import torch
import transformers

from compressor import example
from tests.helpers import toy

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "tatoeba_en_de" / "check_sentences.py"
FOLDER = ROOT / "examples" / "help_desk"
NOTEBOOK = ROOT / "examples" / "notebook" / "prune_a_classifier.ipynb"
# What the test makes smaller: as it stands in the notebook, and as it runs here.
SMALLER = {
    "ROWS = 500": "ROWS = 64", "BENCH_SECONDS = 0.5": "BENCH_SECONDS = 0.02",
    'str(examples / "help-desk")': '"first-layer"',
}  # fmt: skip


def rows(path: Path, header: str = "text\tlabel") -> list[tuple[str, str]]:
    first, *lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    assert first == header
    return [(first, second) for first, second in (line.split("\t") for line in lines)]


def test_the_test_set_is_large_and_was_not_calibrated_on_and_has_its_license():
    english = [pair[0] for pair in rows(example.test(), "en\tde")]
    assert len(english) == len(set(english)) == 2000
    assert not set(english) & {pair[0] for pair in rows(example.calibration(), "en\tde")}
    text = (example.directory() / "LICENSE.txt").read_text(encoding="utf-8")
    for needed in ("Apache License, Version 2.0", "CC BY 2.0 FR", "tatoeba.org", "manythings.org"):
        assert needed in text


def test_the_script_names_sentences_that_were_trained_on(tmp_path: Path):
    for name in ("train.tsv", "valid.tsv"):
        (tmp_path / name).write_text(f"en\tde\nOnly in {name}.\tNur in {name}.\n", "utf-8")
    folder = tmp_path / "example"
    folder.mkdir()
    for path in (tmp_path / "test.tsv", folder / "test.tsv"):
        path.write_bytes(example.test().read_bytes())
    text = example.calibration().read_text("utf-8")
    (folder / "calibration.tsv").write_text(f"{text}only IN -- train.tsv!\tNeu.\n", "utf-8")
    for checked, status in ((example.directory(), 0), (folder, 1)):
        command = [sys.executable, SCRIPT, "--data", tmp_path, "--example", checked]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == status
    assert "the English side is Tatoeba's train.tsv:2" in done.stdout


def test_bundled_rows_are_what_the_generator_makes(tmp_path: Path):
    command = [sys.executable, FOLDER / "generate.py", "--output", tmp_path]
    subprocess.run(command, check=True)
    _, calibration, test = example.help_desk()
    assert (tmp_path / "calibration.tsv").read_bytes() == calibration.read_bytes()
    assert (tmp_path / "test.tsv").read_bytes() == test.read_bytes()
    parts = {name: rows(tmp_path / f"{name}.tsv") for name in ("train", "calibration", "test")}
    assert len(parts["train"]) == 12_000
    texts = [text for part in parts.values() for text, _ in part]
    assert len(texts) == len(set(texts))  # nothing that was trained on is measured or scored on


@pytest.mark.slow
@torch.no_grad()
def test_accuracy_is_what_the_page_says():
    folder, _, test = example.help_desk()
    # Stored in float16, in which a CPU takes ten times as long.
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    model = load(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found, right = sorted(rows(test), key=lambda row: len(row[0])), 0  # with little padding
    for start in range(0, len(found), 64):
        texts, labels = zip(*found[start : start + 64], strict=True)
        batch = tokenizer([*texts], return_tensors="pt", padding=True)
        best = model(**batch).logits.argmax(-1).tolist()
        right += sum(model.config.id2label[i] == x for i, x in zip(best, labels, strict=True))
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"{100 * right / len(found):.1f} % of `test.tsv`" in page


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
