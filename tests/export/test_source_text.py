"""`--source-text`: what every input contains is kept, and nothing that was set is lost.

Expected answers are those of sentence-transformers and of transformers with the whole vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from tokenizers import processors

from compressor.errors import VerificationError
from compressor.export.cut_vocabulary import require_same_answers
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.tokenizer import prompts_of, uncut_copy
from compressor.runtime import Embedder
from compressor.tasks.batching import encode_texts
from compressor.tasks.texts import SOURCE, TextFile
from tests.helpers.command_line import invoke
from tests.helpers.damaged_checkpoints import configure
from tests.helpers.errors import raises
from tests.helpers.heads import WORDS, trained
from tests.helpers.sentence_encoders import embedded
from tests.helpers.tiny import facts, tiny_model
from tests.helpers.vocabulary import cut_and_checked

# One is longer than the models read.
TEXTS = [" ".join(WORDS[:4]), WORDS[7].upper(), " ".join(WORDS[9:12]), f"{WORDS[3]} " * 60]
PROMPTS = {
    "query": f"{WORDS[40]} {WORDS[41]}: ",
    "document": f"{WORDS[42].title()} ",
    "other": f"{WORDS[43]}-",  # the first word of a text goes on with it
}


def text_file(directory: Path, texts: list[str] = TEXTS) -> TextFile:
    path = directory / "texts.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return TextFile(path, SOURCE)


def save_plain(directory: Path, name: str, task: str | None = None, **settings: Any) -> Path:
    """An encoder, or one with a head for a task, and a trained tokenizer of its architecture."""
    model, tokenizer = tiny_model(name), trained(name)
    config = model.config
    config.update({"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id})
    if task is not None:
        config.num_labels = 1
    kind = (
        transformers.AutoModel if task is None else transformers.AutoModelForSequenceClassification
    )
    torch.manual_seed(0)
    made = kind.from_config(config)
    for weight in made.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, 0, 0.3)
    made.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    configure("tokenizer_config.json", **settings)(directory)
    return directory


def save_encoder(directory: Path, name: str, default: str | None = None, **settings: Any) -> Path:
    """A sentence encoder with prompts, as the package saves it."""
    plain = save_plain(directory / "plain", name)
    modules = [st.Transformer(str(plain)), st.Pooling(32)]
    model = SentenceTransformer(modules=modules, prompts=PROMPTS, default_prompt_name=default)
    model.save(str(directory / "m"), create_model_card=False)
    configure("sentence_bert_config.json", **settings)(directory / "m")
    return directory / "m"


# Kind of tokenizer, the prompt by default, and settings of the package.
ENCODERS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "pieces of words": ("bert", "query", {}),
    "bytes": ("roberta", "document", {}),
    "pieces with scores": ("xlm-roberta", None, {}),
    "lower case": ("roberta", "query", {"do_lower_case": True}),
    "shorter": ("bert", "other", {"max_seq_length": 9}),
    "longer than the tokenizer says": ("xlm-roberta", "query", {"max_seq_length": 38}),
}


@pytest.mark.parametrize("case", ENCODERS)
def test_prompts_are_read_as_by_the_package(case: str, tmp_path: Path):
    """In memory, saved and opened again, and by the package itself."""
    name, default, settings = ENCODERS[case]
    model = save_encoder(tmp_path, name, default, **settings)
    package = SentenceTransformer(str(model), device="cpu")
    dense = open_checkpoint(str(model))
    cut = cut_and_checked(dense, text_file(tmp_path)).checkpoint
    assert len(cut.tokenizer) < len(dense.tokenizer)
    assert cut.max_source_tokens == package.max_seq_length
    expected = package.encode(TEXTS)
    np.testing.assert_allclose(embedded(cut, TEXTS), expected, atol=1e-5)

    mask = Mask.full(cut.layers)
    save_checkpoint(cut, cut.model, facts(cut.layers, mask), tmp_path / "out")
    again = open_checkpoint(str(tmp_path / "out"))
    np.testing.assert_allclose(embedded(again, TEXTS), expected, atol=1e-5)
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu", trust_remote_code=True)
    for prompt in (None, *PROMPTS):
        wanted = package.encode(TEXTS, prompt_name=prompt)
        np.testing.assert_allclose(theirs.encode(TEXTS, prompt_name=prompt), wanted, atol=1e-5)


@pytest.mark.slow
def test_an_artifact_answers_with_each_prompt_as_the_package(tmp_path: Path):
    model, out = save_encoder(tmp_path, "bert", "query", do_lower_case=True), tmp_path / "out"
    invoke("export", "-m", model, "--source-text", text_file(tmp_path).path, "-o", out)
    package, embedder = SentenceTransformer(str(model), device="cpu"), Embedder(out, threads=1)
    assert embedder._tokenizer.library.get_vocab_size() < len(trained("bert"))
    for prompt in (None, *PROMPTS):
        expected = package.encode(TEXTS, prompt_name=prompt)
        with pytest.warns(UserWarning, match="1 of 4 texts were cut"):
            actual = embedder.with_prompt(prompt).embed(TEXTS)
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def logits_of(checkpoint: Checkpoint, texts: list[str], pairs: list[str]) -> np.ndarray:
    """By the task's own reading of pairs."""
    encoded, _ = encode_texts(
        checkpoint.tokenizer, checkpoint.max_source_tokens, types=True, text=texts, text_pair=pairs
    )
    rows = []
    for ids, types in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True):
        inputs = {"input_ids": torch.tensor([ids]), "token_type_ids": torch.tensor([types])}
        rows.append(checkpoint.model(**inputs).logits.detach().numpy()[0])
    return np.array(rows)


def test_a_cross_encoder_reads_pairs_as_the_package(tmp_path: Path):
    """Cut where it says, and without token types, which this tokenizer does not hand on."""
    plain = save_plain(
        tmp_path / "plain", "bert", "regression", model_input_names=["input_ids", "attention_mask"]
    )
    CrossEncoder(str(plain), device="cpu", max_length=12).save(
        str(tmp_path / "m"), create_model_card=False
    )
    package = CrossEncoder(str(tmp_path / "m"), device="cpu", activation_fn=torch.nn.Identity())
    dense = open_checkpoint(str(tmp_path / "m"))
    cut = cut_and_checked(dense, text_file(tmp_path)).checkpoint
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    expected = package.predict(pairs)
    np.testing.assert_allclose(logits_of(cut, TEXTS, TEXTS[::-1])[:, 0], expected, atol=1e-5)


def test_texts_are_cut_on_the_side_that_the_checkpoint_says(tmp_path: Path):
    model = save_plain(tmp_path / "m", "bert", "regression", truncation_side="left")
    dense = open_checkpoint(str(model))
    cut = cut_and_checked(dense, text_file(tmp_path)).checkpoint
    assert (cut.tokenizer.truncation_side, cut.max_source_tokens) == ("left", 32)
    long = [f"{' '.join(WORDS[:4])} {WORDS[3]} " * 9]
    plain = transformers.AutoTokenizer.from_pretrained(model)
    ids, new_ids = (
        x(long, truncation=True, max_length=32)["input_ids"][0] for x in (plain, cut.tokenizer)
    )
    assert plain.convert_ids_to_tokens(ids) == cut.tokenizer.convert_ids_to_tokens(new_ids)


def test_special_tokens_in_a_text_are_split_where_the_checkpoint_says(tmp_path: Path):
    """By copies of its tokenizer, too, whose files do not say it."""
    model = save_plain(tmp_path / "m", "bert", "regression", split_special_tokens=True)
    plain, dense = transformers.AutoTokenizer.from_pretrained(model), open_checkpoint(str(model))
    cut, text = (
        cut_and_checked(dense, text_file(tmp_path)).checkpoint,
        f"{WORDS[0]} [SEP] {WORDS[1]}",
    )
    expected = plain.convert_ids_to_tokens(plain(text)["input_ids"])
    assert expected.count("[SEP]") == 1
    assert uncut_copy(dense.tokenizer).encode(text).tokens == expected
    assert cut.tokenizer.convert_ids_to_tokens(cut.tokenizer(text)["input_ids"])[-1] == "[SEP]"
    assert uncut_copy(cut.tokenizer).encode(text).tokens.count("[SEP]") == 1


def test_tokens_between_the_texts_of_a_pair_are_kept(tmp_path: Path):
    """An ordinary token, which neither single texts nor special tokens have."""
    model = save_plain(tmp_path / "m", "bert", "regression")
    dense = open_checkpoint(str(model))
    tokenizer = dense.tokenizer
    seen = {x for ids in tokenizer(TEXTS)["input_ids"] for x in ids}
    ids = tokenizer.get_vocab()
    between = next(x for x in sorted(ids) if x.isalpha() and len(x) > 2 and ids[x] not in seen)
    number = ids[between]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", f"[CLS] $A {between} $B:1 [SEP]:1",
        [("[CLS]", tokenizer.cls_token_id), ("[SEP]", tokenizer.sep_token_id), (between, number)],
    )  # fmt: skip
    expected = logits_of(dense, TEXTS, TEXTS[::-1])
    cut = cut_and_checked(dense, text_file(tmp_path)).checkpoint
    np.testing.assert_allclose(logits_of(cut, TEXTS, TEXTS[::-1]), expected, atol=1e-6)


def test_added_tokens_and_words_in_brackets_are_read_as_before(tmp_path: Path):
    """Added in memory, one of them lower-cased before it is looked for."""
    dense = open_checkpoint(str(save_plain(tmp_path / "m", "bert", "regression")))
    tokenizer = dense.tokenizer
    tokenizer.add_tokens([transformers.AddedToken("[Unit]", normalized=False, lstrip=True)])
    dense.model.resize_token_embeddings(len(tokenizer))
    texts = [f"{WORDS[0]} [Unit]{WORDS[1]}", f"[unit] {WORDS[2]}"]
    cut = cut_and_checked(dense, text_file(tmp_path)).checkpoint
    for text in texts:
        assert cut.tokenizer.tokenize(text) == dense.tokenizer.tokenize(text)


def test_a_vocabulary_without_the_prompts_would_be_noticed(tmp_path: Path):
    """By its answers to the texts as they are served."""
    dense = open_checkpoint(str(save_encoder(tmp_path, "bert", "query")))
    served = [f"{prompt}{text}" for prompt in prompts_of(dense.tokenizer) for text in TEXTS]
    good = cut_and_checked(dense, text_file(tmp_path))
    require_same_answers(dense, good, served)
    settings = dense.tokenizer.sentence_settings
    dense.tokenizer.sentence_settings = type(settings)()  # as if it had none
    bad = cut_and_checked(dense, text_file(tmp_path))
    dense.tokenizer.sentence_settings = settings
    require_same_answers(dense, bad, TEXTS)
    with raises(VerificationError, "cut-vocabulary-differs"):
        require_same_answers(dense, bad, served)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["compress", "optimum"])
def test_lower_casing_is_no_difference_of_what_is_written(layout: str, tmp_path: Path):
    """The package sets it on what it opens, and so does the check."""
    model, out = save_encoder(tmp_path, "roberta", do_lower_case=True), tmp_path / "out"
    invoke("export", "-m", model, "--layout", layout, "-o", out)
    package = SentenceTransformer(str(model), device="cpu")
    upper = [text.upper() for text in TEXTS[:3]]
    if layout == "compress":
        actual = Embedder(out, threads=1).embed(upper)
        np.testing.assert_allclose(actual, package.encode(upper), atol=1e-5)
    else:
        written = json.loads((out / "sentence_bert_config.json").read_text("utf-8"))
        assert written["do_lower_case"]
