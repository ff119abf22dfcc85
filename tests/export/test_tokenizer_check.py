"""What differs from transformers' own tokenizer is honored, or refused with the text."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer

from compressor.commands import invoke
from compressor.errors import InputError, VerificationError
from compressor.export.tokenizer import write_tokenizer
from compressor.export.tokenizer_check import TokenizerProbe, difficult_texts
from compressor.model.checkpoint import open_checkpoint
from compressor.model.tokenizer import load_tokenizer, save_tokenizer
from compressor.runtime import Classifier, Translator
from compressor.runtime.text import TextTokenizer
from compressor.storage.files import write_json
from compressor.tasks.batching import encode_texts
from tests.export.test_tokenizer import CODES, marian
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.heads import save_reader
from tests.helpers.piece_tokenizers import CORPUS, trained

ADDED = [
    "<ent>",
    "Mary",
    AddedToken("[L]", lstrip=True),
    AddedToken("[R]", rstrip=True),
    AddedToken("Norm", normalized=True),
]


def settings(directory: Path, **values: Any) -> None:
    """Change a checkpoint's `tokenizer_config.json`."""
    path = directory / "tokenizer_config.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | values)


def test_tokens_added_to_a_marian_tokenizer(tmp_path: Path) -> None:
    """Behind the vocabulary, where `add_tokens` puts them; matched in the raw text."""
    tokenizer = marian(tmp_path, CODES)
    tokenizer.add_tokens(ADDED)
    tokenizer.add_tokens([">>fr<<", "[S]"], special_tokens=True)
    path = tmp_path / "tokenizer.json"
    write_tokenizer(tokenizer, path)
    texts = [
        "the <ent> cat", "the<ent>cat", "<ent> Mary the", "theMarycat", "  [L] cat[R]  cat",
        "[S]the cat[S] the", ">>fr<<the", ">>de<< <ent> >>de<< a", "the >>fr<< cat",
        "<ent>\u00a0the",
        # Normalized to tokens, which are none then: full width, and the end token.
        "\uff2d\uff41\uff52\uff59 \uff1c\uff0f\uff53\uff1e \uff2dARY", "\ufdd2<ent>",
    ]  # fmt: skip
    written = TextTokenizer(path)
    wanted = [tokenizer(text)["input_ids"] for text in texts]
    assert [list(row) for row in written.encode(texts)] == wanted
    assert written.decode(wanted) == tokenizer.batch_decode(wanted, skip_special_tokens=True)
    TokenizerProbe(tokenizer, difficult_texts(tokenizer)).check_file(path)
    assert len(tokenizer) - len(tokenizer.encoder) == 7
    whole = marian(tmp_path)
    whole.add_tokens([AddedToken("word", single_word=True)])
    with raises(InputError, "added-token-unsupported"):
        write_tokenizer(whole, path)


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"truncation_side": "left", "padding_side": "left"},
        {"model_input_names": ["input_ids", "attention_mask"]},
        {"do_lower_case": True, "strip_accents": True, "add_prefix_space": True},
        {"cls_token": "[X]", "add_bos_token": True, "clean_up_tokenization_spaces": True},
    ],
    ids=str,
)
def test_settings_are_followed_by_what_is_written(tmp_path: Path, name: str, values: Any) -> None:
    """By the runtime's file, and by the files that transformers opens again."""
    trained(name).save_pretrained(tmp_path)
    settings(tmp_path, **values)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens([copy.copy(x) for x in ADDED])
    texts = [*difficult_texts(tokenizer), *CORPUS[:9]]
    write_tokenizer(tokenizer, tmp_path / "written.json")
    for writes in (False, True):
        probe = TokenizerProbe(tokenizer, texts, texts[3:] + texts[:3], not writes, writes)
        probe.check_file(tmp_path / "written.json")
    save_tokenizer(tokenizer, tmp_path / "saved")
    probe.check_saved(tmp_path / "saved")
    # The words of a text that was cut, and of a pair, as transformers itself has them.
    written = TextTokenizer(tmp_path / "written.json", 7, tokenizer.truncation_side)
    wanted = tokenizer(CORPUS[:5], CORPUS[5:10], truncation=True, max_length=7)
    rows = written.encode(CORPUS[:5], CORPUS[5:10])
    assert [list(row) for row in rows] == wanted["input_ids"]
    types = wanted.get("token_type_ids", [[0] * 7] * 5)
    assert [row.type_ids for row in rows] == types
    encoded, _ = encode_texts(tokenizer, 7, types=True, text=CORPUS[:5], text_pair=CORPUS[5:10])
    assert list(map(list, encoded["token_type_ids"])) == types


@pytest.mark.parametrize(
    ("change", "id", "part"),
    [
        ({"decoder": {"type": "Fuse"}}, "tokenizer-decodes-differently", "decodes the tokens"),
        ({"normalizer": {"type": "Lowercase"}}, "tokenizer-encodes-differently", "\\xc4\\xd6"),
        ({"post_processor": {}}, "tokenizer-encodes-differently", "gives other token types"),
        ({"added_tokens": []}, "tokenizer-encodes-differently", "where that has '<ent>'"),
    ],
)
def test_a_file_that_does_something_else_is_refused(
    tmp_path: Path, change: dict[str, Any], id: str, part: str
) -> None:
    tokenizer = copy.deepcopy(trained("bert"))
    tokenizer.add_tokens(["<ent>"])
    path = tmp_path / "tokenizer.json"
    write_tokenizer(tokenizer, path)
    texts = difficult_texts(tokenizer)
    state = json.loads(path.read_text(encoding="utf-8"))
    if "post_processor" in change:  # the second text of a pair has the types of the first
        state["post_processor"]["pair"][-1]["SpecialToken"]["type_id"] = 0
    elif "added_tokens" in change:
        state["added_tokens"] = [x for x in state["added_tokens"] if x["content"] != "<ent>"]
    else:
        state |= change
    write_json(path, state)
    probe = TokenizerProbe(tokenizer, texts, texts[1:] + texts[:1], types=True)
    with raises(VerificationError, id) as caught:
        probe.check_file(path)
    assert part in str(caught.value)


def test_questions_need_the_usual_sides(tmp_path: Path, capsys) -> None:
    directory = save_reader(tmp_path / "bert")
    settings(directory, padding_side="left")
    assert invoke(["inspect", str(directory)]) == 4
    assert "padding_side" in capsys.readouterr().err


@pytest.mark.slow
@torch.no_grad()
def test_texts_are_cut_on_the_left_by_every_engine(tmp_path: Path) -> None:
    """A classifier's probabilities, and translations, are transformers' of long texts."""
    long = [" ".join(toy.sentences(8, seed=i)) for i in range(4)]
    values = {"truncation_side": "left", "padding_side": "left", "model_max_length": 16}
    dense = toy.first_layers(toy.classifier(tmp_path / "whole"), tmp_path / "bert")
    settings(dense, **values)
    engines = ["--engines", "onnxruntime,openvino"]
    assert invoke(["export", "-m", str(dense), "-o", str(tmp_path / "out"), *engines]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(dense)
    model = open_checkpoint(str(dense)).model
    rows = [tokenizer(text, truncation=True, return_tensors="pt") for text in long]
    wanted = np.stack([model(**row).logits[0].numpy() for row in rows])
    for engine in ("onnxruntime", "openvino"):
        actual = Classifier(tmp_path / "out", engine=engine, threads=1).logits(long)
        np.testing.assert_allclose(actual, wanted, atol=1e-4)
    dense = toy.first_layers(toy.translator(tmp_path / "all"), tmp_path / "marian")
    settings(dense, **values)
    engines = ["--engines", "onnxruntime,ctranslate2"]
    assert invoke(["export", "-m", str(dense), "-o", str(tmp_path / "pair"), *engines]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(dense)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(dense)
    batch = tokenizer(long, truncation=True, padding=True, return_tensors="pt")
    answers = model.generate(**batch, num_beams=1, do_sample=False)
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    for engine in ("onnxruntime", "ctranslate2"):
        translator = Translator(tmp_path / "pair", engine=engine, threads=1)
        assert translator.translate(long) == texts


CUTS = {
    "truncation": {"direction": "Left", "max_length": 9, "strategy": "OnlyFirst", "stride": 2},
    "padding": None,
}


def test_saved_files_cut_as_those_they_come_from(tmp_path: Path) -> None:
    """Whatever transformers was asked for last."""
    directory = toy.classifier(tmp_path / "bert")
    path = directory / "tokenizer.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | CUTS)
    config = transformers.AutoConfig.from_pretrained(directory)
    tokenizer = load_tokenizer(directory, config, False)
    assert tokenizer.truncation_side == "left"
    tokenizer("w3 w4 w5", truncation=True, max_length=4, padding="max_length")
    save_tokenizer(tokenizer, tmp_path / "saved")
    saved = Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert saved.truncation == Tokenizer.from_file(str(path)).truncation
    assert (saved.truncation["max_length"], saved.padding) == (9, None)
