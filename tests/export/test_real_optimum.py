"""`--layout optimum`: its graphs in plain onnxruntime, and opened by optimum-onnx itself.

`make test-optimum` makes an environment that has it, and names its Python in COMPRESS_OPTIMUM.
transformers there is version 4, so it cannot be the environment of this package.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

from compressor.model.architectures import ARCHITECTURES, architecture
from compressor.model.checkpoint import open_checkpoint
from compressor.options.requests import ExportRequest
from compressor.pipeline.single import export_checkpoint
from tests.helpers import toy
from tests.helpers.runs import request
from tests.helpers.sentence_encoders import save_encoder
from tests.helpers.tiny import ragged_batch, word_tokenizer

PYTHON = os.environ.get("COMPRESS_OPTIMUM")
READER = Path(__file__).parents[1] / "helpers" / "with_optimum.py"
CLASSIFIERS = [name for name in ARCHITECTURES if architecture(name).decoder is None]
pytestmark = pytest.mark.slow
needs_optimum = pytest.mark.skipif(
    not PYTHON, reason="needs the environment that `make test-optimum` makes"
)


def export(model: Path, out: Path) -> None:
    export_checkpoint(request(ExportRequest, model=str(model), layout="optimum"), out)


def read(*arguments: object, cwd: Path) -> str:
    """What a program prints in the environment with optimum."""
    assert PYTHON is not None
    command = [PYTHON, "-I", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@torch.no_grad()
def test_a_classifier_is_one_graph_at_the_root(tmp_path):
    out, pruned = tmp_path / "out", tmp_path / "pruned"
    export(toy.pruned(toy.classifier(tmp_path / "dense"), pruned), out)
    checkpoint = open_checkpoint(str(pruned))
    graph = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    for rows in (5, 1):
        batch = ragged_batch(checkpoint.model, rows=rows)
        batch["token_type_ids"] = batch["input_ids"] % 2
        assert [x.name for x in graph.get_inputs()] == list(batch)
        (actual,) = graph.run(["logits"], {key: value.numpy() for key, value in batch.items()})
        wanted = checkpoint.model(**batch).logits.numpy()
        np.testing.assert_allclose(actual, wanted, atol=1e-4 * np.abs(wanted).max())
    # The names that transformers 4 knows.
    config = json.loads((out / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    ids = transformers.AutoTokenizer.from_pretrained(out)("w5 w7")["input_ids"]
    assert ids == checkpoint.tokenizer("w5 w7")["input_ids"]


@needs_optimum
@torch.no_grad()
def test_optimum_answers_as_pytorch(tmp_path):
    exports, results = tmp_path / "exports", tmp_path / "results"
    results.mkdir()
    wanted = {}
    for name in CLASSIFIERS:
        pruned = toy.pruned(toy.checkpoint(tmp_path / name, name), tmp_path / f"{name}-pruned")
        export(pruned, exports / name)
        model = open_checkpoint(str(pruned)).model
        batch = ragged_batch(model, rows=4)
        np.savez(exports / name / "batch.npz", **{key: x.numpy() for key, x in batch.items()})
        wanted[name] = model(**batch).logits.numpy()
    read(READER, exports, results, cwd=results)
    for name, logits in wanted.items():
        answers = np.load(results / f"{name}.npz")
        np.testing.assert_allclose(answers["logits"], logits, atol=1e-4 * np.abs(logits).max())
        assert answers["tokens"].tolist() == word_tokenizer()("w3 w9 w40")["input_ids"]


@needs_optimum
@torch.no_grad()
def test_sentence_transformers_opens_it_as_its_onnx_backend(tmp_path):
    save_encoder(tmp_path / "model", "bert", "mean", dense=True)
    export(tmp_path / "model", tmp_path / "out")
    reader = (
        "import json, sys; from sentence_transformers import SentenceTransformer; "
        "model = SentenceTransformer(sys.argv[1], backend='onnx', "
        "model_kwargs={'provider': 'CPUExecutionProvider'}); "
        "print(json.dumps(model.encode(['w3 w4 w5', 'w7']).tolist()))"
    )
    answers = json.loads(read("-c", reader, tmp_path / "out", cwd=tmp_path))
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    for text, actual in zip(["w3 w4 w5", "w7"], answers, strict=True):
        batch = checkpoint.tokenizer(text, return_tensors="pt")
        np.testing.assert_allclose(actual, checkpoint.model(**batch).logits[0], atol=1e-5)
