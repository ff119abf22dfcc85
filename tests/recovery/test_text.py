"""Text to distill from, in blocks from disk, and its translations, made in chunks."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest

from compressor.recovery import RecoveryJob
from compressor.recovery.translations import translate_lines
from compressor.tasks import TASKS
from compressor.training import data as data_module
from compressor.training import text as text_module
from compressor.training.augmentation import altered
from compressor.training.data import Batches, TrainingRows
from compressor.training.text import BLOCK_ROWS, Text, TextLines
from tests.helpers.files import jsonl, packed
from tests.helpers.stages import divergence, job, repair
from tests.helpers.texts import classified, some_lines, translated, write
from tests.helpers.tiny import word_tokenizer


def test_lines_without_text_do_not_count(tmp_path: Path):
    wanted = some_lines(75)
    given = ["\ufeff" + wanted[0], "", "  \t "]
    for line in wanted[1:]:
        given += [f"  {line} ", ""]
    path = write(tmp_path / "text.txt", given, "\r\n")
    lines = TextLines(path)
    assert lines.rows == 75
    assert [text for block in range(3) for (text,) in lines.block(block)] == wanted
    assert [len(lines.block(block)) for block in range(3)] == [BLOCK_ROWS, BLOCK_ROWS, 11]
    for rows in (0, 1, 31, 32, 33, 74, 75):
        assert list(lines.after(rows)) == wanted[rows:]


def test_blank_lines_of_translations_keep_their_place(tmp_path: Path):
    source = write(tmp_path / "s.txt", ["w3", "", "w4", "w5"])
    target = write(tmp_path / "t.txt", ["w6", "", "w7"])
    text = Text(TextLines(source), TASKS["translation"], word_tokenizer(), 32)
    rows = text.translated(target).read([0])
    assert [row.source for row in rows] == [(3, 2), (4, 2), (5, 2)]
    assert [row.target for row in rows] == [(6, 2), (2,), (7, 2)]


def test_rows_are_what_the_task_encodes(tmp_path: Path):
    lines = [*some_lines(40), " ".join(["w3"] * 50)]
    rows = classified(write(tmp_path / "text.txt", lines)).read([1, 0])
    expected = [tuple(int(w[1:]) for w in line.split()) for line in lines[32:] + lines[:32]]
    assert [row.source[:-1] for row in rows] == [ids[:31] for ids in expected]
    assert [row.truncated for row in rows] == [len(ids) > 31 for ids in expected]
    assert [row.row for row in rows] == [*range(-33, -42, -1), *range(-1, -33, -1)]
    path = write(tmp_path / "pairs.txt", ["w3 w4\tw5", "", "w6\tw7 w8"])
    expected = word_tokenizer()(["w3 w4", "w6"], ["w5", "w7 w8"])["input_ids"]
    assert [list(row.source) for row in classified(path, pairs=True).read([0])] == expected


@pytest.mark.parametrize("name", ["a.txt.gz", "a.zst", "a.jsonl", "a.JSONL.ZST"])
def test_packed_text_and_json_give_the_rows_of_plain_lines(tmp_path: Path, name: str):
    """700 lines: their blocks begin at three kept offsets."""
    lines = some_lines(700)
    wanted = classified(write(tmp_path / "text.txt", lines))
    content = "".join(f" {line}\r\n\n" for line in lines)
    if "jsonl" in name.lower():
        content = jsonl({"text": line} for line in ["  ", *lines])
    text = classified(packed(tmp_path / name, content))
    assert text.lines.is_packed == name.lower().endswith((".gz", ".zst"))
    if text.lines.is_packed:
        parts: list[tuple[int, int]] = []
        text.lines.unpack(tmp_path / "stored", lambda *part: parts.append(part))
        assert parts[-1] == (0, 1)  # of one MiB, which it does not fill
        assert (tmp_path / "stored").stat().st_size == text.lines.size
        text = text.unpacked(tmp_path / "stored")
    assert text.rows == 700
    blocks = [21, 0, 8, 7, 20, 15, 16]
    assert text.read(blocks) == wanted.read(blocks)
    for rows in (0, 300, 699):
        assert list(text.lines.after(rows)) == lines[rows:]


@pytest.mark.parametrize("pairs", [False, True])
def test_altered_copies_follow_the_lines(tmp_path: Path, pairs: bool):
    """75 lines with two copies of each are eight blocks; the third has lines and copies."""
    lines = [" ".join(f"w{3 + (7 * i + j) % 30}" for j in range(10)) for i in range(75)]
    given = [f"{line}\t{line}" for line in lines] if pairs else lines
    path = write(tmp_path / "text.txt", given)
    text, without = classified(path, pairs=pairs, copies=2), classified(path, pairs=pairs)
    assert (text.rows, without.rows) == (225, 75)
    rows = text.read(range(8))
    assert [row.row for row in rows] == list(range(-1, -226, -1))
    assert [row.source for row in rows[:75]] == [row.source for row in without.read(range(3))]
    words = {id for row in rows[:75] for id in row.source}
    for number, row in enumerate(rows[75:]):
        before, after = rows[number % 75].source, row.source
        assert before != after
        assert set(after) <= words
        assert len(before) - len(after) < len(before) // 2
    assert rows[75].source != rows[150].source  # two copies of the first line
    again = classified(path, pairs=pairs, copies=2)
    assert again.read([7, 2]) == text.read([7, 2])


def test_a_copy_leaves_out_and_replaces_a_tenth_of_the_words_each():
    """8 % of 10,000 words; of two words at least one changes, if only by leaving it out."""
    before = [f"a{i}" for i in range(10_000)]
    after = altered(" ".join(before), ["b", "c", "c", "c"], Random(0)).split()
    kept = [word for word in after if word.startswith("a")]
    assert kept == [word for word in before if word in set(kept)]
    assert len(before) - len(after) == pytest.approx(800, rel=0.1)
    assert after.count("b") + after.count("c") == pytest.approx(800, rel=0.1)
    assert after.count("c") / after.count("b") == pytest.approx(3, rel=0.2)
    assert all(altered("a a", ["a"], Random(seed)) == "a" for seed in range(50))
    assert {altered("a b", ["a", "b"], Random(n)) for n in range(50)} == {"a", "b", "a a", "b b"}


def test_a_single_word_has_no_altered_copy(tmp_path: Path):
    text = classified(write(tmp_path / "text.txt", ["w3", "w4 w5"]), copies=1)
    rows = [row.source for row in text.read([0])]
    assert rows[0] == rows[2]
    assert rows[1] != rows[3]


def test_an_epoch_goes_through_rows_and_text_once_in_another_order_each_time(
    tmp_path: Path, monkeypatch
):
    """In windows of two blocks; 133 lines are five blocks, the last of five lines."""
    monkeypatch.setattr(data_module, "WINDOW_ROWS", 2 * BLOCK_ROWS)
    setup = job("bert")
    text = classified(write(tmp_path / "text.txt", some_lines(133)))
    batches = Batches(TrainingRows(setup.examples, setup.task, setup.dense, stored=text), 8, seed=0)
    orders = []
    for epoch in range(4):
        rows = [batch.rows for batch in batches.of_epoch(epoch)]
        assert len(rows) == len(batches) == 3 * 2 + 8 + 8 + 1
        assert sorted(row for batch in rows for row in batch) == list(range(-133, 48))
        assert all(len({row < 0 for row in batch}) == 1 for batch in rows)  # not mixed
        orders.append(rows)
        for skip in (1, 9, 10, 11, 22):
            rest = [batch.rows for batch in batches.of_epoch(epoch, skip)]
            assert rest == rows[skip:]
    assert orders[0] != orders[1] != orders[2]


def test_windows_have_other_blocks_in_every_epoch(tmp_path: Path, monkeypatch):
    """Two of five blocks each; the last block, which is shorter, stays in the last window."""
    monkeypatch.setattr(data_module, "WINDOW_ROWS", 2 * BLOCK_ROWS)
    setup = job("bert")
    text = classified(write(tmp_path / "text.txt", some_lines(133)))
    batches = Batches(TrainingRows([], setup.task, setup.dense, stored=text), 32, seed=0)
    firsts = []
    for epoch in range(4):
        rows = [-1 - row for batch in batches.of_epoch(epoch) for row in batch.rows]
        windows = [
            {row // BLOCK_ROWS for row in part} for part in (rows[:64], rows[64:128], rows[128:])
        ]
        assert [len(window) for window in windows] == [2, 2, 1]
        assert windows[2] == {4}
        firsts.append(windows[0])
    assert len(set(map(frozenset, firsts))) > 1


def test_what_is_skipped_is_not_read(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(data_module, "WINDOW_ROWS", 2 * BLOCK_ROWS)
    setup, read = job("bert"), []
    text = classified(write(tmp_path / "text.txt", some_lines(160)))
    block = TextLines.block
    monkeypatch.setattr(
        TextLines, "block", lambda x, number: read.append(number) or block(x, number)
    )
    batches = Batches(TrainingRows(setup.examples, setup.task, setup.dense, stored=text), 8, seed=0)
    assert len(list(batches.of_epoch(0, skip=len(batches) - 1))) == 1
    assert len(read) == 1  # of five


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch):
    """An epoch over 6,000 lines takes as much as one over 1,000; all their rows take 4 MB."""
    monkeypatch.setattr(data_module, "WINDOW_ROWS", 512)
    monkeypatch.setattr(text_module, "KEPT_BYTES", 50_000)
    setup = job("bert")

    def peak(lines: int) -> int:
        path = write(tmp_path / f"{lines}.txt", some_lines(lines))
        tracemalloc.start()
        text = classified(path)
        rows = TrainingRows(setup.examples, setup.task, setup.dense, stored=text)
        count = sum(len(x.rows) for x in Batches(rows, 32, seed=0).of_epoch(0) if x.rows[0] < 0)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count == lines
        assert 40_000 < sum(map(len, text._encoded.values())) <= 50_000  # of rows once encoded
        return most

    assert peak(6_000) < peak(1_000) + 500_000


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_distillation_from_text_brings_the_model_closer(name: str, tmp_path: Path):
    """On rows that are in neither: 16 calibration rows alone say little about them."""
    setup = job(name)
    if name == "bert":
        text = classified(write(tmp_path / "text.txt", some_lines(400)))
    else:
        text = translated(tmp_path, 400)
    others, few = setup.examples[16:], setup.examples[:16]
    options = {"learning_rate": 1e-3, "epochs": 2, "hidden": 0.0}

    def outcome(setup: RecoveryJob) -> float:
        return divergence(setup, repair(setup, distill=options).model, others)

    setup = dataclasses.replace(setup, examples=few)
    alone = outcome(setup)
    assert outcome(dataclasses.replace(setup, text=text)) < 0.8 * alone


def test_copies_are_trained_on_and_named(tmp_path: Path):
    """Half of the calibration rows are held out; 40 lines have two copies each."""
    setup = job("bert")
    text = classified(write(tmp_path / "text.txt", some_lines(40)), copies=2)
    done = repair(dataclasses.replace(setup, text=text), distill={"epochs": 3, "batch": 8})
    held = min(500, len(setup.examples) // 2)
    learn = len(setup.examples) - held
    assert done.steps == 3 * (-(-learn // 8) + -(-40 * 3 // 8))
    assert f"{learn} rows and 40 lines of text with 2 altered copies of each at" in done.text


class Translator:
    """Answers depend on the chunk, as a model's do by rounding; may be stopped."""

    def __init__(self, chunks: int | None = None) -> None:
        self.chunks, self.seen = chunks, 0

    def __call__(self, texts: Sequence[str]) -> list[str]:
        if self.chunks is not None and self.seen >= 10 * self.chunks:
            raise KeyboardInterrupt
        self.seen += len(texts)
        return [f"<{text}> of {len(texts)} from {texts[0]}" for text in texts]


@pytest.mark.parametrize("torn", [b"", b"<sentence 20> of 10 from sentence 20\n<sente", b"\xc3"])
def test_a_stopped_one_goes_on_and_ends_the_same(tmp_path: Path, torn: bytes):
    """What was written of the third chunk is dropped, whole lines included."""
    texts = [f"sentence {i}" for i in range(35)]
    lines, whole = TextLines(write(tmp_path / "text.txt", texts)), tmp_path / "whole.txt"
    translate = partial(translate_lines, lines, chunk_rows=10)
    translate(whole, Translator())
    found = whole.read_text(encoding="utf-8").splitlines()
    assert len(found) == 35
    assert found[34] == "<sentence 34> of 5 from sentence 30"
    output = tmp_path / "out" / "translations.txt"
    with pytest.raises(KeyboardInterrupt):
        translate(output, Translator(2))
    assert not output.exists()
    (unfinished,) = output.parent.glob("*.partial")
    with unfinished.open("ab") as file:
        file.write(torn)
    rest = Translator()
    translate(output, rest)
    assert rest.seen == 15
    assert output.read_bytes() == whole.read_bytes()


def test_a_translation_stays_one_line(tmp_path: Path):
    output = tmp_path / "translations.txt"
    answers = {"sentence 0": "a\nb\r\nc", "sentence 1": "", "sentence 2": "d\u2028e"}
    lines = TextLines(write(tmp_path / "text.txt", list(answers)))
    translate_lines(lines, output, lambda texts: [answers[text] for text in texts])
    assert TextLines(output, blank=True).block(0) == [("a b  c",), ("",), ("d\u2028e",)]
