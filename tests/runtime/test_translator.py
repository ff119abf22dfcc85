"""Exported translators answer as PyTorch: expected ids come from transformers' `generate`."""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from compressor.errors import InputError, UsageError
from compressor.runtime import Classifier, Translator, collate
from tests.helpers import runtime_artifacts, toy
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import Exported, export, vary
from tests.helpers.tiny import nothing_left_mask

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pieces() -> Exported:
    return runtime_artifacts.translator()


@pytest.fixture(scope="module")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """No heads at all: no cache, and no source to attend to."""
    directory = tmp_path_factory.mktemp("hollow")
    return export(toy.translator(directory / "dense"), nothing_left_mask, directory / "out", vary)


@torch.no_grad()
def generated(exported: Exported, texts: list[str], **options) -> list[list[int]]:
    """Ids from `generate` on the whole batch, without the start token and what pads the row."""
    model, tokenizer = exported.model, exported.tokenizer
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    rows = model.generate(**inputs, do_sample=False, **options)[:, 1:].tolist()
    end = model.generation_config.eos_token_id
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def batch_of(translator: Translator, texts: list[str]) -> dict[str, np.ndarray]:
    artifact = translator.artifact
    return collate(translator.encode(texts), artifact.pad_token_id, artifact.inputs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 4},
        {"max_new_tokens": 5},
        {"num_beams": 3, "max_new_tokens": 4},
    ],
    ids=str,
)
def test_generates_what_pytorch_generates(pieces: Exported, options: dict) -> None:
    texts = toy.sentences(11)
    translator = Translator(pieces.directory, threads=1)
    got = translator.generate(batch_of(translator, texts), **options)
    assert got == generated(pieces, texts, **options)
    assert len({len(row) for row in got}) > 1, "the test needs outputs of several lengths"
    one = batch_of(translator, texts[:1])
    assert translator.generate(one, **options) == generated(pieces, texts[:1], **options)


@pytest.mark.parametrize("beams", [1, 3])
def test_no_heads_at_all(hollow: Exported, beams: int) -> None:
    """Without cross-attention the decoder graph has no `attention_mask`."""
    texts = toy.sentences(7, seed=1)
    translator = Translator(hollow.directory, threads=1)
    got = translator.generate(batch_of(translator, texts), num_beams=beams)
    assert got == generated(hollow, texts, num_beams=beams)


def test_settings_of_the_artifact_are_followed(pieces: Exported, tmp_path) -> None:
    """The settings that `generate` gets as arguments, written into graphs.json."""
    data = json.loads((pieces.directory / "onnx" / "graphs.json").read_text(encoding="utf-8"))
    options = {
        "num_beams": 3,
        "length_penalty": 1.7,
        "early_stopping": True,
        "min_length": 4,
        "no_repeat_ngram_size": 2,
        "max_length": 14,
    }
    data["generation"].update(options)
    shutil.copytree(pieces.directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "onnx" / "graphs.json").write_text(json.dumps(data), encoding="utf-8")
    texts = toy.sentences(6, seed=2)
    translator = Translator(tmp_path, threads=1, verify=False)
    got = translator.generate(batch_of(translator, texts))
    assert got == generated(pieces, texts, **options)
    assert got != Translator(pieces.directory, threads=1).generate(batch_of(translator, texts))


def test_translate_keeps_the_order_and_skips_what_is_empty(pieces: Exported) -> None:
    texts = toy.sentences(9, seed=3)
    texts[2:2], texts[5:5] = [""], [" \t\n"]
    translator = Translator(pieces.directory, threads=1)
    filled = [text for text in texts if text.strip()]
    decoded = iter(
        pieces.tokenizer.batch_decode(generated(pieces, filled), skip_special_tokens=True)
    )
    expected = [next(decoded) if text.strip() else "" for text in texts]
    limits = [{}, {"batch_size": 1}, {"batch_size": 4}, {"batch_size": 32}]
    limits += [{"batch_tokens": 1}, {"batch_tokens": 30}, {"batch_size": 3, "batch_tokens": 40}]
    for limit in limits:
        assert translator.translate(texts, **limit) == expected
        for chunk_rows in (1, 3, len(texts), 100):
            stream = translator.translate_stream(iter(texts), chunk_rows=chunk_rows, **limit)
            assert list(stream) == expected
    assert len(set(expected)) > 5
    assert translator.translate([]) == list(translator.translate_stream([])) == []
    assert translator.translate(["", "  "]) == ["", ""]


def test_a_stream_reads_a_chunk_ahead_and_no_more(pieces: Exported) -> None:
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for number in itertools.count():
            taken += 1
            yield "" if number % 5 == 2 else f"w{3 + number % 40}"

    stream = Translator(pieces.directory, threads=1).translate_stream(texts(), chunk_rows=4)
    seen = [taken]
    for _ in range(9):
        next(stream)
        seen.append(taken)
    assert seen == [0, 4, 4, 4, 4, 8, 8, 8, 8, 12]


def test_a_stream_warns_of_cut_texts_once_when_it_ends(pieces: Exported) -> None:
    translator = Translator(pieces.directory, threads=1)
    most = translator.artifact.max_source_tokens
    texts = [" ".join(["w7"] * 60), "w5", "", " ".join(["w8"] * 70), "w6"]
    stream = translator.translate_stream(texts, chunk_rows=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = [next(stream) for _ in texts]
    with pytest.warns(UserWarning, match=rf"^2 of 5 texts were cut to the {most} tokens") as seen:
        assert list(stream) == []
    assert len(seen) == 1
    assert seen[0].filename == __file__
    with pytest.warns(UserWarning, match="^2 of 4 texts"):
        assert translator.translate(texts) == got


def test_long_sources_are_cut_with_one_warning_and_keep_their_end(pieces: Exported) -> None:
    translator = Translator(pieces.directory, threads=1)
    most = translator.artifact.max_source_tokens
    texts = [" ".join(["w7"] * 60), "w5", " ".join(["w8"] * 70)]
    with pytest.warns(UserWarning, match=rf"^2 of 3 texts were cut to the {most} tokens") as seen:
        rows = translator.encode(texts)
    assert len(seen) == 1
    expected = pieces.tokenizer(texts, truncation=True, max_length=most)["input_ids"]
    assert rows == expected
    assert [len(row) for row in rows] == [most, len(expected[1]), most]
    assert {row[-1] for row in rows} == set(translator.end_ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translator.encode(["w5"])


def test_a_limit_beyond_the_positions_is_that_of_the_positions(
    pieces: Exported, tmp_path: Path
) -> None:
    """The checkpoint's own `max_length` may be more than its decoder can do."""
    shutil.copytree(pieces.directory, tmp_path / "copy")
    graphs = tmp_path / "copy" / "onnx" / "graphs.json"
    data = json.loads(graphs.read_text(encoding="utf-8"))
    data["generation"] |= {"max_length": 10_000, "max_new_tokens": None, "eos_token_id": []}
    data["generation"]["forced_eos_token_id"] = None
    graphs.write_text(json.dumps(data), encoding="utf-8")
    translator = Translator(tmp_path / "copy", threads=1, verify=False)
    most = pieces.model.config.max_position_embeddings
    (row,) = translator.generate(batch_of(translator, ["w5"]), num_beams=1)
    assert len(row) == most


def test_what_cannot_be_asked_for(pieces: Exported) -> None:
    translator = Translator(pieces.directory, threads=1)
    batch = batch_of(translator, ["w5"])
    with raises(UsageError, "number-below-one"):
        translator.generate(batch, num_beams=0)
    with raises(UsageError, "number-below-one"):
        translator.translate(["w5"], max_new_tokens=0)
    with raises(UsageError, "number-below-one"):
        translator.translate(["w5"], batch_size=0)
    most = pieces.model.config.max_position_embeddings
    for options in ({"max_new_tokens": most + 1}, {"forced_length": most + 1}):
        with raises(UsageError, "length-beyond-positions"):
            translator.generate(batch, **options)
    assert len(translator.generate(batch, forced_length=most)[0]) == most
    # Before anything is read, not when the first answer is asked for.
    with raises(UsageError, "number-below-one"):
        translator.translate_stream(["w5"], batch_tokens=0)
    with raises(UsageError, "number-below-one"):
        translator.translate_stream(["w5"], chunk_rows=-1)
    with raises(UsageError, "number-below-one"):
        translator.translate_stream(["w5"], num_beams=0)
    with raises(UsageError, "forced-length-with-other-limits"):
        translator.generate(batch, num_beams=2, forced_length=4)
    for one_text in (translator.translate, translator.translate_stream):
        with raises(UsageError, "text-not-in-a-list"):
            one_text("w5")
    with raises(UsageError, "precision-not-in-artifact"):
        Translator(pieces.directory, precision="fp8")
    with raises(InputError, "artifact-of-another-task"):
        Classifier(pieces.directory)
