"""Exported translators answer as PyTorch: expected ids come from transformers' `generate`."""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compressor.model.generation import restricted
from compressor.runtime import Runtime, Translator, collate
from compressor.storage.input_files import read_json
from tests.helpers import toy
from tests.helpers.runtime_artifacts import Exported, write_hashes

pytestmark = pytest.mark.slow


@torch.no_grad()
def generated(
    exported: Exported, texts: list[str], only: list[int] | None = None, **options
) -> list[list[int]]:
    """Ids from `generate` on the whole batch, without the start token and what pads the row.

    Args:
        only: the tokens that the decoder scores.
    """
    model, tokenizer = exported.model, exported.tokenizer
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with nullcontext() if only is None else restricted(model, only):
        rows = model.generate(**inputs, do_sample=False, **options)[:, 1:].tolist()
    end = model.generation_config.eos_token_id
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def batch_of(runtime: Runtime[Any], texts: list[str]) -> dict[str, np.ndarray]:
    artifact = runtime.artifact
    return collate(runtime.encode(texts), artifact.pad_token_id, artifact.inputs)


def change(directory: Path, graphs: Any = (), **generation: Any) -> None:
    """Change graphs.json: further float32 graphs by role, and settings of the search."""
    path = directory / "onnx" / "graphs.json"
    data = read_json(path)
    data["precisions"]["fp32"].update(graphs)
    data["generation"].update(generation)
    data["made_for"] = None  # the CPU computes float16 graphs, too, if slowly
    path.write_text(json.dumps(data), encoding="utf-8")
    write_hashes(directory)


def with_settings(directory: Path, copy: Path, **generation: Any) -> Path:
    """A copy of an artifact with other settings of the search."""
    change(shutil.copytree(directory, copy), **generation)
    return copy


@pytest.fixture
def translator(pieces: Exported) -> Translator:
    return Translator(pieces.directory, threads=1)


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 4}, {"num_beams": 3, "max_new_tokens": 4}], ids=str
)
def test_generates_what_pytorch_generates(
    pieces: Exported, translator: Translator, options: dict
) -> None:
    texts = toy.sentences(11)
    got = translator.generate(batch_of(translator, texts), **options)
    assert got == generated(pieces, texts, **options)
    assert len({len(row) for row in got}) > 1, "the test needs outputs of several lengths"
    one = batch_of(translator, texts[:1])
    assert translator.generate(one, **options) == generated(pieces, texts[:1], **options)


def test_no_heads_at_all(hollow: Exported) -> None:
    """The decoder graph has no `attention_mask` then."""
    texts, translator = toy.sentences(7, seed=1), Translator(hollow.directory, threads=1)
    for beams in (1, 3):
        got = translator.generate(batch_of(translator, texts), num_beams=beams)
        assert got == generated(hollow, texts, num_beams=beams)


def test_settings_of_the_artifact_are_followed(
    pieces: Exported, translator: Translator, tmp_path: Path
) -> None:
    """The settings that `generate` gets as arguments, written into graphs.json."""
    options = {
        "num_beams": 3, "length_penalty": 1.7, "early_stopping": True, "min_length": 4,
        "no_repeat_ngram_size": 2, "max_length": 14,
    }  # fmt: skip
    directory = with_settings(pieces.directory, tmp_path / "copy", **options)
    texts = toy.sentences(6, seed=2)
    batch = batch_of(translator, texts)
    got = Translator(directory, threads=1).generate(batch)
    assert got == generated(pieces, texts, **options)
    assert got != translator.generate(batch)


def test_an_ordinary_start_token_stands_in_the_text(pieces: Exported, tmp_path: Path) -> None:
    """As in what transformers makes of all that `generate` returns; a special one is left out."""
    texts, texts_by_start = toy.sentences(5, seed=8), {}
    batch = pieces.tokenizer(texts, return_tensors="pt", padding=True)
    for start in (9, 1, 0):
        options = {"decoder_start_token_id": start, "num_beams": 2}
        directory = with_settings(pieces.directory, tmp_path / str(start), **options)
        translator = Translator(directory, threads=1)
        rows = pieces.model.generate(**batch, do_sample=False, **options)
        expected = pieces.tokenizer.batch_decode(rows, skip_special_tokens=True)
        assert translator.translate(texts) == expected
        assert list(translator.translate_stream(texts)) == expected
        texts_by_start[start] = expected
    first = pieces.tokenizer.decode([9]).strip()
    assert {text[: len(first)] for text in texts_by_start[9]} == {first}


def test_translate_keeps_the_order_and_skips_what_is_empty(
    pieces: Exported, translator: Translator
) -> None:
    texts = toy.sentences(9, seed=3)
    texts[2:2], texts[5:5] = [""], [" \t\n"]
    filled = [text for text in texts if text.strip()]
    rows = generated(pieces, filled)
    decoded = iter(pieces.tokenizer.batch_decode(rows, skip_special_tokens=True))
    expected = [next(decoded) if text.strip() else "" for text in texts]
    for limit in ({}, {"batch_size": 1}, {"batch_size": 3, "batch_tokens": 40}):
        assert translator.translate(texts, **limit) == expected
        for chunk_rows in (1, 3, 100):
            stream = translator.translate_stream(iter(texts), chunk_rows=chunk_rows, **limit)
            assert list(stream) == expected
    assert len(set(expected)) > 5
    assert translator.translate([]) == list(translator.translate_stream([])) == []


def test_texts_are_cut_with_one_warning_at_the_end(
    pieces: Exported, translator: Translator
) -> None:
    most = translator.artifact.max_source_tokens
    texts = ["w7 " * 60, "w5", "", "w8 " * 70, "w6"]
    stream = translator.translate_stream(texts, chunk_rows=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = [next(stream) for _ in texts]
    with pytest.warns(UserWarning, match=rf"^2 of 5 texts were cut to the {most} tokens") as seen:
        assert list(stream) == []
    assert len(seen) == 1
    assert seen[0].filename == __file__
    with pytest.warns(UserWarning, match="^2 of 5 texts"):
        assert translator.translate(texts) == got
    with pytest.warns(UserWarning, match="^2 of 5 texts"):
        rows = translator.encode(texts)
    assert rows == pieces.tokenizer(texts, truncation=True, max_length=most)["input_ids"]
    assert {len(rows[0]), len(rows[3])} == {most}
