"""What sentence-transformers saves, against what it computes; newer settings of it are noticed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SimilarityFunction
from sentence_transformers.sentence_transformer import modules as st
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.model import sentence_settings
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.sentence_settings import EARLIER_MODES, KEYS
from compressor.model.surgery import prune, verify_surgery
from compressor.runtime.scores import similarities
from compressor.tasks import TASKS, require_task
from tests.helpers.damaged_checkpoints import configure
from tests.helpers.errors import raises
from tests.helpers.sentence_encoders import ENCODERS, WIDTH, embedded, save_encoder
from tests.helpers.tiny import (
    facts,
    nothing_left_mask,
    ragged_batch,
    tiny_model,
    uneven_mask,
    word_tokenizer,
)
from tests.helpers.toy import MaskOf

# Of several lengths, one too long for the tokenizer, and one in capitals.
TEXTS = ["w3 w4 w5", "w7", f"{'w5 w6 ' * 20}w9", "W3 w4 W9 w8 w10"]
Changes = Callable[[Path], object]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """The encoder alone."""
    directory = tmp_path_factory.mktemp("encoder") / "m"
    save_encoder(directory)
    return directory


def saved(
    encoder: Path,
    directory: Path,
    *modules: nn.Module,
    changes: Changes | None = None,
    **options: Any,
) -> Path:
    """A model of the package, as it saves it, with random weights of a realistic scale."""
    torch.manual_seed(0)
    for module in modules:
        for name, weight in module.named_parameters():
            nn.init.normal_(weight, float(name == "norm.weight"), 0.3)
    SentenceTransformer(modules=[st.Transformer(str(encoder)), *modules], **options).save(
        str(directory), create_model_card=False
    )
    if changes is not None:
        changes(directory)
    return directory


def as_earlier_versions(directory: Path) -> None:
    """As version 2 saved a pooling by two modes."""
    modules = json.loads((directory / "modules.json").read_text("utf-8"))
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (directory / "modules.json").write_text(json.dumps(modules), "utf-8")
    flags = {name: mode in ("max", "mean") for name, mode in EARLIER_MODES.items()}
    pooling = {"word_embedding_dimension": WIDTH} | flags
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    (directory / "sentence_bert_config.json").rename(directory / "sentence_roberta_config.json")
    settings = {"max_seq_length": 6, "do_lower_case": False}
    (directory / "sentence_roberta_config.json").write_text(json.dumps(settings), "utf-8")


def with_pickles(directory: Path) -> None:
    weights = directory / "2_Dense" / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()


ENCODER = "sentence_bert_config.json"
SETTINGS = "config_sentence_transformers.json"
# What stands behind the pooling, the pooling, options of the model, and changes of its files.
CASES: dict[str, tuple[list[Callable[[], nn.Module]], Any, dict[str, Any], Changes | None]] = {
    "all poolings at once": ([], st.Pooling.POOLING_MODES, {}, None),
    "projected residual": (
        [lambda: st.Dense(WIDTH, 12, bias=False, activation_function=nn.GELU(), use_residual=True)],
        "mean", {}, None,
    ),
    "every kind of module": (
        [st.Normalize, st.Dropout, lambda: st.Dense(64, 12, activation_function=nn.Sigmoid()),
         lambda: st.LayerNorm(12), lambda: st.Dense(12, 8, activation_function=None), st.Normalize],
        ("cls", "mean"), {}, None,
    ),
    "fewer numbers": ([st.Normalize], "mean", {"truncate_dim": 8}, None),
    "longer than the tokenizer says": ([], "mean", {}, configure(ENCODER, max_seq_length=38)),
    "by arguments of the tokenizer": (
        [], "mean", {},
        configure(ENCODER, max_seq_length=5, tokenizer_args={"model_max_length": 7}),
    ),
    "default prompt": (
        [], "mean", {"prompts": {"query": "w20 w21: ", "p": "w22 "}, "default_prompt_name": "p"},
        None,
    ),
    "lower case": ([], "mean", {}, configure(ENCODER, do_lower_case=True)),
    "an earlier version": ([], "mean", {}, as_earlier_versions),
    "pickles": ([lambda: st.Dense(WIDTH, 8)], "mean", {}, with_pickles),
}  # fmt: skip


def require_same_embeddings(
    model: Path, out: Path, mask_of: MaskOf = uneven_mask, **options: Any
) -> None:
    """Of the checkpoint, and of what is saved of it, read by the package and by this one."""
    package = SentenceTransformer(str(model), device="cpu")
    expected = package.encode(TEXTS)
    opened = open_checkpoint(str(model), **options)
    assert opened.task == "embedding"
    assert opened.max_source_tokens == package.max_seq_length
    np.testing.assert_allclose(embedded(opened, TEXTS), expected, atol=1e-5)

    mask = mask_of(opened.layers)
    cut = prune(opened.model, opened.layers, mask)
    batch = ragged_batch(cut, rows=5)
    verify_surgery(opened.model, cut, opened.layers, mask, [batch])
    save_checkpoint(opened, cut, facts(opened.layers, mask), out)
    again = open_checkpoint(str(out))
    assert (again.task, again.mask) == ("embedding", mask)
    assert torch.equal(again.model(**batch).logits, cut(**batch).logits)
    theirs = SentenceTransformer(str(out), device="cpu", trust_remote_code=True)
    ours = embedded(again, TEXTS)
    assert ours.shape == expected.shape
    assert abs(ours - expected).max() > 1e-3
    np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)
    assert theirs.similarity_fn_name == package.similarity_fn_name


@pytest.mark.parametrize("case", CASES)
def test_embeddings_are_those_of_the_package(case: str, encoder, tmp_path):
    behind, pooling, options, changes = CASES[case]
    modules = [st.Pooling(WIDTH, pooling), *(make() for make in behind)]
    model = saved(encoder, tmp_path / "m", *modules, changes=changes, **options)
    require_same_embeddings(model, tmp_path / "out", allow_pickle=case == "pickles")


@pytest.mark.parametrize(
    ("name", "mask_of"), [*((name, uneven_mask) for name in ENCODERS), ("bert", nothing_left_mask)]
)
def test_encoders_of_every_architecture(name: str, mask_of: MaskOf, tmp_path):
    model = save_encoder(tmp_path / "m", name, dense=True)
    require_same_embeddings(model, tmp_path / "out", mask_of)


def test_an_encoder_alone_is_read_as_the_package_reads_it(encoder, tmp_path):
    directory = saved(encoder, tmp_path / "m", st.Pooling(WIDTH))
    (directory / "modules.json").unlink()
    configure("tokenizer_config.json", model_max_length=10**30)(directory)
    package = SentenceTransformer(str(directory), device="cpu")
    opened = open_checkpoint(str(directory), task="embedding")
    assert opened.max_source_tokens == package.max_seq_length == 40
    np.testing.assert_allclose(embedded(opened, TEXTS), package.encode(TEXTS), atol=1e-5)


def test_queries_and_documents_begin_with_their_prompts(encoder, tmp_path):
    """In rows with queries, as `encode_query` and `encode_document` of the package have it."""
    prompts = {"query": "w20 w21: ", "document": "w22 "}
    model = saved(encoder, tmp_path / "m", st.Pooling(WIDTH), prompts=prompts)
    package = SentenceTransformer(str(model), device="cpu")
    (tmp_path / "a.tsv").write_text("query\ttext\tlabel\nw3\tw4 w5\t1\nw6\tw7\t0\n", "utf-8")
    rows = TASKS["embedding"].read_rows(tmp_path / "a.tsv")
    found = embedded(open_checkpoint(str(model)), rows)
    expected = [package.encode_query(rows.sources), package.encode_document(rows.pairs)]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)


MODULES = "modules.json"
POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"


def listed(*types: str, **entry: Any) -> Changes:
    """`modules.json` with these modules behind the encoder."""

    def change(directory: Path) -> None:
        modules = json.loads((directory / MODULES).read_text("utf-8"))[:1]
        for i, name in enumerate(types, 1):
            modules.append({"idx": i, "name": str(i), "path": f"{i}_x", "type": name} | entry)
        (directory / MODULES).write_text(json.dumps(modules), "utf-8")

    return change


# Changes of a model with a dense layer, what the message must name, and the id.
UNSUPPORTED, OTHERS = "sentence-settings-unsupported", "sentence-modules-unsupported"
MALFORMED = "sentence-file-malformed"
POOLING_TYPE = "sentence_transformers.models.Pooling"
SOFTMAX = "torch.nn.modules.activation.Softmax"
REFUSED: list[tuple[Changes, str, str]] = [
    (configure(ENCODER, query_length=9), "query_length", UNSUPPORTED),
    (configure(ENCODER, processing_kwargs={"text": {"max_length": 4}}), "max_length", UNSUPPORTED),
    (configure(ENCODER, transformer_task="fill-mask"), "transformer_task", UNSUPPORTED),
    (configure(ENCODER, of_tomorrow=1), "of_tomorrow", UNSUPPORTED),
    (
        configure(ENCODER, processor_kwargs={"truncation_side": "left"}),
        "processor_kwargs",
        UNSUPPORTED,
    ),
    (
        lambda directory: [
            configure(POOLING, include_prompt=False)(directory),
            configure(SETTINGS, prompts={"query": "w5 "})(directory),
        ],
        "include_prompt",
        UNSUPPORTED,
    ),
    (configure(POOLING, of_tomorrow=1), "of_tomorrow", UNSUPPORTED),
    (configure(DENSE, module_input_name="token_embeddings"), "module_input_name", UNSUPPORTED),
    (configure(SETTINGS, similarity_fn_name="maxsim"), "similarity_fn_name", UNSUPPORTED),
    (configure(SETTINGS, of_tomorrow=1), "of_tomorrow", UNSUPPORTED),
    (configure(SETTINGS, model_type="SparseEncoder"), "SparseEncoder", OTHERS),
    (listed(), "", OTHERS),
    (lambda directory: (directory / POOLING).unlink(), POOLING, "sentence-file-missing"),
    (configure(POOLING, pooling_mode="middle"), "middle", "pooling-unsupported"),
    (listed(POOLING_TYPE, path="../x"), MODULES, MALFORMED),
    (configure(DENSE, out_features=7), "", "weights-do-not-fit"),
    (configure(SETTINGS, default_prompt_name="x"), "default_prompt_name", MALFORMED),
    (configure(SETTINGS, truncate_dim=0), "truncate_dim", MALFORMED),
    (configure(DENSE, activation_function=SOFTMAX), "Softmax", "activation-unsupported"),
]


@pytest.fixture(scope="module")
def with_dense(encoder, tmp_path_factory) -> Path:
    modules = (st.Pooling(WIDTH), st.Dense(WIDTH, 8), st.Normalize())
    return saved(encoder, tmp_path_factory.mktemp("dense") / "m", *modules)


@pytest.mark.parametrize(("changes", "named", "error"), REFUSED)
def test_what_is_not_followed_is_refused_by_name(changes, named, error, with_dense, tmp_path):
    model = Path(shutil.copytree(with_dense, tmp_path / "m"))
    changes(model)
    with raises(InputError, error) as caught:
        open_checkpoint(str(model))
    assert named in str(caught.value)


@pytest.mark.parametrize("name", sentence_settings.SIMILARITIES)
def test_similarities_are_those_of_the_package(name: str):
    first, second = np.random.default_rng(0).normal(size=(2, 9, 8)).astype(np.float32)
    expected = SimilarityFunction.to_similarity_pairwise_fn(name)(first, second)
    np.testing.assert_allclose(similarities(name, first, second), expected, rtol=1e-5)


def test_other_modules_are_refused_by_name(encoder, tmp_path):
    """All of the package's, and a class of the same name that is not the package's."""
    model = saved(encoder, tmp_path / "m", st.Pooling(WIDTH))
    others = {*st.__all__} - {*KEYS} - {"Module", "InputModule"} | {"custom.Pooling"}
    assert len(others) > 5
    for kind in others:
        listed(kind if "." in kind else f"sentence_transformers.models.{kind}")(model)
        with raises(InputError, "sentence-modules-unsupported") as caught:
            open_checkpoint(str(model))
        assert kind in str(caught.value)
    # Of models without an encoder there is no config.json either.
    (model / "config.json").unlink()
    with raises(InputError, "sentence-modules-unsupported"):
        open_checkpoint(str(model))


def test_modules_run_in_the_order_of_the_file(with_dense, tmp_path):
    """Whatever their numbers say; no two have one name, of which the package drops the first."""
    model = Path(shutil.copytree(with_dense, tmp_path / "m"))
    entries = json.loads((model / MODULES).read_text("utf-8"))
    for number, entry in enumerate(reversed(entries)):
        entry["idx"] = number
    (model / MODULES).write_text(json.dumps(entries), "utf-8")
    expected = SentenceTransformer(str(model), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(embedded(open_checkpoint(str(model)), TEXTS), expected, atol=1e-5)
    entries[3]["name"] = entries[2]["name"]
    (model / MODULES).write_text(json.dumps(entries), "utf-8")
    with raises(InputError, "sentence-file-malformed"):
        open_checkpoint(str(model))


def test_a_pooler_that_nothing_reads_may_be_missing(tmp_path):
    directory = save_encoder(tmp_path / "m")
    weights = load_file(directory / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert len(kept) == len(weights) - 2
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    opened = open_checkpoint(str(directory))
    assert not opened.model.pooler.dense.weight.any()
    batch = ragged_batch(opened.model)
    expected = open_checkpoint(str(save_encoder(tmp_path / "whole"))).model(**batch).logits
    assert torch.equal(opened.model(**batch).logits, expected)
    del kept["encoder.layer.0.output.dense.weight"]
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    with raises(InputError, "weights-do-not-fit"):
        open_checkpoint(str(directory))


def test_other_models_are_no_encoders_alone(tmp_path):
    for name in ("marian", "bert"):  # whose head would be dropped
        tiny_model(name).save_pretrained(tmp_path / name)
        word_tokenizer().save_pretrained(tmp_path / name)
        with raises(UsageError, "task-of-another-model"):
            require_task(open_checkpoint(str(tmp_path / name), task="embedding"))
    with raises(InputError, "weights-do-not-fit"):
        open_checkpoint(str(save_encoder(tmp_path / "m")), task="classification")
