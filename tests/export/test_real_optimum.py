"""`--layout optimum` opened by optimum-onnx itself, in an environment that has it.

`make test-optimum` makes one and names its Python in COMPRESS_OPTIMUM. transformers there is
version 4, so it cannot be the environment of this package.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from compressor.model.architectures import ARCHITECTURES, architecture
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.run import export_checkpoint
from compressor.request.recipe import ExportRequest
from tests.export.test_layout_optimum import save_pruned
from tests.helpers.recipes import request
from tests.helpers.sentence_encoders import save_encoder
from tests.helpers.tiny import ragged_batch, word_tokenizer

PYTHON = os.environ.get("COMPRESS_OPTIMUM")
READER = Path(__file__).parents[1] / "helpers" / "with_optimum.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="needs the environment that `make test-optimum` makes"),
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> tuple[Path, Path]:
    """Pruned checkpoints by architecture, and what optimum answers with their exports."""
    assert PYTHON is not None
    roots, exports = tmp_path_factory.mktemp("checkpoints"), tmp_path_factory.mktemp("exports")
    for name in ARCHITECTURES:
        pruned = save_pruned(name, roots / name)
        wanted = request(ExportRequest, model=str(pruned), layout="optimum")
        export_checkpoint(wanted, exports / name)
        batch = ragged_batch(open_checkpoint(str(pruned)).model, rows=4)
        batch.pop("decoder_input_ids", None)
        np.savez(exports / name / "batch.npz", **{key: x.numpy() for key, x in batch.items()})
    results = tmp_path_factory.mktemp("results")
    done = subprocess.run(
        [PYTHON, "-I", READER, exports, results], capture_output=True, text=True, cwd=results
    )
    assert done.returncode == 0, done.stderr
    return roots, results


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_optimum_answers_as_pytorch(name: str, opened):
    roots, results = opened
    model = open_checkpoint(str(roots / name / "pruned")).model
    answers = np.load(results / f"{name}.npz")
    batch = ragged_batch(model, rows=4)
    batch.pop("decoder_input_ids", None)
    assert answers["tokens"].tolist() == word_tokenizer()("w3 w9 w40")["input_ids"]
    with torch.no_grad():
        if architecture(name).decoder is None:
            logits = model(**batch).logits.numpy()
            np.testing.assert_allclose(answers["logits"], logits, atol=1e-4 * np.abs(logits).max())
            return
        for beams in (1, 4):
            rows = model.generate(**batch, num_beams=beams, do_sample=False, max_new_tokens=12)
            assert answers[f"beams {beams}"].tolist() == rows.tolist()
            assert rows.shape[1] > 3  # or nothing would be compared


def test_sentence_transformers_opens_it_as_its_onnx_backend(tmp_path):
    save_encoder(tmp_path / "model", "bert", "mean", dense=True)
    wanted = request(ExportRequest, model=str(tmp_path / "model"), layout="optimum")
    export_checkpoint(wanted, tmp_path / "out")
    reader = (
        "import json, sys; from sentence_transformers import SentenceTransformer; "
        "model = SentenceTransformer(sys.argv[1], backend='onnx', "
        "model_kwargs={'provider': 'CPUExecutionProvider'}); "
        "print(json.dumps(model.encode(['w3 w4 w5', 'w7']).tolist()))"
    )
    done = subprocess.run(
        [PYTHON, "-I", "-c", reader, tmp_path / "out"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    with torch.no_grad():
        for text, actual in zip(["w3 w4 w5", "w7"], json.loads(done.stdout), strict=True):
            batch = checkpoint.tokenizer(text, return_tensors="pt")
            np.testing.assert_allclose(actual, checkpoint.model(**batch).logits[0], atol=1e-5)
