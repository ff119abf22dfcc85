"""Damaged, absurd or foreign configurations and tokenizers: status 4 and the name of the file."""

from __future__ import annotations

import pytest

from compressor.commands import invoke
from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from tests.helpers import toy
from tests.helpers.damaged_checkpoints import (
    CONFIG,
    DEEP,
    GENERATION,
    HTML,
    PANICS,
    POINTER,
    configure,
    contents,
    refused,
    without,
)
from tests.helpers.tiny import tiny_model

HUGE = 10**30


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"num_attention_heads": heads}
            for heads in (0, -4, 3, 1000, HUGE, "4", None, 4.5, True, [4])
        ),
        *({"vocab_size": size} for size in (0, -1, 10**9, HUGE, "60", None, 60.5)),
        *({"max_position_embeddings": n} for n in (0, -1, 10**9, 2**62, "x", None)),
        *({"num_hidden_layers": n} for n in (0, -1, 900, 10_000_000, 1e9)),
        *({"hidden_size": n} for n in (0, 10**9, "wide")),
        *({"intermediate_size": n} for n in (0, 10**12)),
        *({"pad_token_id": token} for token in (-1, 60, 10**12, "0", 1.5)),
        *({"dtype": dtype} for dtype in ("banana", 5, ["float32"])),
        *({"id2label": labels} for labels in (5, ["a", 3], {"a": "b", "c": "d"}, {"0": 1, "1": 2})),
        {"id2label": {"0": "a", "7": "b"}},
        {"num_labels": 10**9},
        {"num_labels": "five"},
        {"hidden_act": "banana"},
        {"layer_norm_eps": float("nan")},
        {"layer_norm_eps": "tiny"},
        {"hidden_dropout_prob": 7},
        {"architectures": 3, "num_attention_heads": 0},
    ],
)
def test_absurd_configurations_are_told_by_the_file(change, copy):
    directory = copy("bert")
    configure(**change)(directory)
    with pytest.raises(InputError) as caught:
        open_checkpoint(str(directory))
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"encoder_layers": 10_000_000},
        {"encoder_layers": 1000},
        {"d_model": 31},
        {"max_position_embeddings": 60_000, "d_model": 60_000},
        {"decoder_start_token_id": 60},
        {"decoder_start_token_id": -1},
        {"eos_token_id": "</s>"},
        {"activation_function": None},
        {"decoder_ffn_dim": 10**6},
    ],
)
@pytest.mark.parametrize("name", ["marian", "pruned"])
def test_absurd_translators_are_told_by_the_file(name, change, copy):
    directory = copy(name)
    configure(**change)(directory)
    with pytest.raises(InputError) as caught:
        open_checkpoint(str(directory))
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "id"),
    [
        (b"", "config-malformed"),
        (b"\xff\xfe", "config-malformed"),
        (HTML, "config-malformed"),
        (b"[1]", "config-malformed"),
        (b"null", "config-malformed"),
        (DEEP, "config-malformed"),
        (b'{"model_type": 5}', "architecture-unsupported"),
        (b'{"model_type": ["bert"]}', "architecture-unsupported"),
        (b'{"model_type": "' + b"x" * 100_000 + b'"}', "architecture-unsupported"),
        (b'{"model_type": "bert", "vocab_size": ' + b"9" * 5000 + b"}", "config-malformed"),
        (b'{"a": "' + b" " * (1 << 26) + b'"}', "config-unreadable"),
    ],
)
def test_a_configuration_that_is_none_is_told(data, id, copy):
    directory = copy("bert")
    contents(CONFIG, data)(directory)
    refused(directory, id, str(directory))


@pytest.mark.parametrize(
    "file", ["source.spm", "target.spm", "vocab.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize(
    "damage",
    [
        lambda file: contents(file, b""),
        lambda file: contents(file, HTML),
        lambda file: contents(file, POINTER),
        lambda file: contents(file, lambda data: data[: len(data) // 2]),
        lambda file: contents(file, b"[" * 100_000),
    ],
)
def test_damaged_files_of_a_tokenizer_are_told(file, damage, copy):
    directory = copy("marian")
    damage(file)(directory)
    refused(directory, "tokenizer-unreadable", str(directory))


@pytest.mark.parametrize(
    ("name", "damage", "id"),
    [
        ("bert", without("tokenizer.json", "tokenizer_config.json"), "tokenizer-missing"),
        ("bert", without("tokenizer.json"), "tokenizer-unreadable"),
        ("bert", contents("tokenizer.json", b"{}"), "tokenizer-unreadable"),
        ("bert", configure("tokenizer.json", post_processor=PANICS), "tokenizer-unreadable"),
        ("marian", without("source.spm"), "tokenizer-unreadable"),
        ("marian", without("vocab.json"), "tokenizer-unreadable"),
        ("marian", configure("vocab.json", **{"unused50": None}), "tokenizer-unreadable"),
        ("marian", configure("vocab.json", more=7), "tokenizer-of-another-model"),
        ("bert", configure("tokenizer_config.json", pad_token=None), "tokenizer-without-token"),
        ("bert", configure("tokenizer_config.json", eos_token=None), "tokenizer-without-token"),
        ("bert", configure("tokenizer_config.json", unk_token=""), "tokenizer-unreadable"),
        ("bert", configure("tokenizer_config.json", pad_token=5), "tokenizer-unreadable"),
        ("bert", configure("tokenizer_config.json", tokenizer_class=5), "tokenizer-unreadable"),
        (
            "bert",
            configure("tokenizer_config.json", model_max_length=0),
            "tokenizer-length-invalid",
        ),
        (
            "bert",
            configure("tokenizer_config.json", model_max_length="x"),
            "tokenizer-length-invalid",
        ),
        (
            "bert",
            configure("tokenizer_config.json", extra_special_tokens=[f"new{i}" for i in range(9)]),
            "tokenizer-of-another-model",
        ),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(name, damage, id, copy):
    directory = copy(name)
    damage(directory)
    refused(directory, id, str(directory))


@pytest.mark.parametrize("name", ["bert", "distilbert", "electra", "roberta"])
def test_a_checkpoint_that_the_model_alone_saved_is_refused(name, tmp_path):
    """transformers makes up an empty tokenizer, for which all texts are the same."""
    tiny_model(name).save_pretrained(tmp_path)
    with pytest.raises(InputError) as caught:
        open_checkpoint(str(tmp_path))
    assert caught.value.id in ("tokenizer-missing", "tokenizer-unreadable")
    assert invoke(["inspect", str(tmp_path)]) == 4


def test_a_tokenizer_of_a_much_larger_or_smaller_model_is_refused(tmp_path, copy):
    directory = toy.classifier(tmp_path / "larger")
    model = tiny_model("bert")
    model.resize_token_embeddings(59)
    model.save_pretrained(directory)
    refused(directory, "tokenizer-of-another-model", "60 tokens")
    model.resize_token_embeddings(200)
    model.save_pretrained(directory)
    refused(directory, "tokenizer-of-another-model", "200")
    model.resize_token_embeddings(64)  # padded to a round number
    model.save_pretrained(directory)
    assert open_checkpoint(str(directory))


@pytest.mark.parametrize("name", ["marian", "pruned"])
@pytest.mark.parametrize(
    "damage",
    [
        contents(GENERATION, b""),
        contents(GENERATION, b"[]"),
        contents(GENERATION, HTML),
        contents(GENERATION, lambda data: data[: len(data) // 2]),
        contents(GENERATION, DEEP),
        contents(GENERATION, b"{}"),
        configure(GENERATION, num_beams="four"),
        configure(GENERATION, num_beams=0),
        configure(GENERATION, num_beams=10**9),
        configure(GENERATION, num_beams=True),
        configure(GENERATION, max_length=10**12),
        configure(GENERATION, max_length=-3),
        configure(GENERATION, eos_token_id=60),
        configure(GENERATION, eos_token_id="</s>"),
        configure(GENERATION, decoder_start_token_id=-1),
        configure(GENERATION, bad_words_ids=[[60]]),
        configure(GENERATION, bad_words_ids=7),
        configure(GENERATION, suppress_tokens=["a"]),
        configure(GENERATION, length_penalty=float("nan")),
        configure(GENERATION, length_penalty="long"),
        configure(GENERATION, early_stopping="often"),
    ],
)
def test_a_generation_configuration_is_read_or_refused(name, damage, copy):
    """transformers would leave out an unreadable one, and translate in another way."""
    directory = copy(name)
    damage(directory)
    refused(directory, "generation-config-malformed", str(directory / GENERATION))
