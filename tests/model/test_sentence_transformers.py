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
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SimilarityFunction
from sentence_transformers.sentence_transformer import modules as st
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.sentence_settings import EARLIER_MODES, MODULE_FILES
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune, verify_surgery
from compressor.runtime.embedder import similarities
from compressor.tasks import TASKS, require_task
from tests.helpers.command_line import invoke
from tests.helpers.damaged_checkpoints import configure, weights
from tests.helpers.errors import raises
from tests.helpers.heads import save_scorer
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
    file = directory / "2_Dense" / "model.safetensors"
    torch.save(load_file(file), file.with_name("pytorch_model.bin"))
    file.unlink()


def numbered_backwards(directory: Path) -> None:
    """Modules run in the order of the file, whatever their numbers say."""
    entries = json.loads((directory / "modules.json").read_text("utf-8"))
    for number, entry in enumerate(reversed(entries)):
        entry["idx"] = number
    (directory / "modules.json").write_text(json.dumps(entries), "utf-8")


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
        ("cls", "mean"), {}, numbered_backwards,
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


def with_prompts_left_out(directory: Path) -> None:
    configure(POOLING, include_prompt=False)(directory)
    configure(SETTINGS, prompts={"query": "w5 "})(directory)


# Changes of a model with a dense layer, what the message must name, and the id.
UNSUPPORTED, OTHERS = "setting-unsupported", "sentence-modules-unsupported"
MALFORMED, MISFIT = "sentence-file-malformed", "weights-do-not-fit"
POOLING_TYPE = "sentence_transformers.models.Pooling"
SOFTMAX = "torch.nn.modules.activation.Softmax"
REFUSED: list[tuple[Changes, str, str]] = [
    (configure(ENCODER, processing_kwargs={"text": {"max_length": 4}}), "max_length", UNSUPPORTED),
    (configure(ENCODER, transformer_task="fill-mask"), "transformer_task", UNSUPPORTED),
    (configure(ENCODER, of_tomorrow=1), "of_tomorrow", UNSUPPORTED),
    (configure(ENCODER, processor_kwargs={"padding": "left"}), "padding of pro", UNSUPPORTED),
    (with_prompts_left_out, "include_prompt", UNSUPPORTED),
    (configure(POOLING, pooling_mode="middle"), "middle", UNSUPPORTED),
    (configure(DENSE, module_input_name="token_embeddings"), "module_input_name", UNSUPPORTED),
    (configure(DENSE, activation_function=SOFTMAX), "Softmax", UNSUPPORTED),
    (configure(DENSE, out_features=7), DENSE, MISFIT),
    (configure(DENSE, in_features=31), DENSE, MISFIT),
    (configure(SETTINGS, similarity_fn_name="maxsim"), "similarity_fn_name", UNSUPPORTED),
    (configure(SETTINGS, model_type="SparseEncoder"), "SparseEncoder", UNSUPPORTED),
    (configure(SETTINGS, default_prompt_name="x"), "default_prompt_name", UNSUPPORTED),
    (configure(SETTINGS, truncate_dim=0), "truncate_dim", UNSUPPORTED),
    (lambda directory: (directory / POOLING).unlink(), POOLING, MALFORMED),
    (listed(POOLING_TYPE, path="../x"), MODULES, MALFORMED),
    (listed(), MODULES, OTHERS),
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


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_the_package(name: str):
    first, second = np.random.default_rng(0).normal(size=(2, 9, 8)).astype(np.float32)
    expected = SimilarityFunction.to_similarity_pairwise_fn(name)(first, second)
    np.testing.assert_allclose(similarities(name, first, second), expected, rtol=1e-5)


def test_other_modules_are_refused_by_name(encoder, tmp_path):
    """All of the package's, and a class of the same name that is not the package's."""
    model = saved(encoder, tmp_path / "m", st.Pooling(WIDTH))
    (model / "config.json").unlink()  # models without an encoder have none
    others = {*st.__all__} - {*MODULE_FILES} - {"Module", "InputModule"} | {"custom.Pooling"}
    assert len(others) > 5
    for kind in others:
        listed(kind if "." in kind else f"sentence_transformers.models.{kind}")(model)
        with raises(InputError, OTHERS) as caught:
            open_checkpoint(str(model))
        assert kind in str(caught.value)


def test_a_pooler_that_nothing_reads_may_be_missing(tmp_path):
    directory = save_encoder(tmp_path / "m")
    batch = ragged_batch(open_checkpoint(str(directory)).model)
    expected = open_checkpoint(str(directory)).model(**batch).logits
    weights(lambda w: [w.pop(name) for name in list(w) if name.startswith("pooler.")])(directory)
    opened = open_checkpoint(str(directory))
    assert not opened.model.pooler.dense.weight.any()
    assert torch.equal(opened.model(**batch).logits, expected)
    weights(lambda w: w.pop("encoder.layer.0.output.dense.weight"))(directory)
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


PAIRS = [("w3 w4", "w5 w6 w7"), ("w8", "w9 w10"), ("w3 w4 " * 20, "w5"), ("w11 w12", "w13 " * 40)]


def save_newest(directory: Path, outputs: int = 1, **options: Any) -> Path:
    plain = save_scorer(directory.with_name(f"{directory.name}-plain"), outputs)
    CrossEncoder(str(plain), device="cpu", **options).save(str(directory), create_model_card=False)
    return directory


def save_earlier(directory: Path, **marks: Any) -> Path:
    """As before version 5.4: without `modules.json`, what is said stands in config.json."""
    save_scorer(directory)
    configure(**marks)(directory)
    return directory


def without_activation(directory: Path) -> Path:
    save_newest(directory)
    path = directory / SETTINGS
    path.write_text(json.dumps({"model_type": "CrossEncoder", "prompts": {}}), "utf-8")
    return directory


PATH = f"{nn.Identity.__module__}.{nn.Identity.__name__}"
CROSS_ENCODERS: dict[str, Callable[[Path], Path]] = {
    "identity": lambda x: save_newest(x, activation_fn=nn.Identity()),
    "shorter": lambda x: save_newest(x, max_length=9),
    "no activation in the newest file": without_activation,
    "version 3": lambda x: save_earlier(x, sbert_ce_default_activation_function=PATH),
    "version 4": lambda x: save_earlier(x, sentence_transformers={"activation_fn": PATH}),
}


@pytest.mark.parametrize("case", CROSS_ENCODERS)
def test_what_is_saved_gives_the_scores_of_the_package(case: str, tmp_path):
    """Without a unit less the very same ones, and pruned those that this package gives."""
    model = CROSS_ENCODERS[case](tmp_path / "m")
    package = CrossEncoder(str(model), device="cpu")
    expected = package.predict(PAIRS)
    opened = open_checkpoint(str(model))
    assert opened.task == "reranking"
    assert opened.max_source_tokens == package.max_seq_length
    for name, mask in (("full", Mask.full(opened.layers)), ("cut", uneven_mask(opened.layers))):
        kept = prune(opened.model, opened.layers, mask)
        save_checkpoint(opened, kept, facts(opened.layers, mask), tmp_path / name)
        out = CrossEncoder(str(tmp_path / name), device="cpu", trust_remote_code=True)
        assert type(out.activation_fn) is type(package.activation_fn)
        if name == "full":
            np.testing.assert_array_equal(out.predict(PAIRS), expected)
        else:
            assert abs(out.predict(PAIRS) - expected).max() > 1e-3


def test_what_is_not_followed_is_refused(tmp_path):
    odd = save_newest(tmp_path / "odd", activation_fn=nn.Tanh())
    with raises(InputError, "activation-unsupported"):
        invoke("inspect", odd)
    prompts = {"prompts": {"query": "w5: "}, "default_prompt_name": "query"}
    begun = save_newest(tmp_path / "begun", **prompts)
    with raises(InputError, UNSUPPORTED):
        open_checkpoint(str(begun))
    with raises(UsageError, "task-of-another-model"):
        invoke("inspect", odd, "--task", "embedding")
    unnamed = save_newest(tmp_path / "unnamed")
    (unnamed / ENCODER).unlink()
    with raises(InputError, UNSUPPORTED):
        open_checkpoint(str(unnamed))
    # Without the package's files it is an ordinary classifier with one output.
    for path in unnamed.glob("*sentence_transformers.json"):
        path.unlink()
    (unnamed / MODULES).unlink()
    assert open_checkpoint(str(unnamed)).task == "regression"
