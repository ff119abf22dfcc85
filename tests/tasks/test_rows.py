"""Reading rows: formats, default columns, labels, and every malformed file named by file and line.

Expected rows and fingerprints are written out or computed here from the text that was written,
never with the code under test.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compressor import example
from compressor.errors import CompressError, InputError, UsageError
from compressor.tasks import count_shared, read_rows

PAIRS = [("Hello there.", "Hallo du."), ('He said "no".', "Er sagte „nein“."), ("Go!", "Geh!")]
LABELS = ["balance", "card_lost", "weather"]


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def tsv(rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ("en", "de")) -> str:
    return "".join("\t".join(row) + "\n" for row in [header, *rows])


# --- formats ---------------------------------------------------------------------------------


def as_csv(rows: Sequence[tuple[str, ...]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("en", "de"), *rows])
    return text.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.tsv", tsv(PAIRS)),
        ("ROWS.TSV", tsv(PAIRS)),
        ("rows.csv", as_csv(PAIRS)),
        ("rows.jsonl", "".join(json.dumps({"en": s, "de": t}) + "\n" for s, t in PAIRS)),
        ("crlf.tsv", tsv(PAIRS).replace("\n", "\r\n")),
        ("bom.tsv", "\ufeff" + tsv(PAIRS)),
        ("no_newline_at_end.tsv", tsv(PAIRS).rstrip("\n")),
        ("empty_lines_at_end.tsv", tsv(PAIRS) + "\n\n"),
        ("sides.tsv", tsv(PAIRS, ("source", "target"))),
        ("regions.tsv", tsv(PAIRS, ("en-US", "deu_Latn"))),
        ("any.tsv", tsv(PAIRS, ("English text", "German text"))),
        ("more.tsv", tsv([(s, t, "7", "note") for s, t in PAIRS], ("en", "de", "number", "why"))),
    ],
)
def test_the_same_pairs_from_every_format(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)
    rows = read_rows("translation", path)
    assert list(zip(rows.sources, rows.targets, strict=True)) == PAIRS
    assert (rows.task, rows.pairs, rows.files, rows.labels) == ("translation", None, [path], None)
    text = "".join(json.dumps([s, None, t], ensure_ascii=False) + "\n" for s, t in PAIRS)
    assert rows.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_parallel_plain_text_files(tmp_path: Path) -> None:
    source = write(tmp_path / "news.en", "".join(s + "\r\n" for s, _ in PAIRS))
    target = write(tmp_path / "news.de", "\n".join(t for _, t in PAIRS))
    rows = read_rows("translation", f"{source},{target}")
    assert list(zip(rows.sources, rows.targets, strict=True)) == PAIRS
    assert rows.files == [source, target]


def test_commas_inside_paths(tmp_path: Path) -> None:
    one = write(tmp_path / "en,de.tsv", tsv(PAIRS))
    assert len(read_rows("translation", one).sources) == 3
    source = write(tmp_path / "a,b.en", "one\n")
    target = write(tmp_path / "a,b.de", "eins\n")
    assert read_rows("translation", f"{source},{target}").files == [source, target]


def test_columns_by_name_and_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", tsv([("drei", "x", "three")], ("ziel", "en", "quelle")))
    rows = read_rows("translation", path, source_column="quelle", target_column="ziel")
    assert (rows.sources, rows.targets) == (["three"], ["drei"])


def test_quotes_are_text_in_tsv_and_quoting_in_csv(tmp_path: Path) -> None:
    line = '"Yes," she said.'
    rows = read_rows("translation", write(tmp_path / "a.tsv", f'en\tde\n{line}\t"Ja\n'))
    assert (rows.sources, rows.targets) == ([line], ['"Ja'])
    rows = read_rows("translation", write(tmp_path / "a.csv", 'en,de\n"""Yes,"" she",Ja\n'))
    assert rows.sources == ['"Yes," she']


def test_unusual_line_separators_do_not_split_a_sentence(tmp_path: Path) -> None:
    # str.splitlines would break at each of these characters.
    sentence = "one\u2028two\x0bthree\x85four"
    path = write(tmp_path / "a.tsv", tsv([(sentence, "eins")]))
    assert read_rows("translation", path).sources == [sentence]


def test_limit_takes_the_first_rows_and_changes_the_fingerprint(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS))
    rows = read_rows("translation", path, limit=2, minimum=2)
    assert rows.sources == [s for s, _ in PAIRS[:2]]
    assert rows.sha256 == read_rows("translation", write(tmp_path / "b.tsv", tsv(PAIRS[:2]))).sha256
    assert rows.sha256 != read_rows("translation", path).sha256


def test_bundled_files_are_read_with_default_options() -> None:
    for path in (example.calibration(), example.test()):
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = read_rows("translation", path)
        assert len(rows.sources) == len(lines) - 1
        assert f"{rows.sources[-1]}\t{rows.targets[-1]}" == lines[-1]


# --- classification --------------------------------------------------------------------------


def test_classification_by_default_columns_names_and_class_ids(tmp_path: Path) -> None:
    content = "label\ttext\nweather\tis it cold\n0\thow much is left\n"
    rows = read_rows("classification", write(tmp_path / "a.tsv", content), labels=LABELS)
    assert rows.sources == ["is it cold", "how much is left"]
    assert rows.targets == ["weather", "balance"]
    assert rows.labels == LABELS


def test_pairs_and_named_columns(tmp_path: Path) -> None:
    lines = [
        {"sentence1": "a b", "sentence2": "c", "gold": 1},
        {"gold": "LABEL_0", "sentence1": "d", "sentence2": "e\nf"},
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    rows = read_rows(
        "classification",
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
        calibration = read_rows("classification", first, limit=limit, **columns)
        return count_shared(read_rows("classification", second, **columns), calibration)

    assert shared() == 3  # every row of the text A or B, whatever its label
    assert shared(text_column="text", text_pair_column="pair") == 2
    assert shared(limit=1) == 1


def test_numbers_are_names_where_names_are_numbers(tmp_path: Path) -> None:
    stars = ["1", "2", "3"]
    path = write(tmp_path / "a.csv", "sentence,label\ngood,3\nbad,1\n")
    assert read_rows("classification", path, labels=stars).targets == ["3", "1"]
    path = write(tmp_path / "b.csv", "sentence,label\ngood,0\n")
    with pytest.raises(InputError, match=r"b\.csv:2: the label '0' is not one of .* 3 "):
        read_rows("classification", path, labels=stars)


def test_labels_are_taken_as_they_are_without_a_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nx,yes\ny,7\n")
    rows = read_rows("classification", path)
    assert (rows.targets, rows.labels) == (["yes", "7"], None)


# --- malformed input -------------------------------------------------------------------------

TRANSLATION_ERRORS: dict[str, tuple[str, str | bytes, str]] = {
    "too few cells": (
        "a.tsv",
        "en\tde\na\tb\nc\n",
        "a.tsv:3: 1 cell in a row, but the header has 2",
    ),
    "too many cells": ("a.tsv", "en\tde\na\tb\tc\n", "a.tsv:2: 3 cells in a row"),
    "empty line": ("a.tsv", "en\tde\n\na\tb\n", "a.tsv:2: 1 cell"),
    "empty source": ("a.tsv", "en\tde\na\tb\n \tb\n", "a.tsv:3: 'en' is empty"),
    "empty target": ("a.tsv", "en\tde\na\t\n", "a.tsv:2: 'de' is empty"),
    "line numbers behind quoted newlines": (
        "a.csv",
        'en,de\n"one\ntwo\n\nthree",b\nc,\n',
        "a.csv:6: 'de' is empty",
    ),
    "open quote": ("a.csv", 'en,de\na,b\n"c,d\ne,f\n', "a.csv:3: not a CSV row: unexpected end"),
    "text behind a quote": ("a.csv", 'en,de\n"a"x,b\n', "a.csv:2: not a CSV row"),
    "empty line in csv": ("a.csv", "en,de\n\na,b\n", "a.csv:2: 1 cell"),
    "semicolons": ("a.csv", "en;de\na;b\n", "a.csv:1: there is only the column 'en;de'"),
    "no header": (
        "a.tsv",
        "A boy.\tEin Junge.\nNo.\tNein.\n",
        "a.tsv:1: the first line must be a header",
    ),
    "no header, long": ("a.tsv", "so it goes on and on\tund so weiter\n", "put a header above"),
    "one column": ("a.tsv", "en\na\n", "a.tsv:1: there is only the column 'en'; two are needed"),
    "column twice": ("a.tsv", "en\ten\na\tb\n", "a.tsv:1: the column 'en' occurs twice"),
    "latin-1": ("a.tsv", "en\tde\na\tb\nyou\tfür\n".encode("latin-1"), "a.tsv:3: byte 0xfc is not"),
    "bom and latin-1": ("a.tsv", b"\xef\xbb\xbfen\tde\na\t\xe4\n", "a.tsv:2: byte 0xe4"),
    "utf-16": (
        "a.tsv",
        "en\tde\na\tb\n".encode("utf-16"),
        "a.tsv is UTF-16 text; save it as UTF-8",
    ),
    "nul": ("a.tsv", "en\tde\na\tb\nc\0\td\n", "a.tsv:3: a NUL character"),
    "empty file": ("a.tsv", "", "a.tsv is empty"),
    "header only": ("a.tsv", "en\tde\n", "a.tsv: too few rows, 0; the minimum is 1"),
    "unknown suffix": ("a.xlsx", "en\tde\n", "use one of .tsv, .csv, .jsonl"),
    "one text file": ("a.txt", "a\n", "give two parallel files, SOURCE.txt,TARGET.txt"),
    "invalid json": ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": \n', "a.jsonl:2: not valid JSON"),
    "deep json": ("a.jsonl", "[" * 100_000, "a.jsonl:1: not valid JSON"),
    "not an object": ("a.jsonl", '["a", "b"]\n', "a.jsonl:1: not a JSON object"),
    "number for text": ("a.jsonl", '{"en": 5, "de": "b"}\n', "a.jsonl:1: 'en' is 5, which is not"),
    "null for text": ("a.jsonl", '{"en": "a", "de": null}', "a.jsonl:1: 'de' is null, which"),
    "missing key": (
        "a.jsonl",
        '{"en": "a", "de": "b"}\n{"en": "c"}',
        "a.jsonl:2: the object has no",
    ),
    "half a surrogate": ("a.jsonl", '{"en": "\\ud83d", "de": "b"}', "a.jsonl:1: 'en' holds half"),
}


def message(task: Any, spec: str, **options: Any) -> str:
    with pytest.raises(CompressError) as caught:
        read_rows(task, spec, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("case", TRANSLATION_ERRORS)
def test_malformed_translation_file(tmp_path: Path, case: str) -> None:
    name, content, expected = TRANSLATION_ERRORS[case]
    path = write(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        read_rows("translation", path)
    assert str(caught.value).startswith((path, "the format of"))
    assert expected in str(caught.value)


def test_advice_for_a_missing_header_works(tmp_path: Path) -> None:
    content = "A boy.\tEin Junge.\nNo.\tNein.\n"
    path = write(tmp_path / "a.tsv", content)
    assert "--source-column and --target-column" in message("translation", path)
    rows = read_rows("translation", write(tmp_path / "a.tsv", "en\tde\n" + content))
    assert rows.targets == ["Ein Junge.", "Nein."]


def test_too_few_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS))
    assert message("translation", path, minimum=4).endswith("too few rows, 3; the minimum is 4")
    assert len(read_rows("translation", path, minimum=3).sources) == 3


def test_missing_file_and_directory(tmp_path: Path) -> None:
    assert message("translation", str(tmp_path / "no.tsv")).startswith("there is no file ")
    (tmp_path / "folder.tsv").mkdir()
    assert "is a directory" in message("translation", str(tmp_path / "folder.tsv"))


def test_unknown_columns_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS))
    text = message("translation", path, source_column="en", target_column="fr")
    assert text.endswith("a.tsv has no column 'fr'; its columns are 'en', 'de'")


def test_parallel_files_that_do_not_match(tmp_path: Path) -> None:
    source = write(tmp_path / "a.en", "one\ntwo\n")
    longer = write(tmp_path / "a.de", "eins\nzwei\ndrei\n")
    gap = write(tmp_path / "b.de", "eins\n\n")
    assert f"{source} has 2 lines, but {longer} has 3" in message(
        "translation", f"{source},{longer}"
    )
    assert message("translation", f"{source},{gap}").startswith(f"{gap}:2: the line is empty")
    assert message("translation", f"{source},{tmp_path / 'c.de'}").startswith("there is no file ")
    table = write(tmp_path / "d.tsv", tsv(PAIRS))
    assert f"{table} in " in message("translation", f"{source},{table}")


def test_unknown_label_tells_the_known_ones(tmp_path: Path) -> None:
    labels = [f"intent_{number}" for number in range(150)]
    path = write(tmp_path / "a.tsv", "text\tlabel\na\tintent_3\nb\tIntent_149\nc\tx\n")
    text = message("classification", path, labels=labels)
    assert "a.tsv:3: the label 'Intent_149' is not one of the checkpoint's 150" in text
    assert "'intent_0', 'intent_1', 'intent_2', 'intent_3', 'intent_4', …" in text
    assert text.endswith("did you mean 'intent_149'?")


@pytest.mark.parametrize(
    ("label", "expected"),
    [("", "'label' is empty"), ("3", "the label '3'"), ("-1", "the label '-1'"), ("01", "'01'")],
)
def test_labels_that_are_no_class(tmp_path: Path, label: str, expected: str) -> None:
    path = write(tmp_path / "a.tsv", f"text\tlabel\nx\t{label}\n")
    text = message("classification", path, labels=LABELS)
    assert "a.tsv:2: " in text
    assert expected in text


def test_a_boolean_is_no_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "x", "label": true}\n')
    assert "'label' is true, which is not" in message("classification", path, labels=LABELS)


def test_classification_columns_default_to_the_first_two(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "utterance\tintent\tsplit\nx\tweather\ttest\n")
    assert read_rows("classification", path, labels=LABELS).targets == ["weather"]
    path = write(tmp_path / "b.tsv", "label\tid\ttext\nweather\t7\tx\n")
    rows = read_rows("classification", path, labels=LABELS)
    assert (rows.sources, rows.targets) == (["x"], ["weather"])


@pytest.mark.parametrize(
    ("labels", "expected"), [(["only"], "regression"), (["a", "b", "a"], "'a' to two classes")]
)
def test_labels_of_the_checkpoint_must_be_usable(
    tmp_path: Path, labels: list[str], expected: str
) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\nx\ta\n")
    assert expected in message("classification", path, labels=labels)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("translation", {"source_column": "en"}),
        ("translation", {"source_column": "en", "target_column": "en"}),
        ("translation", {"label_column": "de"}),
        ("classification", {"source_column": "en", "target_column": "de"}),
        ("classification", {"text_column": "en", "label_column": "en"}),
        ("translation", {"limit": 0}),
        ("translation", {"limit": 2, "minimum": 3}),
        ("summarization", {}),
    ],
)
def test_options_that_do_not_belong_together(
    tmp_path: Path, task: Any, options: dict[str, Any]
) -> None:
    path = write(tmp_path / "a.tsv", tsv(PAIRS))
    with pytest.raises(UsageError):
        read_rows(task, path, **options)


def test_column_names_make_no_sense_for_plain_text(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", "one\n"), write(tmp_path / "a.de", "eins\n")
    with pytest.raises(UsageError, match="have no columns"):
        read_rows("translation", f"{source},{target}", source_column="en", target_column="de")


def test_reading_rows_needs_no_torch() -> None:
    code = (
        "import sys; from compressor import tasks, example;"
        "tasks.read_rows('translation', example.test());"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
