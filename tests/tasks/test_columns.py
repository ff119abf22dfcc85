"""Which columns are read: of tables as data sets have them, and of those that leave it open.

Expected texts are those that csv.DictReader reads from the columns that are written out here.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.tasks import TASKS
from compressor.tasks.rows import Reading
from compressor.tasks.texts import DISTILL, SOURCE, TARGET, open_texts, texts_of
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.files import jsonl, packed, write

# Headers of tables with pairs, and the places of the two texts and of the label: GLUE's data sets
# as they are distributed and as the datasets library has them, and others.
PAIRS = {
    "idx sentence1 sentence2 label": (1, 2, 3),  # MRPC, RTE, WNLI, PAWS
    "Quality|#1 ID|#2 ID|#1 String|#2 String": (3, 4, 0),  # MRPC
    "id qid1 qid2 question1 question2 is_duplicate": (3, 4, 5),  # QQP
    "index pairID genre sentence1_parse sentence2_parse sentence1 sentence2 label1 gold_label":
        (5, 6, 8),  # MNLI
    "index question sentence label": (1, 2, 3),  # QNLI
    "uid premise hypothesis label reason": (1, 2, 3),  # ANLI
    "question passage idx label": (0, 1, 3),  # BoolQ
    "pair_ID sentence_A sentence_B label": (1, 2, 3),  # SICK
    "label text_a text_b": (1, 2, 0),
    "text text_pair label": (0, 1, 2),
}  # fmt: skip


@pytest.mark.parametrize(
    "task", ["classification", "multilabel", "regression", "reranking", "embedding"]
)
@pytest.mark.parametrize("header", PAIRS)
def test_pairs_are_read_by_all_tasks_alike(tmp_path: Path, header: str, task: str) -> None:
    names, places = header.split("|" if "|" in header else None), PAIRS[header]
    first, second, label = (names[place] for place in places)
    rows = [[str(row) if x == label else f"{x} of {row}" for x in names] for row in range(2)]
    lines = ["\t".join(cells) for cells in [names, *rows]]
    path = write(tmp_path / "a.tsv", "\n".join(lines))
    # The names of labels of classes are not those of numbers.
    named = {} if label == "label" or task in ("classification", "multilabel") else label
    read = TASKS[task].read_rows(path, label_column=named or None)
    table = list(csv.DictReader(lines, delimiter="\t"))
    expected = [[row[name] for row in table] for name in (first, second, label)]
    assert [read.sources, read.pairs, read.targets] == expected
    assert read.read.startswith(f"text {first!r}, second text {second!r}, label {label!r}")
    if task != "reranking":  # one text, where one is asked for
        read = TASKS[task].read_rows(path, text_column=first, label_column=named or None)
        assert (read.sources, read.pairs) == (expected[0], None)
        assert repr(second) in read.read.partition("not read: ")[2]


@torch.no_grad()
def test_answers_to_pairs_are_those_of_transformers(tmp_path: Path) -> None:
    """Labels by transformers, which reads both texts of a row."""
    opened = open_checkpoint(str(toy.classifier(tmp_path / "model")))
    model, tokenizer, task = opened.model, opened.tokenizer, TASKS["classification"]
    pairs = list(zip(toy.sentences(30), toy.sentences(30, seed=1), strict=True))
    logits = [model(**tokenizer(*pair, return_tensors="pt")).logits[0] for pair in pairs]
    labels = [f"LABEL_{int(row.argmax())}" for row in logits]
    rows = [f"{a}\t{b}\t{label}" for (a, b), label in zip(pairs, labels, strict=True)]
    path = write(tmp_path / "a.tsv", "\n".join(["premise\thypothesis\tlabel", *rows]))
    read = task.read_rows(path, labels=task.label_names(model.config))
    examples = task.encode(read, tokenizer, opened.max_source_tokens)
    answers = {}
    for batch in task.batches(examples, model):
        answers |= dict(zip(batch.rows, task.predict(model, batch, tokenizer), strict=True))
    assert [answers[row] for row in range(30)] == labels == read.targets
    assert len({*labels}) > 1


# Task, languages, header, and the columns that are read.
READ: list[tuple[str, tuple[str | None, str | None], str, str, str]] = [
    ("summarization", (None, None), "id dialogue summary", "dialogue", "summary"),  # SAMSum
    ("summarization", (None, None), "id dialogue summary topic", "dialogue", "summary"),
    ("summarization", (None, None), "id article highlights", "article", "highlights"),  # CNN/DM
    ("summarization", (None, None), "document summary id", "document", "summary"),  # XSum
    ("summarization", (None, None), "id url title summary text", "text", "summary"),  # XL-Sum
    ("translation", (None, None), "id Source Target", "Source", "Target"),
    ("translation", ("en", "de"), "id en de", "en", "de"),
    ("translation", ("en", "de"), "de en", "en", "de"),
    ("translation", ("de", "en"), "en de fr", "de", "en"),
    ("translation", ("eng_Latn", "deu_Latn"), "deu_Latn fra_Latn eng_Latn", "eng_Latn", "deu_Latn"),
    ("translation", ("en_XX", "de_DE"), "de en", "en", "de"),
    ("translation", ("zh", "en"), "zh-Hans en-US id", "zh-Hans", "en-US"),
    ("translation", ("en", "de"), "source en de", "en", "de"),  # where the rows come from
    (
        "translation",
        ("eng_Latn", "deu_Latn"),
        "id URL sentence_deu_Latn sentence_eng_Latn",
        "sentence_eng_Latn",
        "sentence_deu_Latn",
    ),  # FLORES
]


@pytest.mark.parametrize(("task", "languages", "header", "source", "target"), READ)
def test_sources_and_targets_are_read_by_their_names(
    tmp_path: Path, task: str, languages: Any, header: str, source: str, target: str
) -> None:
    names = header.split()
    lines = [",".join(names), *(",".join(f"{x} of {row}" for x in names) for row in range(3))]
    read = TASKS[task].read_rows(write(tmp_path / "a.csv", "\n".join(lines)), languages=languages)
    table = list(csv.DictReader(lines))
    assert read.sources == [row[source] for row in table]
    assert read.targets == [row[target] for row in table]
    assert read.read.startswith(f"source {source!r}, target {target!r}")


NO_LANGUAGES = (None, None)
# Task, languages, header, and the options to give.
UNCLEAR: list[tuple[str, tuple[str | None, str | None], str, tuple[str, ...]]] = [
    ("translation", NO_LANGUAGES, "en de", ("--source-column", "--target-column")),
    ("translation", ("fr", "de"), "en de", ("--source-column", "--target-column")),
    ("translation", ("en", "de"), "en-US en-GB de", ("--source-column", "--target-column")),
    ("translation", ("en", "de"), "source target en de", ("--source-column", "--target-column")),
    ("translation", ("zho_Hans", "en"), "zho_Hant en", ("--source-column", "--target-column")),
    ("translation", ("en", "de"), "english german", ("--source-column", "--target-column")),
    ("summarization", NO_LANGUAGES, "id body", ("--source-column", "--target-column")),
    ("summarization", NO_LANGUAGES, "article highlights summary", ("--source-column",)),
    ("classification", NO_LANGUAGES, "text sentence2 label", ("--text-column", "-pair-column")),
    ("classification", NO_LANGUAGES, "title text label", ("--text-column",)),
    ("classification", NO_LANGUAGES, "question context answer label", ("--text-column",)),
    ("classification", NO_LANGUAGES, "id text", ("--label-column",)),  # not the number of a row
    ("multilabel", NO_LANGUAGES, "text Toxic", ("--label-column",)),
    ("classification", NO_LANGUAGES, "text coarse fine", ("--label-column",)),
    ("multilabel", NO_LANGUAGES, "comment toxic", ("--label-column",)),  # a column for a label
    ("regression", NO_LANGUAGES, "a b c", ("--text-column",)),
    ("reranking", NO_LANGUAGES, "text label", ("--text-pair-column",)),
    ("embedding", NO_LANGUAGES, "sentence1 sentence2", ("--label-column", "--text-column")),
    ("embedding", NO_LANGUAGES, "anchor positive", ("--text-column",)),
]


@pytest.mark.parametrize(("task", "languages", "header", "flags"), UNCLEAR)
def test_what_a_table_leaves_open_is_asked_for(
    tmp_path: Path, task: str, languages: Any, header: str, flags: tuple[str, ...]
) -> None:
    names = header.split()
    path = write(tmp_path / "a.tsv", "\t".join(names) + "\n" + "\t".join("1" * len(names)) + "\n")
    labels = ["toxic", "rude", "1"] if task == "multilabel" else None
    with raises(InputError, "columns-unclear") as caught:
        TASKS[task].read_rows(path, languages=languages, labels=labels)
    assert f"{path}: its columns ({', '.join(map(repr, names))})" in str(caught.value)
    assert all(flag in str(caught.value) for flag in flags)


def test_a_column_of_unknown_name_with_texts_may_be_a_second_text(tmp_path: Path) -> None:
    read_rows = TASKS["classification"].read_rows
    cells = {"text": "a b", "note": "x", "label": "y", "label_text": "very good", "": "0"}
    path = write(tmp_path / "a.jsonl", jsonl([cells, cells]))
    rows = read_rows(path)
    assert (rows.sources, rows.pairs, rows.targets) == (["a b"] * 2, None, ["y", "y"])
    path = write(tmp_path / "a.jsonl", jsonl([cells, cells | {"note": "It is another text."}]))
    with raises(InputError, "columns-unclear"):
        read_rows(path)
    assert read_rows(path, text_column="text").pairs is None


def test_the_only_other_column_is_the_label(tmp_path: Path) -> None:
    """Also one whose labels are several words."""
    path = write(tmp_path / "a.tsv", "text\tmood\na b\tvery good\nc d\tquite bad\n")
    rows = TASKS["classification"].read_rows(path)
    assert (rows.sources, rows.pairs, rows.targets) == (
        ["a b", "c d"],
        None,
        ["very good", "quite bad"],
    )


def test_numbers_of_rows_are_no_texts(tmp_path: Path) -> None:
    """As pandas writes its index, and others an id."""
    for name in ("", "Unnamed: 0", "id", "Index", "row_id", "uid"):
        path = write(tmp_path / "a.csv", f"{name},utterance,intent\n0,a,b\n1,c,d\n")
        rows = TASKS["classification"].read_rows(path)
        assert (rows.sources, rows.targets) == (["a", "c"], ["b", "d"])
        path = write(tmp_path / "b.csv", f"{name},what,label\n0,a,b\n1,c,d\n")
        assert TASKS["classification"].read_rows(path).sources == ["a", "c"]


def test_files_whose_names_say_the_other_direction_are_errors(tmp_path: Path) -> None:
    for source, target in (("a.de", "a.en"), ("de.txt", "en.txt"), ("a.de_DE.gz", "a.en_US.gz")):
        files = [str(packed(tmp_path / name, "text\n")) for name in (source, target)]
        read_rows = TASKS["translation"].read_rows
        with raises(InputError, "parallel-files-turned"):
            read_rows(",".join(files), languages=("en", "de"))
        assert read_rows(",".join(files), languages=("de", "en")).files == files
        assert read_rows(",".join(files)).files == files


def test_one_side_that_is_named_leaves_the_other(tmp_path: Path) -> None:
    read_rows = TASKS["translation"].read_rows
    path = write(tmp_path / "a.tsv", "en\tde\tfr\nE\tD\tF\n")
    rows = read_rows(path, languages=("en", "fr"), target_column="fr")
    assert (rows.sources, rows.targets) == (["E"], ["F"])
    with raises(InputError, "columns-unclear"):
        read_rows(path, source_column="en")
    rows = read_rows(write(tmp_path / "b.tsv", "en\tde\nE\tD\n"), source_column="de")
    assert (rows.sources, rows.targets) == (["D"], ["E"])


def test_a_column_without_separators_is_no_text(tmp_path: Path) -> None:
    """A table with semicolons, as some programs write .csv."""
    path = write(tmp_path / "a.csv", "sentence1;sentence2;score\na;b;3\n")
    for task in ("embedding", "regression"):
        with raises(InputError, "too-few-columns"):
            TASKS[task].read_rows(path)


def test_objects_with_a_name_twice_or_without_a_translation_are_errors(tmp_path: Path) -> None:
    twice = write(tmp_path / "a.jsonl", '{"text": "a", "text": "b", "label": "c"}\n')
    with raises(InputError, "json-malformed"):
        TASKS["classification"].read_rows(twice)
    lines = [{"translation": {"en": "a", "de": "b"}}, {"translation": None}]
    with raises(InputError, "cell-not-text") as caught:
        TASKS["translation"].read_rows(
            write(tmp_path / "b.jsonl", jsonl(lines)), languages=("en", "de")
        )
    assert ":2: " in str(caught.value)


def texts(task: str, path: Path, option: str, languages: Any = NO_LANGUAGES) -> list[str]:
    return list(texts_of(path, option, TASKS[task], Reading(languages=languages)).each())


def test_texts_of_objects_are_chosen_as_in_rows(tmp_path: Path) -> None:
    both = {"id": "7", "en": " An \u00a0egg.", "de": "Ein Ei.\u3000"}
    path = Path(write(tmp_path / "a.jsonl", jsonl([both])))
    assert texts("translation", path, TARGET, ("en", "de")) == [both["de"]]
    opened = texts_of(path, TARGET, TASKS["translation"], Reading(languages=("en", "de")))
    assert opened.said == f"{path}: texts in 'de'"
    with raises(InputError, "columns-unclear"):
        texts("translation", path, TARGET)
    for cells, found in (
        ({"uid": 1, "premise": "a", "hypothesis": "b", "label": 0}, ["a", "b"]),
        ({"id": 1, "utterance": "a"}, ["a"]),
        ({"number": "1", "words": "a", "more": "b"}, None),
    ):
        path.write_text(json.dumps(cells), encoding="utf-8")
        if found is None:
            with raises(InputError, "columns-unclear"):
                texts("classification", path, SOURCE)
        else:
            assert texts("classification", path, SOURCE) == found


def test_tables_are_no_texts(tmp_path: Path) -> None:
    """Their lines would be read with their labels and tabs."""
    for name in ("a.tsv", "a.csv", "a.tsv.gz", "a.conll"):
        with raises(InputError, "texts-in-table"):
            open_texts(tmp_path / name, DISTILL)
    path = Path(write(tmp_path / "pairs.tsv", "a\tb\n"))
    assert list(open_texts(path, DISTILL, pairs=True).each()) == ["a", "b"]
