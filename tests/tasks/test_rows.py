"""Reading rows: formats, default columns, labels, splits.

Expected rows and fingerprints are written out or computed here from the text that was written,
never with the code under test.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from compressor.errors import InputError
from compressor.tasks import TASKS, count_shared, split_rows
from tests.helpers.errors import raises
from tests.helpers.rows import LABELS, PAIRS, tsv, write

translation, classification = TASKS["translation"], TASKS["classification"]


CSV = 'en,de\nHello there.,Hallo du.\n"He said ""no"".",Er sagte „nein“.\nGo!,Geh!\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.tsv", tsv(PAIRS)),
        ("ROWS.TSV", tsv(PAIRS)),
        ("rows.csv", CSV),
        ("rows.jsonl", "".join(json.dumps({"en": s, "de": t}) + "\n" for s, t in PAIRS)),
        ("crlf.tsv", tsv(PAIRS).replace("\n", "\r\n")),
        ("bom.tsv", "\ufeff" + tsv(PAIRS)),
        ("no_newline_at_end.tsv", tsv(PAIRS).rstrip("\n")),
        ("empty_lines_at_end.tsv", tsv(PAIRS) + "\n\n"),
        ("sides.tsv", tsv(PAIRS, ("source", "target"))),
        ("regions.tsv", tsv(PAIRS, ("en-US", "deu_Latn"))),
        ("any.tsv", tsv(PAIRS, ("English text", "German text"))),
        ("placed.tsv", tsv([("7", t, s) for s, t in PAIRS], ("id", "target", "source"))),
        ("en,de.tsv", tsv(PAIRS)),
        ("more.tsv", tsv([(s, t, "7", "note") for s, t in PAIRS], ("en", "de", "number", "why"))),
    ],
)
def test_the_same_pairs_from_every_format(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)
    rows = translation.read_rows(path)
    assert list(zip(rows.sources, rows.targets, strict=True)) == PAIRS
    assert (rows.task, rows.pairs, rows.files, rows.labels) == ("translation", None, [path], None)
    text = "".join(json.dumps([s, None, t], ensure_ascii=False) + "\n" for s, t in PAIRS)
    assert rows.sha256 == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("names", [("news.en", "news.de"), ("a,b.en", "a,b.de")])
def test_parallel_plain_text_files(tmp_path: Path, names: tuple[str, str]) -> None:
    source = write(tmp_path / names[0], "".join(s + "\r\n" for s, _ in PAIRS))
    target = write(tmp_path / names[1], "\n".join(t for _, t in PAIRS))
    rows = translation.read_rows(f"{source},{target}")
    assert list(zip(rows.sources, rows.targets, strict=True)) == PAIRS
    assert rows.files == [source, target]


def test_quotes_and_unusual_separators_are_text_in_tsv(tmp_path: Path) -> None:
    # str.splitlines would break at each of these characters.
    line = '"Yes," she said.\u2028two\x0bthree\x85four'
    rows = translation.read_rows(write(tmp_path / "a.tsv", f'en\tde\n{line}\t"Ja\n'))
    assert (rows.sources, rows.targets) == ([line], ['"Ja'])
    rows = translation.read_rows(write(tmp_path / "a.csv", 'en,de\n"""Yes,"" she",Ja\n'))
    assert rows.sources == ['"Yes," she']


def test_limit_takes_the_first_rows_and_changes_the_fingerprint(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS))
    rows = translation.read_rows(path, limit=2, minimum=2)
    assert rows.sources == [s for s, _ in PAIRS[:2]]
    assert rows.sha256 == translation.read_rows(write(tmp_path / "b.tsv", tsv(PAIRS[:2]))).sha256
    assert rows.sha256 != translation.read_rows(path).sha256


def test_classification_by_default_columns_names_and_class_ids(tmp_path: Path) -> None:
    content = "label\ttext\nweather\tis it cold\n0\thow much is left\n"
    rows = classification.read_rows(write(tmp_path / "a.tsv", content), labels=LABELS)
    assert rows.sources == ["is it cold", "how much is left"]
    assert rows.targets == ["weather", "balance"]
    assert rows.labels == LABELS


def test_pairs_and_named_columns(tmp_path: Path) -> None:
    lines = [
        {"sentence1": "a b", "sentence2": "c", "gold": 1},
        {"gold": "LABEL_0", "sentence1": "d", "sentence2": "e\nf"},
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    rows = classification.read_rows(
        path,
        text_column="sentence1",
        text_pair_column="sentence2",
        label_column="gold",
        labels=["LABEL_0", "LABEL_1"],
    )
    assert (rows.sources, rows.pairs) == (["a b", "d"], ["c", "e\nf"])
    assert rows.targets == ["LABEL_1", "LABEL_0"]
    text = '["a b", "c", "LABEL_1"]\n["d", "e\\nf", "LABEL_0"]\n'
    assert rows.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_shared_rows_are_counted_by_their_texts_within_the_limits(tmp_path: Path) -> None:
    first, second = tmp_path / "a.tsv", tmp_path / "b.tsv"
    first.write_text("text\tpair\tlabel\nA\tx\t0\nB\ty\t0\nC\tz\t1\n", encoding="utf-8")
    second.write_text("text\tpair\tlabel\nB\ty\t1\nB\ty\t0\nA\ty\t0\nb\ty\t0\n", encoding="utf-8")

    def shared(limit: int | None = None, **columns: str) -> int:
        calibration = classification.read_rows(first, limit=limit, **columns)
        return count_shared(classification.read_rows(second, **columns), calibration)

    assert shared() == 3  # every row of the text A or B, whatever its label
    assert shared(text_column="text", text_pair_column="pair") == 2
    assert shared(limit=1) == 1


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


def test_numbers_are_names_where_names_are_numbers(tmp_path: Path) -> None:
    stars = ["1", "2", "3"]
    path = write(tmp_path / "a.csv", "sentence,label\ngood,3\nbad,1\n")
    assert classification.read_rows(path, labels=stars).targets == ["3", "1"]
    path = write(tmp_path / "b.csv", "sentence,label\ngood,0\n")
    with raises(InputError, "label-unknown"):
        classification.read_rows(path, labels=stars)


def test_classification_columns_default_to_the_first_two(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "utterance\tintent\tsplit\nx\tweather\ttest\n")
    assert classification.read_rows(path, labels=LABELS).targets == ["weather"]
    path = write(tmp_path / "b.tsv", "label\tid\ttext\nweather\t7\tx\n")
    rows = classification.read_rows(path, labels=LABELS)
    assert (rows.sources, rows.targets) == (["x"], ["weather"])


def test_tasks_and_reading_rows_need_no_torch() -> None:
    code = (
        "import sys; from compressor import tasks; from compressor.request import example;"
        "assert all(tasks.TASKS[name].metrics for name in tasks.TASKS);"
        "tasks.TASKS['translation'].read_rows(example.test());"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
