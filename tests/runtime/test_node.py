"""examples/node: an artifact runs in JavaScript, and answers as the runtime does.

`make test-node` installs its packages into a temporary folder, which COMPRESS_NODE names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from compressor.runtime import Classifier
from tests.helpers import runtime_artifacts

FOLDER = Path(os.environ.get("COMPRESS_NODE") or Path(__file__).parents[2] / "examples" / "node")
NODE = shutil.which("node")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPRESS_NODE" not in os.environ
        and (NODE is None or not (FOLDER / "node_modules").is_dir()),
        reason="needs node, and the packages that `make test-node` installs",
    ),
]
TEXTS = ["w3 w9 w40", "w5 w6 w7 w8 w11", "é w59"]


def classify(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", FOLDER / "classify.mjs", *map(str, arguments)],
        capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta", "electra"])
def test_node_answers_as_the_runtime(architecture: str):
    directory = runtime_artifacts.classifier(architecture).directory
    done = classify(directory, *TEXTS)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    model = Classifier(directory)
    assert [answer["label"] for answer in answers] == model.classify(TEXTS)
    for answer, expected in zip(answers, model.probabilities(TEXTS), strict=True):
        assert list(answer["probabilities"]) == model.labels
        assert list(answer["probabilities"].values()) == pytest.approx(list(expected), abs=1e-5)


def test_what_node_cannot_do(tmp_path):
    for artifact, text, said in (
        (runtime_artifacts.translator(), "w3", "holds a translation model"),
        (runtime_artifacts.classifier("bert"), "w3 " * 1000, "a text has 100"),
    ):
        done = classify(artifact.directory, text)
        assert (done.returncode, said in done.stderr) == (1, True)
