"""Encoding, batches, loss and answers, on tiny models with weights large enough to show errors.

Expected losses are those of transformers' own models (mean loss of one unpadded row x its number
of terms); expected token ids are written out or come from plain calls of the tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
import torch
from transformers import MarianTokenizer, MBartTokenizer, PretrainedConfig

from compressor.errors import InputError
from compressor.tasks import TASKS, Example, Rows, batching, count_truncated
from compressor.tasks.batching import most_tokens, within_tokens
from tests.helpers import toy
from tests.helpers.batches import examples as random_examples
from tests.helpers.batches import labelled_batch, one_row
from tests.helpers.errors import raises
from tests.helpers.heads import piece_tokenizer
from tests.helpers.tiny import BUILDERS, TRANSLATORS, tiny_model, word_tokenizer

END, UNK = 2, 1  # of tests.helpers.tiny
LABELS = ["first", "second", "third"]
translation, classification = TASKS["translation"], TASKS["classification"]


# --- encoding --------------------------------------------------------------------------------


def test_translation_rows_are_encoded_in_order_cut_and_counted() -> None:
    """A token is the number of its word; the end stays where a row is cut."""
    sources = ["w11 w12 w13", "w11 w12 w13 w14", "w5", "w6"]
    targets = ["w4", "w4 zzz", "w7 w8 w9 w10 w11", "w6"]
    rows = Rows("translation", sources, None, targets, ["x"], "0")
    assert translation.encode(rows, word_tokenizer(), 4) == [
        Example(0, (11, 12, 13, END), (4, END)),
        Example(1, (11, 12, 13, END), (4, UNK, END), truncated=True),
        Example(2, (5, END), (7, 8, 9, END), truncated=True),
        Example(3, (6, END), (6, END)),
    ]
    assert count_truncated(translation.encode(rows, word_tokenizer(), 4)) == 2
    assert count_truncated(translation.encode(rows, word_tokenizer(), 16)) == 0


def test_targets_are_encoded_as_targets_by_marian(tmp_path: Path) -> None:
    """Source and target pieces differ."""
    directory = toy.marian_with_pieces(tmp_path / "model", own_target=True)
    vocabulary = json.loads((directory / "vocab.json").read_text(encoding="utf-8"))
    tokenizer = MarianTokenizer.from_pretrained(directory)
    sources = toy.sentences(20)
    targets = [text.replace("w", "v") for text in sources]
    rows = Rows("translation", sources, None, targets, ["x"], "0")
    for side, texts in (("source", sources), ("target", targets)):
        pieces = sentencepiece.SentencePieceProcessor(str(directory / f"{side}.spm"))
        for made, text in zip(translation.encode(rows, tokenizer, 200), texts, strict=True):
            split = pieces.encode(text, out_type=str)
            assert getattr(made, side) == (*(vocabulary.get(piece, 1) for piece in split), 0)


def test_target_language_of_mbart_is_used_and_required() -> None:
    special = [(word, 0.0) for word in ("<s>", "<pad>", "</s>", "<unk>")]
    codes = [(code, 0.0) for code in ("en_XX", "de_DE", "<mask>")]
    vocabulary = [*special, ("w1", -1.0), ("w2", -1.0), *codes]
    rows = Rows("translation", ["w1"], None, ["w2"], ["x"], "0")
    tokenizer = MBartTokenizer(vocab=vocabulary, src_lang="en_XX", tgt_lang="de_DE")
    made = translation.encode(rows, tokenizer, 16)[0]
    assert made.source[-2:] == (END, tokenizer.convert_tokens_to_ids("en_XX"))
    assert made.target[-2:] == (END, tokenizer.convert_tokens_to_ids("de_DE"))
    with raises(InputError, "target-language-missing"):
        translation.encode(rows, MBartTokenizer(vocab=vocabulary, src_lang="en_XX"), 16)


def test_classification_rows_and_pairs() -> None:
    """Of [CLS] 2, [SEP] 3, and the letters from 4 on; of a pair, the longer text is cut."""
    tokenizer = piece_tokenizer()
    rows = Rows("classification", ["a b", "c"], None, ["third", "first"], ["x"], "0", LABELS)
    assert classification.encode(rows, tokenizer, 16) == [
        Example(0, (2, 4, 5, 3), (2,), (0,) * 4),
        Example(1, (2, 6, 3), (0,), (0,) * 3),
    ]
    rows = Rows("classification", ["a b"], ["c d e f"], ["second"], ["x"], "0", LABELS)
    whole, cut = (classification.encode(rows, tokenizer, most)[0] for most in (16, 7))
    assert whole == Example(0, (2, 4, 5, 3, 6, 7, 8, 9, 3), (1,), (0,) * 4 + (1,) * 5)
    assert cut == Example(0, (2, 4, 5, 3, 6, 7, 3), (1,), (0,) * 4 + (1,) * 3, truncated=True)


def test_rows_are_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same tokens as at once; long ones are cut."""
    texts = [*toy.sentences(10), " ".join(["w5"] * 40)]
    settings = {"types": True, "text": texts, "text_pair": None}
    whole = batching.encode_texts(word_tokenizer(), 16, **settings)
    monkeypatch.setattr(batching, "ENCODED_ROWS", 4)
    assert batching.encode_texts(word_tokenizer(), 16, **settings) == whole
    expected = [(*(int(word[1:]) for word in text.split()[:15]), END) for text in texts]
    assert whole[0]["input_ids"] == expected


# --- batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [(100, None), (None, 7), (100, 4), (None, None)])
def test_batches_keep_to_their_limits(limits: tuple[int | None, int | None]) -> None:
    batch_tokens, batch_size = limits
    made = translation.batches(
        random_examples("marian", 200), tiny_model("marian"), batch_tokens=batch_tokens,
        batch_size=batch_size,
    )  # fmt: skip
    assert sorted(row for batch in made for row in batch.rows) == list(range(200))
    widths = [max(b["input_ids"].shape[1], b["labels"].shape[1]) for b in made]
    assert widths == sorted(widths, reverse=True)
    for batch, width in zip(made, widths, strict=True):
        assert batch_tokens is None or len(batch.rows) * width <= batch_tokens
        assert batch_size is None or len(batch.rows) <= batch_size
    if batch_tokens is None:
        sizes = [200] if batch_size is None else [7] * 28 + [4]
        assert [len(batch.rows) for batch in made] == sizes
    # A row that is longer than the limit gets a batch of its own.
    rows = [Example(n, (5,) * length, (5, END)) for n, length in enumerate([3, 30, 3])]
    made = translation.batches(rows, tiny_model("marian"), batch_tokens=8)
    assert [batch.rows for batch in made] == [(1,), (0, 2)]


def test_a_large_vocabulary_makes_batches_smaller() -> None:
    """Logits of a batch are tokens x vocabulary: with mBART's 250,054 pieces a quarter as many."""
    examples = [Example(row, (5,) * 50, (5,) * 50) for row in range(100)]
    for vocabulary, rows in ((8_000, 40), (58_101, 40), (250_054, 9), (10**9, 1)):
        model = tiny_model("marian")
        model.config.decoder_vocab_size = vocabulary
        assert len(translation.batches(examples, model)[0].rows) == rows
        (whole,) = translation.batches(examples, model, batch_tokens=None)
        assert len(within_tokens(whole, most_tokens(model))[0].rows) == rows


# --- loss ------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("name", TRANSLATORS)
def test_translation_loss_is_that_of_transformers_row_by_row(name: str) -> None:
    model, examples = tiny_model(name), random_examples(name, 23)
    expected = {}
    for made in examples:
        source, target = torch.tensor([made.source]), torch.tensor([made.target])
        expected[made.row] = model(input_ids=source, labels=target).loss.item() * len(made.target)
    for options in ({"batch_tokens": 70}, {"batch_size": 1}):
        terms = 0
        for batch in translation.batches(examples, model, **options):
            value = translation.loss(model, batch)
            assert value.item() == pytest.approx(sum(expected[r] for r in batch.rows), rel=1e-5)
            terms += translation.loss_terms(batch)
        assert terms == sum(len(made.target) for made in examples)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "roberta", "electra"])
def test_classification_loss_is_that_of_transformers_row_by_row(name: str) -> None:
    """Of pairs where the model takes token types, of which the last ones are 1."""
    model, takes_types = tiny_model(name), name != "roberta"
    examples, expected = [], {}
    for made in random_examples(name, 23):
        types = (0, *[1] * (len(made.source) - 1)) if takes_types else None
        examples.append(Example(made.row, made.source, made.target, types))
        inputs = {"input_ids": torch.tensor([made.source])}
        if takes_types:
            inputs["token_type_ids"] = torch.tensor([types])
        expected[made.row] = model(**inputs, labels=torch.tensor(made.target)).loss.item()
    for batch in classification.batches(examples, model, batch_tokens=90):
        assert ("token_type_ids" in batch) == takes_types
        value = classification.loss(model, batch).item()
        assert value == pytest.approx(sum(expected[row] for row in batch.rows), rel=1e-5)
        assert classification.loss_terms(batch) == len(batch.rows)
        lengths = [len(examples[row].source) for row in batch.rows]
        assert classification.token_mask(batch, "encoder_self").sum(1).tolist() == lengths
    model.config.pad_token_id = None
    with raises(InputError, "pad-token-missing"):
        classification.batches(examples, model)


def test_label_names_are_in_the_order_of_the_class_ids() -> None:
    config = PretrainedConfig(id2label={1: "b", 0: "a", 2: "c"})
    assert classification.label_names(config) == ["a", "b", "c"]
    assert translation.label_names(config) is None


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [None, 3])
@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_are_those_of_generate(name: str, num_beams: int | None):
    """Row by row without padding."""
    model, tokenizer = tiny_model(name), word_tokenizer()
    model.generation_config.num_beams = 2  # a width of its own changes nothing
    model.generation_config.max_length = 12
    batch = labelled_batch(model, rows=5)
    answers = translation.predict(model, batch, tokenizer, num_beams)
    options = {"num_beams": num_beams or 1, "do_sample": False}
    rows = [model.generate(one_row(batch, row)["input_ids"], **options)[0] for row in range(5)]
    assert answers == [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    assert len(set(answers)) > 1


@pytest.mark.parametrize("name", [n for n in BUILDERS if n not in TRANSLATORS])
def test_labels_are_those_of_the_largest_logits(name: str):
    model = tiny_model(name)
    model.config.id2label = {i: f"class {i}" for i in range(5)}
    batch = labelled_batch(model, rows=5)
    logits = [model(**one_row(batch, row).inputs()).logits for row in range(5)]
    expected = [f"class {int(x.detach().numpy().argmax())}" for x in logits]
    assert classification.predict(model, batch, None) == expected
