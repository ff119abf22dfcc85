"""A model of sentence-transformers with all that is followed, through the whole program."""

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

from compressor.errors import UsageError
from compressor.evaluation import score_rows
from compressor.report.schema import load_report
from compressor.runtime import Embedder
from compressor.tasks import TASKS
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.score_models import write_queries
from tests.helpers.sentence_encoders import WIDTH, save_encoder, write_pairs, write_texts

TEXTS = ["w3 w4 w5", "w7", f"{'w5 w6 ' * 20}w9", "W3 w4 W9 w8 w10"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A model, its data, and what a run made of it."""
    root = tmp_path_factory.mktemp("package")
    torch.manual_seed(0)
    modules = [
        st.Transformer(str(save_encoder(root / "encoder")), max_seq_length=20, do_lower_case=True),
        st.Pooling(WIDTH, st.Pooling.POOLING_MODES),
        st.Dropout(0.1),
        st.Dense(6 * WIDTH, 24, activation_function=nn.GELU(), use_residual=True),
        st.LayerNorm(24),
        st.Dense(24, 24, bias=False, activation_function=None, use_residual=True),
    ]
    SentenceTransformer(
        modules=modules, similarity_fn_name="dot", truncate_dim=10, default_prompt_name="query",
        prompts={"query": "w20: ", "document": "w21 w22 "},
    ).save(str(root / "model"), create_model_card=False)  # fmt: skip
    (root / "model" / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 20, "do_lower_case": True}), "utf-8"
    )
    write_texts(root / "texts.txt", 40)
    write_pairs(root / "pairs.tsv", 30)
    write_queries(root / "queries.tsv", 8)
    invoke(
        "run", "-m", root / "model", "--calibration", root / "texts.txt", "--test",
        root / "pairs.tsv", "--macs", "0.5", "--precision", "fp32,int8", "-o", root / "out",
        "--bench-seconds", "0.05", "--resamples", "100", "--device", "cpu", "-b", "2",
        "--recover", "reconstruct+distill", "--distill-text", root / "texts.txt",
        "--distill-epochs", "1", "--quiet",
    )  # fmt: skip
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "far"), [({}, 1e-4), ({"engine": "openvino"}, 1e-4), ({"precision": "int8"}, 0.3)]
)
def test_the_runtime_embeds_as_the_package_does(options, far: float, made):
    package = SentenceTransformer(str(made / "out"), device="cpu", trust_remote_code=True)
    embedder = Embedder(made / "out", **{"precision": "fp32"} | options)
    expected = package.encode(TEXTS)
    assert expected.shape == (4, embedder.width) == (4, 10)
    np.testing.assert_allclose(embedder.embed(TEXTS), expected, atol=far)
    np.testing.assert_allclose([*embedder.embed_stream(TEXTS)], expected, atol=far)
    for name, theirs in (("query", package.encode_query), ("document", package.encode_document)):
        np.testing.assert_allclose(embedder.with_prompt(name).embed(TEXTS), theirs(TEXTS), atol=far)
    vectors = embedder.embed(TEXTS)
    products = package.similarity_pairwise(vectors, vectors[::-1].copy()).numpy()
    np.testing.assert_allclose(embedder.similarities(TEXTS, TEXTS[::-1]), products, rtol=1e-4)
    with raises(UsageError, "prompt-unknown"):
        embedder.with_prompt("querry")


@pytest.mark.slow
def test_quality_is_of_products_and_queries_have_their_prompt(made, capsys):
    package = SentenceTransformer(str(made / "out"), device="cpu", trust_remote_code=True)
    task = TASKS["embedding"]
    rows = task.read_rows(made / "pairs.tsv")
    found = package.similarity_pairwise(*(package.encode(x) for x in (rows.sources, rows.pairs)))
    expected = 100 * spearmanr(found, [float(x) for x in rows.targets]).statistic
    variants = load_report(made / "out" / "report.json").variants
    quality = next(x.quality for x in variants if x.name == "macs-0.5")
    assert quality.metrics["spearman"] == pytest.approx(expected, abs=1e-3)
    rows = task.read_rows(made / "queries.tsv")
    found = package.similarity_pairwise(
        package.encode_query(rows.sources), package.encode_document(rows.pairs)
    )
    expected = score_rows(rows, [repr(float(x)) for x in found]).metrics["ndcg@10"]
    given = ("--test", made / "queries.tsv", "--precision", "fp32", "--json")
    invoke("evaluate", made / "out", *given)
    (shown,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert shown["quality"]["metrics"]["ndcg@10"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_embeddings_of_lines_take_a_prompt(made, tmp_path):
    (tmp_path / "lines.txt").write_text("w3\n\nw4 w5\n", encoding="utf-8")
    for name in ("document", None):
        out = tmp_path / f"{name}.npy"
        given = ("--prompt", name) if name else ()
        invoke("predict", made / "out", tmp_path / "lines.txt", "-o", out, *given)
        wanted = Embedder(made / "out").with_prompt(name).embed(["w3", "w4 w5"])
        np.testing.assert_allclose(np.load(out), [wanted[0], np.zeros(10), wanted[1]], atol=1e-6)
