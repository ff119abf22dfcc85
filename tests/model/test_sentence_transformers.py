"""What sentence-transformers saves, against what it computes; newer settings of it are noticed."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SimilarityFunction
from sentence_transformers.sentence_transformer import modules as st
from torch import nn

from compressor.errors import InputError
from compressor.model import sentence_settings
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.sentence_settings import EARLIER_MODES, KEYS
from compressor.model.surgery import prune
from compressor.runtime.embedder import _SIMILARITIES
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.sentence_encoders import WIDTH, embedded, rows_of, save_encoder
from tests.helpers.tiny import facts, uneven_mask

# Of several lengths, one too long for the tokenizer, and one in capitals.
TEXTS = ["w3 w4 w5", "w7", f"{'w5 w6 ' * 20}w9", "W3 w4 W9 w8 w10"]
Changes = Callable[[Path], None]


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


def edit(file: str, **values: Any) -> Changes:
    """Set these entries of a JSON file; None: they go."""

    def change(directory: Path) -> None:
        path = directory / file
        contents = json.loads(path.read_text("utf-8")) if path.exists() else {}
        contents |= values
        kept = {key: value for key, value in contents.items() if value is not None}
        path.write_text(json.dumps(kept), "utf-8")

    return change


def each(*changes: Changes) -> Changes:
    return lambda directory: [change(directory) for change in changes] and None


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
    "residual": ([lambda: st.Dense(WIDTH, WIDTH, use_residual=True)], "mean", {}, None),
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
    "more numbers than there are": ([], "mean", {"truncate_dim": 800}, None),
    "shorter": ([], "mean", {}, edit(ENCODER, max_seq_length=5)),
    "longer than the tokenizer says": ([], "mean", {}, edit(ENCODER, max_seq_length=38)),
    "by arguments of the tokenizer": (
        [], "mean", {}, edit(ENCODER, max_seq_length=5, tokenizer_args={"model_max_length": 7}),
    ),
    "no length": ([], "mean", {}, edit("tokenizer_config.json", model_max_length=None)),
    "default prompt": (
        [], "mean", {"prompts": {"query": "w20 w21: ", "p": "w22 "}, "default_prompt_name": "p"},
        None,
    ),
    "lower case": ([], "mean", {}, edit(ENCODER, do_lower_case=True)),
    "no prompt in the pooling, and none at all": (
        [], "mean", {}, edit("1_Pooling/config.json", include_prompt=False),
    ),
    "an earlier version": ([], "mean", {}, as_earlier_versions),
    "pickles": ([lambda: st.Dense(WIDTH, 8)], "mean", {}, with_pickles),
    "padded, and not": ([], "mean", {}, edit(ENCODER, unpad_inputs=False)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_embeddings_are_those_of_the_package(case: str, encoder, tmp_path):
    """Of the checkpoint, and of what is saved of it, read by the package and by this one."""
    behind, pooling, options, changes = CASES[case]
    modules = [st.Pooling(WIDTH, pooling), *(make() for make in behind)]
    model = saved(encoder, tmp_path / "m", *modules, changes=changes, **options)
    package = SentenceTransformer(str(model), device="cpu")
    expected = package.encode(TEXTS)
    opened = open_checkpoint(str(model), allow_pickle=case == "pickles")
    assert opened.task == "embedding"
    assert opened.max_source_tokens == package.max_seq_length
    np.testing.assert_allclose(embedded(opened, TEXTS), expected, atol=1e-5)

    mask = uneven_mask(opened.layers)
    cut = prune(opened.model, opened.layers, mask)
    save_checkpoint(opened, cut, facts(opened.layers, mask), tmp_path / "out")
    again = open_checkpoint(str(tmp_path / "out"))
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu", trust_remote_code=True)
    ours = embedded(again, TEXTS)
    assert ours.shape == expected.shape
    assert abs(ours - expected).max() > 1e-3
    np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)
    assert theirs.similarity_fn_name == package.similarity_fn_name


def test_an_encoder_alone_is_read_as_the_package_reads_it(encoder, tmp_path):
    directory = saved(encoder, tmp_path / "m", st.Pooling(WIDTH))
    (directory / "modules.json").unlink()
    edit("tokenizer_config.json", model_max_length=None)(directory)
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


@pytest.mark.parametrize("name", sentence_settings.SIMILARITIES)
def test_similarities_are_those_of_the_package(name: str, encoder, tmp_path):
    """Also: what counts in scoring, recovery and comparison, where lengths count and where not."""
    first, second = np.random.default_rng(0).normal(size=(2, 9, 8)).astype(np.float32)
    expected = SimilarityFunction.to_similarity_pairwise_fn(name)(first, second)
    np.testing.assert_allclose(_SIMILARITIES[name](first, second), expected, rtol=1e-5)
    model = saved(encoder, tmp_path / "m", st.Pooling(WIDTH), similarity_fn_name=name)
    task, opened = TASKS["embedding"], open_checkpoint(str(model))
    (batch,) = batches_of(opened, TEXTS)
    raw = opened.model(**batch.inputs()).logits
    lengths = raw.norm(dim=-1, keepdim=True)
    found = task.logits(opened.model, batch)
    torch.testing.assert_close(found, raw / lengths if name == "cosine" else raw)
    assert task.divergence(2 * found, found).item() == pytest.approx(len(TEXTS) / 2)
    directions = [torch.randn(32, generator=torch.Generator().manual_seed(x)) for x in batch.rows]
    parts = (torch.stack(directions) * raw / lengths).sum()
    assert task.loss(opened.model, batch).item() == pytest.approx(parts.item(), rel=1e-4)


def batches_of(opened: Checkpoint, texts: list[str]) -> list[Any]:
    task = TASKS["embedding"]
    examples = task.encode(rows_of(texts), opened.tokenizer, opened.max_source_tokens)
    return task.batches(examples, opened.model)


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
REFUSED: dict[str, tuple[Changes, str, str]] = {
    f"{key} in {file}": (edit(file, **{key: value}), key, "sentence-settings-unsupported")
    for file, key, value in (
        (ENCODER, "query_length", 9), (ENCODER, "processing_kwargs", {"text": {"max_length": 4}}),
        (ENCODER, "transformer_task", "fill-mask"), (ENCODER, "module_output_name", "scores"),
        (ENCODER, "modality_config", {"text": {"method": "forward", "method_output_name": "x"}}),
        (ENCODER, "config_args", {"num_hidden_layers": 2}), (ENCODER, "of_tomorrow", 1),
        (ENCODER, "processor_kwargs", {"truncation_side": "left"}),
        (POOLING, "of_tomorrow", 1), ("3_Normalize/config.json", "p", 1),
        (DENSE, "module_input_name", "token_embeddings"), (DENSE, "module_output_name", "scores"),
        (SETTINGS, "similarity_fn_name", "maxsim"), (SETTINGS, "of_tomorrow", 1),
    )
} | {
    "a sparse encoder": (
        edit(SETTINGS, model_type="SparseEncoder"), "SparseEncoder", "sentence-modules-unsupported",
    ),
    "prompts out of the pooling": (
        each(edit(POOLING, include_prompt=False), edit(SETTINGS, prompts={"query": "w5 "})),
        "include_prompt", "sentence-settings-unsupported",
    ),
    "no pooling": (listed(), "", "sentence-modules-unsupported"),
    "no file of the pooling": (
        lambda directory: (directory / POOLING).unlink(), POOLING, "sentence-file-missing",
    ),
    "another mode": (edit(POOLING, pooling_mode="middle"), "middle", "pooling-unsupported"),
    "a folder outside": (
        listed("sentence_transformers.models.Pooling", path="../x"), MODULES,
        "sentence-file-malformed",
    ),
    "other sizes": (edit(DENSE, out_features=7), "", "weights-do-not-fit"),
    "no such prompt": (
        edit(SETTINGS, default_prompt_name="x"), "default_prompt_name", "sentence-file-malformed",
    ),
    "numbers to keep": (edit(SETTINGS, truncate_dim=0), "truncate_dim", "sentence-file-malformed"),
    "no flag": (edit(DENSE, use_residual="yes"), "use_residual", "sentence-file-malformed"),
    "other activation": (
        edit(DENSE, activation_function="torch.nn.modules.activation.Softmax"), "Softmax",
        "activation-unsupported",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def with_dense(encoder, tmp_path_factory) -> Path:
    modules = (st.Pooling(WIDTH), st.Dense(WIDTH, 8), st.Normalize())
    return saved(encoder, tmp_path_factory.mktemp("dense") / "m", *modules)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_followed_is_refused_by_name(case: str, with_dense, tmp_path):
    changes, named, error = REFUSED[case]
    model = Path(shutil.copytree(with_dense, tmp_path / "m"))
    changes(model)
    with raises(InputError, error) as caught:
        open_checkpoint(str(model))
    assert named in str(caught.value)


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


# Arguments that no file holds.
NOT_STORED = {"Dense": {"init_weight", "init_bias"}}


@pytest.mark.parametrize("kind", KEYS)
def test_every_setting_of_a_module_is_known(kind: str):
    module = getattr(st, kind)
    arguments = {*inspect.signature(module).parameters} - NOT_STORED.get(kind, set())
    assert {*module.config_keys} | arguments | {*module.config_key_renames} <= KEYS[kind]


def test_every_setting_of_a_model_is_known(encoder, tmp_path):
    known = sentence_settings
    assert {*st.Pooling.POOLING_MODES} == {*EARLIER_MODES.values()}
    assert {*known.SIMILARITIES} == {*SentenceTransformer.SUPPORTED_SIMILARITY_FN_NAMES}
    fixed = {"transformer_task", "modality_config", "module_output_name"}
    of_encoder = known.ENCODER_KEYS | fixed | known.ENCODER_EMPTY | known.ENCODER_KWARGS.keys()
    arguments = {*inspect.signature(st.Transformer).parameters} - {"model_name_or_path", "backend"}
    assert arguments | {*st.Transformer.config_keys} == of_encoder - {"backend"}
    written: set[str] = set()
    for model in (
        SentenceTransformer(str(encoder), device="cpu", truncate_dim=3),
        CrossEncoder(str(encoder), device="cpu", keep_in_fp32_modules=["0.model.classifier"]),
    ):
        written |= model._get_model_config().keys()
    assert written | {"requirements"} == known.SETTINGS_KEYS
