"""Commands for artifacts work where torch and transformers are not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import compressor
from compressor.runtime import Classifier, Translator
from tests.helpers import runtime_artifacts
from tests.helpers.report_samples import translator_report

pytestmark = pytest.mark.slow

COMMANDS = """
import sys

BLOCKED = ("torch", "transformers", "onnx", "sentencepiece", "scipy", "sklearn", "matplotlib")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
from compressor.commands import invoke as run

classifier, translator, source, report = sys.argv[1:]
statuses = [run(["classify", classifier, source]), run(["translate", translator, source]),
            run(["gate", report, "--max-metric-drop", "bleu=100", "-q"])]
print(statuses, sorted({name.partition(".")[0] for name in sys.modules} & set(BLOCKED)))
"""


def test_the_commands_load_neither_torch_nor_transformers(tmp_path: Path) -> None:
    classifier = runtime_artifacts.classifier("bert").directory
    translator = runtime_artifacts.translator().directory
    texts = ["w3 w9 w40", "", "w5 e\u0301"]
    (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
    report = tmp_path / "report.json"
    translator_report().save(report)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, classifier, translator, tmp_path / "in.txt", report],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=Path(compressor.__file__).parents[1],
    )
    labels = Classifier(classifier).classify(texts)
    translations = Translator(translator).translate(texts)
    assert done.stdout.splitlines()[:6] == [labels[0], "", labels[2], *translations], done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 0, 0] []"
