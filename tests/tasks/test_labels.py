"""Labels: ids and names, a 0 or 1 for each label; tags of words with other white space in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compressor.errors import InputError
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.files import jsonl, write

NAMES = ["joy", "anger", "fear", "love"]
TWO = ["joy", "anger"]
several, single, tagging = (
    TASKS[x] for x in ("multilabel", "classification", "token-classification")
)


def vectors(path: Path, labels: list[list[Any]], names: list[str]) -> list[list[float]]:
    """What the model is to answer for each row: 1 or 0 for each label."""
    content = jsonl({"text": f"text {row}", "label": label} for row, label in enumerate(labels))
    rows = several.read_rows(write(path, content), labels=names)
    return [list(row) for row in several.label_values(rows)]


HOT: list[tuple[list[str], list[list[Any]]]] = [
    (NAMES, [[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]),
    (NAMES, [[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]]),  # as the loss takes them
    (NAMES, [[False, True, True, False], [True, False, False, False]]),
    (TWO, [[0, 1], [1, 0], [1, 1]]),  # the last row can be no ids
    (TWO, [[0, 0], [0, 1]]),
    (TWO, [[0.0, 1.0], [1.0, 0.0]]),
    (NAMES, [["0", "1", "0", "1"], ["0", "0", "0", "1"]]),
    (["0", "1", "2"], [[0, 1, 1], [0, 0, 1]]),
]


@pytest.mark.parametrize(("names", "labels"), HOT)
def test_lists_of_0_and_1_are_labels_one_by_one(
    tmp_path: Path, names: list[str], labels: list[list[Any]]
) -> None:
    """By NumPy."""
    found = vectors(tmp_path / "a.jsonl", labels, names)
    np.testing.assert_array_equal(found, np.array(labels, dtype=float))
    rows = several.read_rows(tmp_path / "a.jsonl", labels=names)
    assert rows.read.endswith("labels are a 0 or 1 for each of the checkpoint's")


IDS: list[tuple[list[str], list[list[Any]]]] = [
    (NAMES, [[0, 1], [1], []]),
    (NAMES, [[0, 1, 3, 2], [2]]),
    (NAMES, [["anger", "joy"], ["love", 0]]),
    (TWO, [[1], [0, 1], [1, 0]]),  # the first row has no 0 or 1 for each
    (TWO, [["joy"], [0, 1]]),
]


@pytest.mark.parametrize(("names", "labels"), IDS)
def test_other_lists_are_ids_or_names(
    tmp_path: Path, names: list[str], labels: list[list[Any]]
) -> None:
    found = vectors(tmp_path / "a.jsonl", labels, names)
    ids = [{names.index(x) if isinstance(x, str) else x for x in row} for row in labels]
    assert found == [[float(i in row) for i in range(len(names))] for row in ids]


@pytest.mark.parametrize(
    ("names", "labels", "id"),
    [
        (TWO, [[0, 1], [1, 0]], "labels-ambiguous"),
        (TWO, [["0", "1"]], "labels-ambiguous"),
        (NAMES, [[0, 1, 0, 0], [3]], "labels-mixed"),
        (NAMES, [[0, 1, 0, 0], [0, 1, 0, 0, 1]], "labels-mixed"),
        (NAMES, [[0.2, 0.8, 0.0, 0.0]], "labels-mixed"),  # probabilities
        (NAMES, [["joy"], [0, 1, 0, 0]], "label-repeated"),
        (NAMES, [[0, 0, 1]], "label-repeated"),
        (TWO, [[1], [1, 1]], "label-repeated"),
    ],
)
def test_lists_that_are_both_or_neither_are_errors(
    tmp_path: Path, names: list[str], labels: list[list[Any]], id: str
) -> None:
    with raises(InputError, id):
        vectors(tmp_path / "a.jsonl", labels, names)
    with raises(InputError, "label-repeated"):
        several.read_rows(write(tmp_path / "a.tsv", "text\tlabel\na\t0|1|1|0\n"), labels=NAMES)


def test_whole_numbers_are_ids_and_others_are_not(tmp_path: Path) -> None:
    """pandas writes the ids of a column with gaps as 1.0; GLUE has -1 for labels kept secret."""
    path = write(tmp_path / "a.csv", "text,label\na,1.0\nb,0\nc,fear\n")
    rows = single.read_rows(path, labels=NAMES)
    assert rows.targets == ["anger", "joy", "fear"]
    assert "labels are names and ids of the checkpoint (0 is 'joy', 1 is 'anger'" in rows.read
    objects = jsonl([{"text": "a", "label": 2.0}, {"text": "b", "label": 3}])
    assert single.read_rows(write(tmp_path / "a.jsonl", objects), labels=NAMES).targets == [
        "fear",
        "love",
    ]
    for label in ("-1", "1.5", "4", " 1", "1_0"):
        with raises(InputError, "label-unknown"):
            single.read_rows(write(tmp_path / "one.csv", f"text,label\na,{label}\n"), labels=NAMES)
    with raises(InputError, "label-unknown"):  # 1.0 could be the name 1, or the id of 2
        single.read_rows(path, labels=["1", "2"])
    for value in (-1.0, 0.5):
        with raises(InputError, "cell-not-text" if value == 0.5 else "label-unknown"):
            objects = jsonl([{"text": "a", "label": value}])
            single.read_rows(write(tmp_path / "a.jsonl", objects), labels=NAMES)


def test_scores_that_are_all_the_same_measure_nothing(tmp_path: Path) -> None:
    rows = "".join(f"a {row}\tb\t-1\n" for row in range(3))
    path = write(tmp_path / "a.tsv", f"sentence1\tsentence2\tscore\n{rows}")
    for task in ("regression", "embedding"):
        with raises(InputError, "scores-constant"):
            TASKS[task].require_answers(TASKS[task].read_rows(path))
    with raises(InputError, "score-not-number"):  # Python takes it for 10
        TASKS["regression"].read_rows(write(tmp_path / "b.tsv", "text\tscore\na\t1_0\n"))


# Words of French numbers, of Chinese, and with separators that str.split and str.splitlines know.
WORDS = ["10\u00a0000", "\u3000x", "a\u2009b", "c\x85d", "e\u2028f", "g\x0bh", "i\x1cj"]


@pytest.mark.parametrize("gap", [" ", "\t", "  "])
def test_only_tabs_and_spaces_are_between_columns(tmp_path: Path, gap: str) -> None:
    lines = [gap.join((word, "NN", "B-NUM")) for word in WORDS]
    path = write(tmp_path / "a.conll", "\n".join(lines) + "\n\n")
    rows = tagging.read_rows(path, labels=["O", "B-NUM"])
    assert rows.sources[0].split(" ") == WORDS
    assert rows.targets == [" ".join(["B-NUM"] * len(WORDS))]


@pytest.mark.parametrize("name", ["tags", "ner_tags"])
def test_words_and_tags_of_the_datasets_library(tmp_path: Path, name: str) -> None:
    cells = {"id": "0", "tokens": WORDS[:2], name: [1, 0]}
    path = write(tmp_path / "a.jsonl", jsonl([cells]))
    rows = tagging.read_rows(path, labels=["O", "B-NUM"])
    assert (rows.sources, rows.targets) == ([" ".join(WORDS[:2])], ["B-NUM O"])
    cells |= {"ner_tags": [0, 0], "pos_tags": [1, 1]}
    del cells["id"]
    if name == "ner_tags":
        with raises(InputError, "columns-unclear"):
            tagging.read_rows(write(tmp_path / "b.jsonl", jsonl([cells])), labels=["O", "B-NUM"])
