"""Encoding, batching and the loss, on tiny models with weights large enough to tell errors apart.

Expected losses are those of transformers' own models (mean loss of one unpadded row x its number
of terms); expected token ids are written out or come from plain calls of the tokenizer.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import sentencepiece
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import MarianTokenizer, MBartTokenizer, PretrainedConfig, PreTrainedTokenizerFast

from compressor.errors import InputError
from compressor.request import example
from compressor.tasks import TASKS, Batch, Example, Rows, batching, count_truncated
from compressor.tasks.batching import most_tokens, within_tokens
from tests.helpers.errors import raises
from tests.helpers.tiny import TRANSLATORS, tiny_model

PAD, END, UNK, START = 1, 2, 3, 4  # of tests.helpers.tiny; its classifiers pad with 0
WORDS = [f"w{number}" for number in range(40)]
VOCABULARY = {"<none>": 0, "<pad>": PAD, "</s>": END, "<unk>": UNK, "<s>": START}
VOCABULARY |= {word: number for number, word in enumerate(WORDS, len(VOCABULARY))}
LABELS = ["first", "second", "third", "fourth", "fifth"]

translation = TASKS["translation"]
classification = TASKS["classification"]


def word_tokenizer(single: str, pair: str | None = None) -> PreTrainedTokenizerFast:
    """One token per word, with a template such as `<s> $A </s>`."""
    backend = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [(token, VOCABULARY[token]) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def ids(*words: int) -> list[int]:
    return [VOCABULARY[f"w{word}"] for word in words]


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 14))) for _ in range(count)]


def translation_rows(count: int = 23) -> Rows:
    return Rows("translation", sentences(count, 1), None, sentences(count, 2), ["x.tsv"], "0")


def classification_rows(count: int = 23, pairs: bool = False) -> Rows:
    targets = [LABELS[number % 5] for number in range(count)]
    seconds = sentences(count, 2) if pairs else None
    texts = sentences(count, 1)
    return Rows("classification", texts, seconds, targets, ["x.tsv"], "0", LABELS)


# --- encoding --------------------------------------------------------------------------------


def test_translation_rows_are_encoded_in_order_with_special_tokens() -> None:
    rows = Rows("translation", ["w1 w2", "w3 w3"], None, ["w4", "zzz w5"], ["x"], "0")
    examples = translation.encode(rows, word_tokenizer("$A </s>"), 16)
    assert examples == [
        Example(0, (*ids(1, 2), END), (*ids(4), END)),
        Example(1, (*ids(3, 3), END), (UNK, *ids(5), END)),
    ]


def test_long_rows_are_cut_keep_their_end_and_are_counted() -> None:
    sources = ["w1 w2 w3", "w1 w2 w3 w4", "w5", "w6"]
    targets = ["w1", "w1", "w7 w8 w9 w10 w11", "w6"]
    rows = Rows("translation", sources, None, targets, ["x"], "0")
    examples = translation.encode(rows, word_tokenizer("$A </s>"), 4)
    assert [example.truncated for example in examples] == [False, True, True, False]
    assert count_truncated(examples) == 2
    assert examples[0].source == examples[1].source == (*ids(1, 2, 3), END)
    assert examples[2].target == (*ids(7, 8, 9), END)


def test_targets_are_encoded_as_targets_by_marian(tmp_path: Path) -> None:
    """Source and target pieces differ: whichever model was used can be told from the ids."""
    rows = TASKS["translation"].read_rows(example.test(), limit=60)
    vocabulary = {"</s>": 0, "<unk>": 1, "<pad>": 2}
    pieces = {}
    for side, texts in (("source", rows.sources), ("target", rows.targets)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=str(tmp_path / side),
            vocab_size=150,
            minloglevel=2,
        )
        pieces[side] = sentencepiece.SentencePieceProcessor(str(tmp_path / f"{side}.model"))
        for index in range(150):
            vocabulary.setdefault(pieces[side].id_to_piece(index), len(vocabulary))
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = MarianTokenizer(
        str(tmp_path / "source.model"), str(tmp_path / "target.model"), str(tmp_path / "vocab.json")
    )
    examples = translation.encode(rows, tokenizer, 200)
    for made, source, target in zip(examples, rows.sources, rows.targets, strict=True):
        split = (
            pieces["source"].encode(source, out_type=str),
            pieces["target"].encode(target, out_type=str),
        )
        assert made.source == (*(vocabulary.get(piece, 1) for piece in split[0]), 0)
        assert made.target == (*(vocabulary.get(piece, 1) for piece in split[1]), 0)
    assert count_truncated(examples) == 0


def test_target_language_of_mbart_is_used_and_required() -> None:
    words = [(word, -1.0) for word in VOCABULARY]
    codes = [(code, 0.0) for code in ("en_XX", "de_DE")]
    vocabulary = [*words, *codes, ("<mask>", 0.0)]
    rows = Rows("translation", ["w1"], None, ["w2"], ["x"], "0")
    tokenizer = MBartTokenizer(vocab=vocabulary, src_lang="en_XX", tgt_lang="de_DE")
    made = translation.encode(rows, tokenizer, 16)[0]
    assert made.source[-2:] == (END, tokenizer.convert_tokens_to_ids("en_XX"))
    assert made.target[-2:] == (END, tokenizer.convert_tokens_to_ids("de_DE"))
    with raises(InputError, "target-language-missing"):
        translation.encode(rows, MBartTokenizer(vocab=vocabulary, src_lang="en_XX"), 16)


def test_classification_rows_and_pairs() -> None:
    tokenizer = word_tokenizer("<s> $A </s>", "<s> $A </s> $B:1 </s>:1")
    rows = Rows("classification", ["w1 w2", "w3"], None, ["third", "first"], ["x"], "0", LABELS)
    examples = classification.encode(rows, tokenizer, 16)
    assert examples[0] == Example(0, (START, *ids(1, 2), END), (2,), (0,) * 4)
    assert examples[1].target == (0,)
    rows = Rows("classification", ["w1 w2"], ["w3 w4 w5 w6"], ["second"], ["x"], "0", LABELS)
    whole = classification.encode(rows, tokenizer, 16)[0]
    assert whole.source == (START, *ids(1, 2), END, *ids(3, 4, 5, 6), END)
    assert whole.types == (0,) * 4 + (1,) * 5
    assert not whole.truncated
    cut = classification.encode(rows, tokenizer, 7)[0]
    assert cut.source == (START, *ids(1, 2), END, *ids(3, 4), END)
    assert cut.types == (0,) * 4 + (1,) * 3
    assert cut.truncated


def test_class_ids_need_the_labels_of_the_checkpoint() -> None:
    rows = Rows("classification", ["w1"], None, ["yes"], ["x.tsv"], "0")
    with raises(InputError, "label-names-missing"):
        classification.encode(rows, word_tokenizer("<s> $A </s>"), 16)


# --- batches ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=TRANSLATORS)
def seq2seq_model(request: pytest.FixtureRequest) -> nn.Module:
    return tiny_model(request.param)


def encoded(rows: Rows) -> list[Example]:
    if rows.task == "translation":
        return translation.encode(rows, word_tokenizer("$A </s>"), 32)
    tokenizer = word_tokenizer("<s> $A </s>", "<s> $A </s> $B:1 </s>:1")
    return classification.encode(rows, tokenizer, 60)


def test_batch_tensors_hold_the_rows_and_padding(seq2seq_model: nn.Module) -> None:
    examples = encoded(translation_rows())
    seen = []
    for batch in translation.batches(examples, seq2seq_model, batch_tokens=60):
        assert set(batch) == {"input_ids", "attention_mask", "decoder_input_ids", "labels"}
        assert all(value.dtype == torch.int64 for value in batch.values())
        source_mask = translation.token_mask(batch, "encoder_self")
        for line, row in enumerate(batch.rows):
            made = examples[row]
            count = len(made.source)
            assert batch["input_ids"][line, :count].tolist() == list(made.source)
            assert batch["input_ids"][line, count:].eq(PAD).all()
            real = [1] * count + [0] * (batch["input_ids"].shape[1] - count)
            assert batch["attention_mask"][line].tolist() == real
            assert source_mask[line].tolist() == [bool(flag) for flag in real]
            count, width = len(made.target), batch["labels"].shape[1]
            labels = [*made.target, *[-100] * (width - count)]
            assert batch["labels"][line].tolist() == labels
            for kind in ("decoder_self", "cross"):
                mask = translation.token_mask(batch, kind)
                assert mask.dtype == torch.bool
                assert mask[line].tolist() == [label >= 0 for label in labels]
        seen += batch.rows
    assert sorted(seen) == list(range(len(examples)))
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("name", "first"),
    [("marian", [PAD, PAD]), ("bart", [END, END]), ("mbart", [VOCABULARY["w9"], VOCABULARY["w8"]])],
)
def test_decoder_inputs_start_as_the_model_expects(name: str, first: list[int]) -> None:
    """mBART moves the last token (its language code) to the front, others have a start token."""
    examples = [
        Example(0, (5, END), (*ids(1, 2), END, VOCABULARY["w9"])),
        Example(1, (5, END), (*ids(3), END, VOCABULARY["w8"])),
    ]
    (batch,) = translation.batches(examples, tiny_model(name))
    assert batch.rows == (0, 1)
    assert batch["decoder_input_ids"][0].tolist() == [first[0], *ids(1, 2), END]
    # What stands behind a row's last real position is never used; all before it is.
    assert batch["decoder_input_ids"][1, :3].tolist() == [first[1], *ids(3), END]
    (alone,) = translation.batches(examples[1:], tiny_model(name))
    assert alone["decoder_input_ids"].tolist() == [[first[1], *ids(3), END]]


@pytest.mark.parametrize("limits", [(100, None), (None, 7), (100, 4), (None, None)])
def test_batches_keep_to_their_limits(limits: tuple[int | None, int | None]) -> None:
    batch_tokens, batch_size = limits
    made = translation.batches(
        encoded(translation_rows(200)), tiny_model("marian"), batch_tokens=batch_tokens,
        batch_size=batch_size,
    )  # fmt: skip
    assert sorted(row for batch in made for row in batch.rows) == list(range(200))
    widths = [max(b["input_ids"].shape[1], b["labels"].shape[1]) for b in made]
    assert widths == sorted(widths, reverse=True)
    for batch, width in zip(made, widths, strict=True):
        assert batch_tokens is None or len(batch.rows) * width <= batch_tokens
        assert batch_size is None or len(batch.rows) <= batch_size
    if batch_size is not None and batch_tokens is None:
        assert [len(batch.rows) for batch in made] == [7] * 28 + [4]
    if limits == (None, None):
        assert len(made) == 1
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


def test_a_gpu_takes_as_many_tokens_as_a_quarter_of_its_memory_holds(monkeypatch) -> None:
    """By hand for BERT's configuration here: 4 bytes of 40 times the width of each layer."""
    model = tiny_model("bert")
    config = model.config
    for memory in (0, 10**6, 10**8, 10**12):
        monkeypatch.setattr(batching, "gpu_bytes", lambda device, memory=memory: memory)
        held = memory // 4 // (4 * 40 * config.hidden_size * config.num_hidden_layers)
        assert most_tokens(model, "cuda") == max(1, min(held, batching.GPU_BATCH_TOKENS))
    assert most_tokens(model) == batching.BATCH_TOKENS


def test_batch_moves_as_a_whole() -> None:
    batch = Batch({"input_ids": torch.ones(2, 3), "labels": torch.ones(2)}, [4, 1])
    moved = batch.to("meta")
    assert moved.rows == (4, 1)
    assert {value.device.type for value in moved.values()} == {"meta"}
    assert list(moved.inputs()) == ["input_ids"]


def test_padding_id_is_required() -> None:
    model = tiny_model("bert")
    model.config.pad_token_id = None  # type: ignore[union-attr]
    with raises(InputError, "pad-token-missing"):
        classification.batches([Example(0, (5,), (1,))], model)


# --- loss ------------------------------------------------------------------------------------


@torch.no_grad()
def test_translation_loss_is_that_of_transformers_row_by_row(seq2seq_model: nn.Module) -> None:
    examples = encoded(translation_rows())
    expected = {}
    for made in examples:
        source, target = torch.tensor([made.source]), torch.tensor([made.target])
        output = seq2seq_model(input_ids=source, labels=target)
        expected[made.row] = output.loss.item() * len(made.target)
    for options in ({"batch_tokens": 70}, {"batch_size": 1}):
        total, terms = 0.0, 0
        for batch in translation.batches(examples, seq2seq_model, **options):
            value = translation.loss(seq2seq_model, batch)
            assert value.shape == ()
            assert value.item() == pytest.approx(sum(expected[r] for r in batch.rows), rel=1e-5)
            total, terms = total + value.item(), terms + translation.loss_terms(batch)
        assert total == pytest.approx(sum(expected.values()), rel=1e-5)
        assert terms == sum(len(made.target) for made in examples)


@torch.no_grad()
@pytest.mark.parametrize(("name", "pairs"), [("bert", True), ("roberta", False), ("electra", True)])
def test_classification_loss_is_that_of_transformers_row_by_row(name: str, pairs: bool) -> None:
    model = tiny_model(name)
    examples = encoded(classification_rows(pairs=pairs))
    expected = {}
    for made in examples:
        inputs = {"input_ids": torch.tensor([made.source])}
        if name in ("bert", "electra"):
            inputs["token_type_ids"] = torch.tensor([made.types])
        output = model(**inputs, labels=torch.tensor(made.target))
        expected[made.row] = output.loss.item()
    for batch in classification.batches(examples, model, batch_tokens=90):
        assert ("token_type_ids" in batch) == (name in ("bert", "electra"))
        value = classification.loss(model, batch).item()
        assert value == pytest.approx(sum(expected[row] for row in batch.rows), rel=1e-5)
        assert classification.loss_terms(batch) == len(batch.rows)
        logits = classification.logits(model, batch)
        assert logits.shape == (len(batch.rows), len(LABELS))


def test_token_mask_of_a_classifier() -> None:
    examples = [Example(0, (5, 6, 7), (0,)), Example(1, (5,), (1,))]
    (batch,) = classification.batches(examples, tiny_model("bert"))
    mask = classification.token_mask(batch, "encoder_self")
    assert mask.tolist() == [[True, True, True], [True, False, False]]


def test_every_task_names_itself_its_metrics_and_its_columns() -> None:
    for name in TASKS:
        task = TASKS[name]
        assert task.name == name
        assert task.main_metric == task.metrics[0]
        assert all(column.endswith("_column") for column in task.columns)


def test_label_names_are_in_the_order_of_the_class_ids() -> None:
    config = PretrainedConfig(id2label={1: "b", 0: "a", 2: "c"})
    assert classification.label_names(config) == ["a", "b", "c"]
    assert translation.label_names(config) is None
