"""Sentence encoders through the whole program: made, verified, measured, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from safetensors.numpy import load_file
from scipy.stats import spearmanr

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
from tests.helpers.score_models import write_queries
from tests.helpers.sentence_encoders import save_encoder, write_pairs, write_texts

TEXTS = [*toy.sentences(20, seed=5), "w3", "w4 w5"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with an encoder, its data, and what a run made of it."""
    root = tmp_path_factory.mktemp("embedding")
    save_encoder(root / "model", "bert", "mean", dense=True)
    write_texts(root / "texts.txt", 40)
    write_pairs(root / "pairs.tsv", 30)
    invoke(
        "run", "-m", root / "model", "--calibration", root / "texts.txt",
        "--test", root / "pairs.tsv", "--macs", "0.5", "--precision", "fp32,int8",
        "--engines", "onnxruntime,openvino", "-o", root / "out", "-b", "2",
        "--bench-seconds", "0.05", "--resamples", "100", "--device", "cpu",
        "--recover", "reconstruct+distill", "--distill-text", root / "texts.txt",
        "--distill-epochs", "2", "--max-metric-drop", "spearman=200",
    )  # fmt: skip
    return root


def embedded(model: torch.nn.Module, tokenizer, texts) -> np.ndarray:
    """By PyTorch, each text alone, so that nothing is padded."""
    rows = []
    with torch.no_grad():
        for text in texts:
            batch = tokenizer(text, return_tensors="pt")
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            rows.append(model(**inputs).logits[0].numpy())
    return np.array(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "least"),
    [({}, 1 - 1e-6), ({"engine": "openvino"}, 1 - 1e-6), ({"precision": "int8"}, 0.97)],
)
def test_the_runtime_embeds_as_pytorch_does(options, least: float, made):
    tokenizer = open_checkpoint(str(made / "out")).tokenizer
    expected = embedded(compressor.load(made / "out"), tokenizer, TEXTS)
    embedder = Embedder(made / "out", **{"precision": "fp32"} | options)
    found = embedder.embed(TEXTS)
    assert (found.dtype, found.shape, embedder.width) == (np.float32, (22, 12), 12)
    assert cosines(found, expected).min() > least
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    # The company that a text has in a batch does not change its embedding.
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, found, atol=1e-5)
    streamed = list(embedder.embed_stream(["w3", "  ", "w4 w5"], chunk_rows=2))
    np.testing.assert_allclose(streamed, [found[-2], np.zeros(12), found[-1]], atol=1e-5)
    assert embedder.embed([]).shape == (0, 12)
    for answer in (embedder.embed, embedder.embed_stream, lambda x: embedder.similarities(x, x)):
        with raises(UsageError, "text-not-in-a-list"):
            answer("w3 w4")


@pytest.mark.slow
def test_the_report_has_the_correlation_of_cosines(made, capsys):
    report = load_report(made / "out" / "report.json")
    variant = next(x for x in report.variants if x.name == "macs-0.5")
    rows = TASKS["embedding"].read_rows(made / "pairs.tsv")
    embedder = Embedder(made / "out", precision="fp32")
    found = cosines(embedder.embed(rows.sources), embedder.embed(rows.pairs))
    expected = 100 * spearmanr(found, [float(x) for x in rows.targets]).statistic
    assert variant.quality.metrics["spearman"] == pytest.approx(expected, abs=1e-6)
    assert [outcome.met for outcome in report.gate] == [True]
    assert "distill" in variant.recovery
    card = (made / "out" / "README.md").read_text(encoding="utf-8")
    assert "from compressor.runtime import Embedder" in card
    assert "from transformers import AutoModel\n" in card

    invoke("gate", made / "out" / "report.json", "--max-metric-drop", "spearman=200")
    invoke("verify", made / "out")
    invoke("report", made / "out" / "report.json", "-o", made / "reports")
    assert "Spearman" in (made / "reports" / "report.md").read_text(encoding="utf-8")
    capsys.readouterr()
    dense = made / "out" / ".compress" / "dense"
    invoke("evaluate", dense, made / "out", "--test", made / "pairs.tsv", "--json")
    assert "spearman" in capsys.readouterr().out
    # Queries are ranked by the cosines of their texts.
    write_queries(made / "queries.tsv", 8)
    rows = TASKS["embedding"].read_rows(made / "queries.tsv")
    found = [repr(float(x)) for x in embedder.similarities(rows.sources, rows.pairs)]
    expected = score_rows(rows, found).metrics["ndcg@10"]
    given = (made / "out", "--test", made / "queries.tsv", "--precision", "fp32")
    invoke("evaluate", *given, "--json")
    (shown,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert shown["quality"]["metrics"]["ndcg@10"] == pytest.approx(expected, abs=1e-6)
    assert shown["quality"]["rows"] == 7
    invoke("evaluate", *given)
    assert "(7 queries)" in capsys.readouterr().out
    # Texts alone are enough to time on.
    invoke(
        "bench", dense, made / "out", "--test", made / "texts.txt", "-b", "2",
        "--bench-seconds", "0.05", "--precision", "fp32", "--json",
    )  # fmt: skip
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    invoke("inspect", made / "out", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["task"] == "embedding"
    assert all(0 < shape["fixed_share"] < 1 for shape in facts["shapes"])


@pytest.mark.slow
def test_files_of_the_modules_are_verified(made, tmp_path):
    manifest = json.loads((made / "out" / "manifest.json").read_text(encoding="utf-8"))
    files = {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"}
    assert files <= manifest["files"].keys()
    pooling = made / "out" / "1_Pooling" / "config.json"
    text = pooling.read_text(encoding="utf-8")
    pooling.write_text(text.replace("mean", "max"), encoding="utf-8")
    try:
        with raises(InputError, "file-changed"):
            compressor.load(made / "out")
    finally:
        pooling.write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_embed_writes_an_array(made, tmp_path, capsys):
    (tmp_path / "lines.txt").write_text("w3\n\nw4 w5\n", encoding="utf-8")
    out = tmp_path / "vectors" / "a.npy"
    invoke("predict", made / "out", tmp_path / "lines.txt", "-o", out, "--precision", "fp32", "-v")
    assert "lines 3/3" in capsys.readouterr().err
    found = np.load(out)
    wanted = Embedder(made / "out", precision="fp32").embed(["w3", "w4 w5"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [wanted[0], np.zeros(12), wanted[1]], atol=1e-6)
    with raises(InputError, "output-not-empty"):
        invoke("predict", made / "out", tmp_path / "lines.txt", "-o", out)
    invoke(
        "predict",
        made / "out",
        tmp_path / "lines.txt",
        "-o",
        tmp_path / "a.txt",
        "--precision",
        "fp32",
    )
    np.testing.assert_array_equal(np.loadtxt(tmp_path / "a.txt", dtype=np.float32), found)
    as_json = ("-o", tmp_path / "a.jsonl", "--jsonl", "--precision", "fp32")
    invoke("predict", made / "out", tmp_path / "lines.txt", *as_json)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()]
    np.testing.assert_array_equal(np.float32([row["embedding"] for row in rows]), found)
    with raises(InputError, "file-missing"):
        invoke("predict", made / "out", tmp_path / "none.txt", "-o", out.with_name("c.npy"))
    with raises(InputError, "artifact-of-another-task"):
        invoke("translate", made / "out", tmp_path / "lines.txt")


@pytest.mark.slow
def test_a_checkpoint_is_exported_by_itself(made, tmp_path):
    invoke("export", "-m", made / "model", "-o", tmp_path / "onnx")
    checkpoint = open_checkpoint(str(made / "model"))
    found = Embedder(tmp_path / "onnx", verify=False).embed(TEXTS)
    expected = embedded(checkpoint.model, checkpoint.tokenizer, TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with raises(InputError, "layout-not-for-task"):
        invoke("export", "-m", made / "model", "-o", tmp_path / "c", "--layout", "ctranslate2")
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
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
        found = np.tanh(vectors.mean(1) @ dense["linear.weight"].T + dense["linear.bias"])
        expected = Embedder(made / "out", precision="fp32").embed([text])
        np.testing.assert_allclose(found / np.linalg.norm(found), expected, atol=1e-5)


def test_what_needs_answers_is_refused_before_anything_is_computed(tmp_path):
    model = save_encoder(tmp_path / "model")
    texts, pairs = write_texts(tmp_path / "a.txt"), write_pairs(tmp_path / "b.tsv")
    given = ("run", "-m", model, "-o", tmp_path / "out", "--keep", "0.5", "--device", "cpu")
    rows = ("--calibration", texts, "--test", pairs)
    for method in ("ablation", "hard-concrete"):
        with raises(UsageError, "method-for-other-tasks"):
            invoke(*given, *rows, "--method", method)
    with raises(InputError, "pairs-missing"):
        invoke(*given, "--calibration", texts, "--test", texts)
    with raises(UsageError, "option-without-use"):
        invoke(*given, *rows, "--num-beams", "2")
    with raises(UsageError, "metric-of-another-task") as caught:
        invoke(*given, *rows, "--max-metric-drop", "ndcg@10=1")
    assert "ndcg@10 is not measured on" in str(caught.value)
    with raises(UsageError, "study-for-other-tasks"):
        invoke("study", "heads", "-m", model, "--test", pairs, "-o", tmp_path / "study")
    with raises(UsageError, "method-for-other-tasks"):
        invoke(
            "score", "-m", model, "--method", "relevance", "--calibration", texts,
            "-o", tmp_path / "s.json",
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_scores_and_the_cut_model_of_single_steps(tmp_path):
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
