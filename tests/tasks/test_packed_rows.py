"""Rows from packed files, and how much memory reading takes."""

from __future__ import annotations

import json
import random
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from compressor.errors import EnvironmentProblem, InputError
from compressor.storage import text_files
from compressor.tasks import TASKS, batching
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.packed import PACK, cut_off, jsonl, packed
from tests.helpers.rows import LABELS, PAIRS, tsv
from tests.helpers.tiny import word_tokenizer

translation, classification = TASKS["translation"], TASKS["classification"]
COLUMNS = {"source_column": "en", "target_column": "de"}
OBJECTS = jsonl({"en": s, "de": t} for s, t in PAIRS)
LABELLED = tsv([(f"text {i}", LABELS[i % 3]) for i in range(40)], ("text", "label"))


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize(("name", "content"), [("a.tsv", tsv(PAIRS)), ("A.JSONL", OBJECTS)])
def test_packed_files_have_the_rows_of_plain_ones(tmp_path, name: str, content: str, suffix: str):
    path = packed(tmp_path / f"{name}{suffix}", content)
    rows = translation.read_rows(path, **COLUMNS)
    assert list(zip(rows.sources, rows.targets, strict=True)) == PAIRS
    assert rows.files == [str(path)]
    plain = packed(tmp_path / "plain.tsv", tsv(PAIRS))
    assert rows.sha256 == translation.read_rows(plain).sha256


def test_other_formats_may_be_packed_too(tmp_path: Path):
    """One of two parallel files, CoNLL's columns, texts alone, and SQuAD's JSON."""
    source = packed(tmp_path / "a.en.zst", "".join(f"{s}\n" for s, _ in PAIRS))
    target = packed(tmp_path / "a.de", "".join(f"{t}\n" for _, t in PAIRS))
    rows = translation.read_rows(f"{source},{target}")
    assert list(zip(rows.sources, rows.targets, strict=True)) == PAIRS
    conll = packed(tmp_path / "a.conll.gz", "w1 A\nw2 B\n\nw3 A\n")
    rows = TASKS["token-classification"].read_rows(conll, labels=["A", "B"])
    assert (rows.sources, rows.targets) == (["w1 w2", "w3"], ["A B", "A"])
    texts = packed(tmp_path / "a.txt.zst", "w1\nw2 w3\n")
    assert TASKS["embedding"].read_rows(texts).sources == ["w1", "w2 w3"]
    answers = [{"text": "w2", "answer_start": 3}]
    asked = {"context": "w1 w2", "qas": [{"question": "which?", "answers": answers}]}
    squad = packed(tmp_path / "a.json.gz", json.dumps({"data": [{"paragraphs": [asked]}]}))
    assert TASKS["question-answering"].read_rows(squad).pairs == ["w1 w2"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_was_cut_off_is_an_error_with_its_name(tmp_path: Path, suffix: str):
    """Also where all rows that are used come before the damage; and one with other bytes."""
    path = cut_off(tmp_path / f"a.tsv{suffix}", LABELLED)
    with raises(InputError, "packed-file-damaged") as caught:
        classification.read_rows(path, limit=2)
    assert f"{path} cannot be unpacked" in str(caught.value)
    malformed = packed(tmp_path / f"b.tsv{suffix}", tsv([*PAIRS, ("only one",)]))
    with raises(InputError, "cell-count-differs") as caught:
        translation.read_rows(malformed, limit=2)  # rows that are not used are checked, too
    assert f"{malformed}:5:" in str(caught.value)
    data = packed(path, LABELLED).read_bytes()
    for place in (0, 3, 25, -6):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with raises(InputError, "packed-file-damaged"):
            classification.read_rows(path)


def test_without_the_package_for_zstandard_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch
):
    path = packed(tmp_path / "a.tsv.zst", tsv(PAIRS))
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with raises(EnvironmentProblem, "zstd-not-installed") as caught:
        translation.read_rows(path)
    assert "pip install 'backports.zstd>=" in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch):
    """A file of kilobytes may unpack to gigabytes without a line end."""
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1000)
    path = packed(tmp_path / "a.tsv.gz", f"text\tlabel\n{'x' * 2000}\tweather\n")
    with raises(InputError, "line-too-long") as caught:
        classification.read_rows(path)
    assert f"{path}:2:" in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl.zst"])
def test_rows_that_are_not_used_take_no_memory(tmp_path: Path, suffix: str):
    """12,000 rows take about 2 MB."""
    rng = random.Random(0)
    rows = [(" ".join(rng.choices(toy.WORDS, k=9)), rng.choice(LABELS)) for _ in range(12_000)]
    content = tsv(rows, ("text", "label"))
    if suffix == ".csv":
        content = content.replace("\t", ",")
    elif suffix == ".jsonl.zst":
        content = jsonl({"text": s, "label": t} for s, t in rows)
    path = packed(tmp_path / f"a{suffix}", content)
    with suppress(InputError):  # cut within a row, but what is made once, is made
        classification.read_rows(packed(tmp_path / f"small{suffix}", content[:2000]))
    progress: list[int] = []
    tracemalloc.start()
    read = classification.read_rows(path, limit=16, progress=progress.append)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(zip(read.sources, read.targets, strict=True)) == rows[:16]
    assert progress == [10_000]
    assert most < 1_000_000


def test_rows_are_encoded_in_parts(monkeypatch):
    """To the same tokens as at once; long ones are cut."""
    texts = [*toy.sentences(10), " ".join(["w5"] * 40)]
    settings = {"types": True, "text": texts, "text_pair": None}
    whole = batching.encode_texts(word_tokenizer(), 16, **settings)
    monkeypatch.setattr(batching, "ENCODED_ROWS", 4)
    assert batching.encode_texts(word_tokenizer(), 16, **settings) == whole
    expected = [(*(int(word[1:]) for word in text.split()[:15]), 2) for text in texts]
    assert whole[0]["input_ids"] == expected
