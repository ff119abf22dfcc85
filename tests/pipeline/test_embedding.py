"""Sentence encoders: embeddings against those of PyTorch and of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.evaluation import score_rows
from compressor.model.checkpoint import open_checkpoint
from compressor.report.schema import load_report
from compressor.runtime import Embedder
from compressor.runtime.embedder import cosines
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.sentence_encoders import WIDTH, embedded, save_encoder

pytestmark = pytest.mark.slow

TEXTS = [*toy.sentences(20, seed=5), "w3", "w4 w5"]
PACKAGE_TEXTS = ["w3 w4 w5", "w7", f"{'w5 w6 ' * 20}w9", "W3 w4 W9 w8 w10"]


@pytest.fixture(scope="module")
def made(task_run):
    return task_run("embedding")


@pytest.fixture(scope="module")
def of_package(once):
    """A pruned model of sentence-transformers with all modules that are followed, exported."""

    def make(folder: Path) -> None:
        torch.manual_seed(0)
        encoder = str(save_encoder(folder / "encoder", layers=2))
        modules = [
            st.Transformer(encoder, max_seq_length=20, do_lower_case=True),
            st.Pooling(WIDTH, st.Pooling.POOLING_MODES),
            st.Dropout(0.1),
            st.Dense(6 * WIDTH, 24, activation_function=nn.GELU(), use_residual=True),
            st.LayerNorm(24),
            st.Dense(24, 24, bias=False, activation_function=None, use_residual=True),
        ]
        SentenceTransformer(
            modules=modules, similarity_fn_name="dot", truncate_dim=10, default_prompt_name="query",
            prompts={"query": "w20: ", "document": "w21 w22 "},
        ).save(str(folder / "model"), create_model_card=False)  # fmt: skip
        (folder / "model" / "sentence_bert_config.json").write_text(
            json.dumps({"max_seq_length": 20, "do_lower_case": True}), "utf-8"
        )
        toy.pruned(folder / "model", folder / "out")
        invoke("export", "-m", folder / "out", "-o", folder / "out")

    return once("pipeline-package", make) / "out"


@pytest.mark.parametrize(
    ("options", "least"),
    [({}, 1 - 1e-6), ({"engine": "openvino"}, 1 - 1e-6), ({"precision": "int8"}, 0.97)],
)
def test_the_runtime_embeds_as_pytorch_does(options, least: float, made):
    expected = embedded(open_checkpoint(str(made / "out")), TEXTS)
    embedder = Embedder(made / "out", **{"precision": "fp32"} | options)
    vectors = embedder.embed(TEXTS)
    assert (vectors.dtype, vectors.shape, embedder.width) == (np.float32, (22, 12), 12)
    assert cosines(vectors, expected).min() > least
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    # The company that a text has in a batch does not change its embedding.
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, vectors, atol=1e-5)
    streamed = list(embedder.embed_stream(["w3", "  ", "w4 w5"], chunk_rows=2))
    np.testing.assert_allclose(streamed, [vectors[-2], np.zeros(12), vectors[-1]], atol=1e-5)
    assert embedder.embed([]).shape == (0, 12)
    with raises(UsageError, "text-not-in-a-list"):
        embedder.embed("w3 w4")


def test_a_run_is_measured_in_both_engines(made):
    manifest = json.loads((made / "out" / "manifest.json").read_text(encoding="utf-8"))
    files = {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"}
    assert files <= manifest["files"].keys()
    report = load_report(made / "out" / "report.json")
    assert {(v.name, v.engine, v.precision) for v in report.variants} >= {
        ("dense-openvino", "openvino", "fp32"),
        ("macs-0.5", "onnxruntime", "fp32"),
        ("macs-0.5-int8", "onnxruntime", "int8"),
        ("macs-0.5-openvino", "openvino", "fp32"),
    }
    providers = {row.provider for row in report.throughput.rows}
    assert providers == {"CPUExecutionProvider", "OpenVINO CPU"}


def test_the_report_has_the_correlation_of_cosines(made, capsys):
    report = load_report(made / "out" / "report.json")
    variant = next(x for x in report.variants if x.name == "macs-0.5")
    rows = TASKS["embedding"].read_rows(made / "pairs.tsv")
    embedder = Embedder(made / "out", precision="fp32")
    similar = cosines(embedder.embed(rows.sources), embedder.embed(rows.pairs))
    expected = 100 * spearmanr(similar, [float(x) for x in rows.targets]).statistic
    assert variant.quality.metrics["spearman"] == pytest.approx(expected, abs=1e-6)
    # Queries are ranked by the cosines of their texts.
    rows = TASKS["embedding"].read_rows(made / "queries.tsv")
    answers = [repr(float(x)) for x in embedder.similarities(rows.sources, rows.pairs)]
    expected = score_rows(rows, answers).metrics["ndcg@10"]
    given = (made / "out", "--test", made / "queries.tsv", "--precision", "fp32")
    invoke("evaluate", *given, "--json")
    (shown,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert shown["quality"]["metrics"]["ndcg@10"] == pytest.approx(expected, abs=1e-6)
    assert shown["quality"]["rows"] == 7


def test_predict_writes_an_array(made, tmp_path, capsys):
    lines, out = tmp_path / "lines.txt", tmp_path / "vectors" / "a.npy"
    lines.write_text("w3\n\nw4 w5\n", encoding="utf-8")
    given = ("predict", made / "out", lines, "--precision", "fp32")
    invoke(*given, "-o", out, "-v")
    assert "lines 3/3" in capsys.readouterr().err
    vectors = np.load(out)
    wanted = Embedder(made / "out", precision="fp32").embed(["w3", "w4 w5"])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [wanted[0], np.zeros(12), wanted[1]], atol=1e-6)
    with raises(InputError, "output-not-empty"):
        invoke(*given, "-o", out)
    invoke(*given, "-o", tmp_path / "a.txt")
    np.testing.assert_array_equal(np.loadtxt(tmp_path / "a.txt", dtype=np.float32), vectors)


@pytest.mark.filterwarnings("ignore:.*were cut to the")
def test_the_runtime_embeds_as_sentence_transformers(of_package, tmp_path):
    package = SentenceTransformer(str(of_package), device="cpu", trust_remote_code=True)
    embedder = Embedder(of_package)
    texts, expected = PACKAGE_TEXTS, package.encode(PACKAGE_TEXTS)
    assert expected.shape == (4, embedder.width) == (4, 10)
    np.testing.assert_allclose(embedder.embed(texts), expected, atol=1e-4)
    np.testing.assert_allclose([*embedder.embed_stream(texts)], expected, atol=1e-4)
    lines = tmp_path / "lines.txt"
    lines.write_text("w3\n\nw4 w5\n", encoding="utf-8")
    for name, theirs in (("query", package.encode_query), ("document", package.encode_document)):
        found = embedder.with_prompt(name).embed(texts)
        np.testing.assert_allclose(found, theirs(texts), atol=1e-4)
        out = tmp_path / f"{name}.npy"
        invoke("predict", of_package, lines, "-o", out, "--prompt", name)
        wanted = theirs(["w3", "w4 w5"])
        np.testing.assert_allclose(np.load(out), [wanted[0], np.zeros(10), wanted[1]], atol=1e-4)
    vectors = embedder.embed(texts)
    products = package.similarity_pairwise(vectors, vectors[::-1].copy()).numpy()
    np.testing.assert_allclose(embedder.similarities(texts, texts[::-1]), products, rtol=1e-4)
    with raises(UsageError, "prompt-unknown"):
        embedder.with_prompt("querry")
