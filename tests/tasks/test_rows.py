"""Reading rows: formats, packed files, default columns, labels, splits, and the memory it takes.

Expected rows and fingerprints are written out or computed here from the text that was written,
never with the code under test.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from compressor.errors import EnvironmentProblem, InputError
from compressor.storage import text_files
from compressor.tasks import TASKS, count_shared, split_rows
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.files import LABELS, PAIRS, cut_off, jsonl, packed, tsv, write

translation, classification = TASKS["translation"], TASKS["classification"]
LABELLED = tsv([(f"text {i}", LABELS[i % 3]) for i in range(40)], ("text", "label"))


def fingerprint(sources: list[str], pairs: list[str] | None, targets: list[str]) -> str:
    lines = zip(sources, pairs or [None] * len(sources), targets, strict=True)
    text = "".join(json.dumps([*line], ensure_ascii=False) + "\n" for line in lines)
    return hashlib.sha256(text.encode()).hexdigest()


OBJECTS = jsonl({"en": s, "de": t} for s, t in PAIRS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.tsv", tsv(PAIRS)),
        ("rows.csv", 'en,de\nHello there.,Hallo du.\n"He said ""no"".",Er sagte „nein“.\nGo!,Geh!'),
        ("rows.jsonl", OBJECTS),
        ("rows.tsv.gz", tsv(PAIRS)),
        ("ROWS.JSONL.ZST", OBJECTS),
        ("crlf.tsv", tsv(PAIRS).replace("\n", "\r\n")),
        ("bom.tsv", "\ufeff" + tsv(PAIRS)),
        ("no_newline_at_end.tsv", tsv(PAIRS).rstrip("\n")),
        ("empty_lines_at_end.tsv", tsv(PAIRS) + "\n\n"),
        ("sides.tsv", tsv(PAIRS, ("source", "target"))),
        ("regions.tsv", tsv(PAIRS, ("en-US", "de_DE"))),
        ("turned.tsv", tsv([(t, s) for s, t in PAIRS], ("DE", "EN"))),
        ("numbered.tsv", tsv([("7", s, t) for s, t in PAIRS], ("id", "en", "de"))),
        ("nested.jsonl", jsonl({"translation": {"de": t, "en": s}} for s, t in PAIRS)),
        ("placed.tsv", tsv([("7", t, s) for s, t in PAIRS], ("id", "target", "source"))),
        ("en,de.tsv", tsv(PAIRS)),
        ("more.tsv", tsv([(s, t, "7", "note") for s, t in PAIRS], ("en", "de", "number", "why"))),
    ],
)
def test_the_same_pairs_from_every_format(tmp_path: Path, name: str, content: str) -> None:
    path = packed(tmp_path / name, content)
    rows = translation.read_rows(path, languages=("en", "de"))
    assert list(zip(rows.sources, rows.targets, strict=True)) == PAIRS
    assert (rows.pairs, rows.files, rows.labels) == (None, [str(path)], None)
    assert rows.sha256 == fingerprint(rows.sources, None, rows.targets)


def test_parallel_plain_text_files(tmp_path: Path) -> None:
    """Names have commas, and one of them is packed."""
    source = packed(tmp_path / "a,b.en.zst", "".join(s + "\r\n" for s, _ in PAIRS))
    target = packed(tmp_path / "a,b.de", "\n".join(t for _, t in PAIRS))
    rows = translation.read_rows(f"{source},{target}")
    assert list(zip(rows.sources, rows.targets, strict=True)) == PAIRS
    assert rows.files == [str(source), str(target)]


def test_quotes_and_unusual_separators_are_text_in_tsv(tmp_path: Path) -> None:
    # str.splitlines would break at each of these characters.
    line = '"Yes," she said.\u2028two\x0bthree\x85four'
    rows = translation.read_rows(write(tmp_path / "a.tsv", f'source\ttarget\n{line}\t"Ja\n'))
    assert (rows.sources, rows.targets) == ([line], ['"Ja'])


def test_limit_takes_the_first_rows_and_changes_the_fingerprint(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS, ("source", "target")))
    rows = translation.read_rows(path, limit=2, minimum=2)
    sources, targets = ([row[side] for row in PAIRS[:2]] for side in (0, 1))
    assert (rows.sources, rows.sha256) == (sources, fingerprint(sources, None, targets))


ONE, TWO = ["a b", "d"], ["c", "e f"]
SCORED = "sentence1\tsentence2\tscore\na b\tc\t3.5\nd\te f\t-1e-3\n"
RANKED = "query\ttext\tlabel\na b\tc\t2\nd\te f\t0\n"
PAIR_COLUMNS = {"text_column": "s", "text_pair_column": "t", "label_column": "gold"}
ANSWERS, GOLD = [{"text": "c", "answer_start": 0}], ['[["c", 0]]', "[]"]
SQUAD = [
    {"context": "c", "qas": [{"question": "a b", "answers": ANSWERS}]},
    {"context": "e f", "qas": [
        {"question": "d", "is_impossible": True, "plausible_answers": [1]}]},
]  # fmt: skip
FLAT: list[Any] = [
    {"id": "7", "question": "a b", "context": "c", "answers": {"text": ["c"], "answer_start": [0]}},
    {"id": "8", "question": "d", "context": "e f", "answers": {"text": [], "answer_start": []}},
]
# Task, file, options, its contents (of JSONL the objects), and the sources, pairs and targets.
READ: list[tuple[Any, ...]] = [
    ("classification", "a.tsv", {"labels": LABELS},
     "label\ttext\nweather\ta b\n0\td\n", ONE, None, ["weather", "balance"]),
    ("classification", "a.tsv", {"labels": LABELS},
     "question\tcategory\tsplit\na b\tweather\ttest\nd\t1\ttest\n", ONE, None,
     ["weather", "card_lost"]),
    ("classification", "a.jsonl", {**PAIR_COLUMNS, "labels": ["LABEL_0", "LABEL_1"]},
     [{"s": "a b", "t": "c", "gold": 1}, {"gold": "LABEL_0", "s": "d", "t": "e f"}], ONE, TWO,
     ["LABEL_1", "LABEL_0"]),
    # A number is a name where names are numbers.
    ("classification", "a.csv", {"labels": ["1", "2", "3"], "label_column": "class"},
     "sentence,class\na b,3\nd,1\n", ONE, None, ["3", "1"]),
    ("multilabel", "a.tsv", {"labels": LABELS},
     "text\tlabel\na b\tweather|balance\nd\t\n", ONE, None, ["balance\tweather", ""]),
    ("multilabel", "a.jsonl", {"labels": LABELS},
     [{"text": "a b", "label": ["weather", 0]}, {"text": "d", "label": "card_lost"}], ONE, None,
     ["balance\tweather", "card_lost"]),
    ("multilabel", "a.tsv", {}, "text\tlabel\na b\tz|y\nd\t\n", ONE, None, ["z\ty", ""]),
    ("regression", "a.tsv", {}, SCORED, ONE, TWO, ["3.5", "-1e-3"]),
    ("regression", "a.jsonl", {},
     [{"text": "a b", "label": 3.5}, {"text": "d", "label": 2}], ONE, None, ["3.5", "2"]),
    ("reranking", "a.tsv", {}, RANKED, ONE, TWO, ["2", "0"]),
    ("reranking", "a.tsv", {"text_column": "question"},
     "label\tquestion\ttext\n2\ta b\tc\n0\td\te f\n", ONE, TWO, ["2", "0"]),
    ("embedding", "a.tsv", {}, SCORED, ONE, TWO, ["3.5", "-1e-3"]),
    ("embedding", "a.jsonl", {"text_pair_column": "b", "label_column": "n"},
     [{"text": "a b", "b": "c", "n": 3.5}, {"text": "d", "b": "e f", "n": 0}], ONE, TWO,
     ["3.5", "0"]),
    ("embedding", "a.tsv", {}, RANKED, ONE, TWO, ["2", "0"]),
    ("embedding", "a.txt.zst", {}, "a b\nd\n", ONE, None, ["", ""]),
    # Names in other forms, a table of single texts for a pair's task, and what is left.
    ("classification", "a.csv", {}, "ID,Premise,Hypothesis,gold\n7,a b,c,x\n8,d,e f,y\n", ONE, TWO,
     ["x", "y"]),
    ("regression", "a.tsv", {"text_column": "sentence1"}, SCORED, ONE, None, ["3.5", "-1e-3"]),
    ("multilabel", "a.tsv", {}, "sentence_A\tsentence_B\tlabels\na b\tc\tz\nd\te f\t\n", ONE, TWO,
     ["z", ""]),
    ("reranking", "a.tsv", {}, "query\tpassage\trelevance\na b\tc\t2.0\nd\te f\t0.0\n", ONE, TWO,
     ["2", "0"]),
    # A table for a classifier: its labels are not read.
    ("embedding", "a.tsv", {}, "label\ttext\nx\ta b\ny\td\n", ONE, None, ["", ""]),
    ("token-classification", "a.conll.gz", {},
     "-DOCSTART- O\n\na\tB-per\nb\tO\n\n\nd O\n", ONE, None, ["B-per O", "O"]),
    ("token-classification", "a.txt", {},
     "a NNP B-NP B-per\nb VBZ B-VP O\n\nd NN B-NP O\n", ONE, None, ["B-per O", "O"]),
    ("token-classification", "a.jsonl",
     {"text_column": "w", "label_column": "t", "labels": ["O", "B-per"]},
     [{"w": ["a", "b"], "t": [1, 0]}, {"w": ["d"], "t": ["O"]}], ONE, None, ["B-per O", "O"]),
    ("question-answering", "a.json.gz", {}, json.dumps({"data": [{"paragraphs": SQUAD}]}), ONE, TWO,
     GOLD),
    ("question-answering", "a.jsonl", {}, FLAT, ONE, TWO, GOLD),
    ("question-answering", "a.json", {}, json.dumps(FLAT), ONE, TWO, GOLD),
    ("question-answering", "a.json", {}, json.dumps({"data": FLAT}), ONE, TWO, GOLD),
]  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_rows_of_every_task(tmp_path: Path, case: tuple[Any, ...]) -> None:
    task, name, options, content, sources, pairs, targets = case
    content = content if isinstance(content, str) else jsonl(content)
    rows = TASKS[task].read_rows(packed(tmp_path / name, content), **options)
    assert (rows.sources, rows.pairs, rows.targets) == (sources, pairs, targets)
    assert rows.labels == options.get("labels")
    assert rows.ranked == (task == "reranking" or content == RANKED)
    assert rows.sha256 == fingerprint(sources, pairs, targets)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_damaged_file_is_an_error_with_its_name(tmp_path: Path, suffix: str) -> None:
    """Also where all rows that are used come before the damage."""
    path = cut_off(tmp_path / f"a.tsv{suffix}", LABELLED)
    with raises(InputError, "packed-file-damaged") as caught:
        classification.read_rows(path, limit=2)
    assert f"{path} cannot be unpacked" in str(caught.value)
    data = packed(path, LABELLED).read_bytes()
    for place in (0, 3, 25, -6):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with raises(InputError, "packed-file-damaged"):
            classification.read_rows(path)


def test_what_reading_a_packed_file_needs(tmp_path: Path, monkeypatch) -> None:
    """A package for Zstandard; and no memory for a line without end."""
    path = packed(tmp_path / "a.tsv.gz", f"text\tlabel\n{'x' * 2000}\tweather\n")
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1000)
    with raises(InputError, "line-too-long") as caught:
        classification.read_rows(path)
    assert f"{path}:2:" in str(caught.value)
    path = packed(tmp_path / "a.tsv.zst", tsv(PAIRS))
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with raises(EnvironmentProblem, "zstd-not-installed") as caught:
        translation.read_rows(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl.zst", ".tsv"])
def test_rows_that_are_not_used_take_no_memory(tmp_path: Path, suffix: str) -> None:
    """12,000 rows take about 2 MB."""
    rng = random.Random(0)
    rows = [(" ".join(rng.choices(toy.WORDS, k=9)), rng.choice(LABELS)) for _ in range(12_000)]
    content = tsv(rows, ("text", "label")).replace("\t", ",")
    if suffix == ".tsv":  # without a cell that shows whether they are quoted
        content = tsv([(f'"{s}"', f'"{t}"') for s, t in [("text", "label"), *rows]], ())[1:]
    if suffix == ".jsonl.zst":
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


def test_shared_rows_are_counted_by_their_texts_within_the_limits(tmp_path: Path) -> None:
    first = write(tmp_path / "a.tsv", "text\tpair\tlabel\nA\tx\t0\nB\ty\t0\nC\tz\t1\n")
    second = write(tmp_path / "b.tsv", "text\tpair\tlabel\nB\ty\t1\nB\ty\t0\nA\ty\t0\nb\ty\t0\n")

    def shared(limit: int | None = None, **columns: str) -> int:
        calibration = classification.read_rows(first, limit=limit, **columns)
        return count_shared(classification.read_rows(second, **columns), calibration)

    assert shared(text_column="text") == 3  # every row of the text A or B, whatever its label
    assert shared(text_column="text", text_pair_column="pair") == 2
    assert shared(limit=1, text_column="text") == 1


def test_rows_are_split_by_text_whatever_the_answer(tmp_path: Path) -> None:
    """600 rows of 200 texts; nothing is lost, and no text is on both sides."""
    texts = [f"text {number}" for number in range(200) for _ in range(1 + number % 5)]
    content = "".join(f"{text}\t{row % 3}\n" for row, text in enumerate(texts))
    rows = classification.read_rows(write(tmp_path / "a.tsv", "text\tlabel\n" + content))
    first, second = split_rows(rows, seed=0)
    assert set(first.sources).isdisjoint(second.sources)
    labelled = list(zip(rows.sources, rows.targets, strict=True))
    parts = [list(zip(part.sources, part.targets, strict=True)) for part in (first, second)]
    assert sorted(parts[0] + parts[1]) == sorted(labelled)
    for part in parts:
        assert len(part) == pytest.approx(300, abs=5)
        assert [row for row in labelled if row in set(part)] == part  # in the file's order
    assert len({first.sha256, second.sha256, rows.sha256}) == 3
    assert split_rows(rows, seed=0) == (first, second)
    assert split_rows(rows, seed=1) != (first, second)
