"""Sentence encoders: embeddings against those of PyTorch and of sentence-transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from safetensors.numpy import load_file
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

import compressor
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
from tests.helpers.sentence_encoders import save_encoder, write_texts

pytestmark = pytest.mark.slow

TEXTS = [*toy.sentences(20, seed=5), "w3", "w4 w5"]
PACKAGE_TEXTS = ["w3 w4 w5", "w7", f"{'w5 w6 ' * 20}w9", "W3 w4 W9 w8 w10"]


@pytest.fixture(scope="module")
def made(task_run):
    return task_run("embedding")


@pytest.fixture(scope="module")
def of_package(task_run):
    """What a run made of a model of sentence-transformers with all modules that are followed."""
    return task_run("sentence-transformers") / "out"


@torch.no_grad()
def embedded(model: torch.nn.Module, tokenizer, texts) -> np.ndarray:
    """By PyTorch, each text alone, so that nothing is padded."""
    rows = []
    for text in texts:
        batch = tokenizer(text, return_tensors="pt")
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        rows.append(model(**inputs).logits[0].numpy())
    return np.array(rows)


@pytest.mark.parametrize(
    ("options", "least"),
    [({}, 1 - 1e-6), ({"engine": "openvino"}, 1 - 1e-6), ({"precision": "int8"}, 0.97)],
)
def test_the_runtime_embeds_as_pytorch_does(options, least: float, made):
    tokenizer = open_checkpoint(str(made / "out")).tokenizer
    expected = embedded(compressor.load(made / "out"), tokenizer, TEXTS)
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
    for answer in (embedder.embed, embedder.embed_stream, lambda x: embedder.similarities(x, x)):
        with raises(UsageError, "text-not-in-a-list"):
            answer("w3 w4")


def test_a_run_is_measured_in_both_engines(made):
    report = load_report(made / "out" / "report.json")
    assert {(v.name, v.engine, v.precision) for v in report.variants} >= {
        ("dense-openvino", "openvino", "fp32"),
        ("macs-0.5", "onnxruntime", "fp32"),
        ("macs-0.5-int8", "onnxruntime", "int8"),
        ("macs-0.5-openvino", "openvino", "fp32"),
    }
    details = [check.detail for v in report.variants for check in v.checks]
    assert any(detail.endswith("OpenVINO CPU") for detail in details)
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
    invoke("evaluate", *given)
    assert "(7 queries)" in capsys.readouterr().out
    invoke("inspect", made / "out", "--json")
    assert all(0 < x["fixed_share"] < 1 for x in json.loads(capsys.readouterr().out)["shapes"])


def test_files_of_the_modules_are_verified(made):
    manifest = json.loads((made / "out" / "manifest.json").read_text(encoding="utf-8"))
    files = {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"}
    assert files <= manifest["files"].keys()


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
    invoke(*given, "-o", tmp_path / "a.jsonl", "--jsonl")
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()]
    np.testing.assert_array_equal(np.float32([row["embedding"] for row in rows]), vectors)
    with raises(InputError, "artifact-of-another-task"):
        invoke("translate", made / "out", lines)


def test_a_checkpoint_is_exported_by_itself(made, tmp_path):
    invoke("export", "-m", made / "model", "-o", tmp_path / "onnx")
    checkpoint = open_checkpoint(str(made / "model"))
    vectors = Embedder(tmp_path / "onnx", verify=False).embed(TEXTS)
    expected = embedded(checkpoint.model, checkpoint.tokenizer, TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_optimums_layout_gives_the_tokens_vectors_and_the_modules_behind_them(made, tmp_path):
    """`make test-optimum` opens it in sentence-transformers."""
    invoke("export", "-m", made / "out", "-o", tmp_path / "onnx", "--layout", "optimum")
    modules = json.loads((tmp_path / "onnx" / "modules.json").read_text("utf-8"))
    kinds = ["Transformer", "Pooling", "Dense", "Normalize"]
    assert [module["type"].rpartition(".")[2] for module in modules] == kinds
    dense = load_file(tmp_path / "onnx" / modules[2]["path"] / "model.safetensors")
    session = InferenceSession(tmp_path / "onnx" / "model.onnx")
    tokenizer = open_checkpoint(str(made / "out")).tokenizer
    for text in TEXTS[:3]:
        ids = np.array([tokenizer(text)["input_ids"]])
        feeds = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (vectors,) = session.run(["last_hidden_state"], {"input_ids": ids, **feeds})
        pooled = np.tanh(vectors.mean(1) @ dense["linear.weight"].T + dense["linear.bias"])
        expected = Embedder(made / "out", precision="fp32").embed([text])
        np.testing.assert_allclose(pooled / np.linalg.norm(pooled), expected, atol=1e-5)


def test_single_steps_score_and_prune(tmp_path):
    model, texts = save_encoder(tmp_path / "model", "roberta"), write_texts(tmp_path / "a.txt")
    scores = tmp_path / "scores.json"
    invoke("score", "-m", model, "--calibration", texts, "-o", scores)
    invoke(
        "prune", "-m", model, "--scores", scores, "--keep", "0.5", "--recover", "reconstruct",
        "--calibration", texts, "-o", tmp_path / "pruned",
    )  # fmt: skip
    opened = open_checkpoint(str(tmp_path / "pruned"))
    kept = [len(opened.mask.kept(x.name)) for x in opened.attention]
    assert (opened.task, sum(kept)) == ("embedding", 6)


@pytest.mark.filterwarnings("ignore:.*were cut to the")
@pytest.mark.parametrize(
    ("options", "far"), [({}, 1e-4), ({"engine": "openvino"}, 1e-4), ({"precision": "int8"}, 0.3)]
)
def test_the_runtime_embeds_as_sentence_transformers(options, far: float, of_package):
    package = SentenceTransformer(str(of_package), device="cpu", trust_remote_code=True)
    embedder = Embedder(of_package, **{"precision": "fp32"} | options)
    texts, expected = PACKAGE_TEXTS, package.encode(PACKAGE_TEXTS)
    assert expected.shape == (4, embedder.width) == (4, 10)
    np.testing.assert_allclose(embedder.embed(texts), expected, atol=far)
    np.testing.assert_allclose([*embedder.embed_stream(texts)], expected, atol=far)
    for name, theirs in (("query", package.encode_query), ("document", package.encode_document)):
        np.testing.assert_allclose(embedder.with_prompt(name).embed(texts), theirs(texts), atol=far)
    vectors = embedder.embed(texts)
    products = package.similarity_pairwise(vectors, vectors[::-1].copy()).numpy()
    np.testing.assert_allclose(embedder.similarities(texts, texts[::-1]), products, rtol=1e-4)
    with raises(UsageError, "prompt-unknown"):
        embedder.with_prompt("querry")


def test_quality_is_of_products_and_queries_have_their_prompt(of_package, capsys):
    package = SentenceTransformer(str(of_package), device="cpu", trust_remote_code=True)
    task, data = TASKS["embedding"], of_package.parent
    rows = task.read_rows(data / "pairs.tsv")
    products = package.similarity_pairwise(*map(package.encode, (rows.sources, rows.pairs)))
    expected = 100 * spearmanr(products, [float(x) for x in rows.targets]).statistic
    variants = load_report(of_package / "report.json").variants
    quality = next(x.quality for x in variants if x.name == "macs-0.5")
    assert quality.metrics["spearman"] == pytest.approx(expected, abs=1e-3)
    rows = task.read_rows(data / "queries.tsv")
    products = package.similarity_pairwise(
        package.encode_query(rows.sources), package.encode_document(rows.pairs)
    )
    expected = score_rows(rows, [repr(float(x)) for x in products]).metrics["ndcg@10"]
    given = ("--test", data / "queries.tsv", "--precision", "fp32", "--json")
    invoke("evaluate", of_package, *given)
    (shown,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert shown["quality"]["metrics"]["ndcg@10"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["document", None])
def test_embeddings_of_lines_take_a_prompt(name, of_package, tmp_path):
    lines, out = tmp_path / "lines.txt", tmp_path / "out.npy"
    lines.write_text("w3\n\nw4 w5\n", encoding="utf-8")
    invoke("predict", of_package, lines, "-o", out, *(("--prompt", name) if name else ()))
    wanted = Embedder(of_package).with_prompt(name).embed(["w3", "w4 w5"])
    np.testing.assert_allclose(np.load(out), [wanted[0], np.zeros(10), wanted[1]], atol=1e-6)
