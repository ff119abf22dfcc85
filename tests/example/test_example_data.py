"""The bundled sentences: complete, disjoint, clean, and licensed; and the script that checks them.

Limits come from the example's purpose: enough rows for scoring and for a bootstrap of BLEU, and
sentence lengths as in the model's training data (3 to 18 English words).
"""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from compressor.request import example

SCRIPT = Path(__file__).parents[2] / "examples" / "tatoeba_en_de" / "check_sentences.py"
FILES = {"calibration": example.calibration(), "test": example.test()}


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def words(sentence: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", sentence.casefold()))


@pytest.mark.parametrize("name", FILES)
def test_file_has_a_header_and_enough_complete_pairs(name: str) -> None:
    header, *pairs = rows(FILES[name])
    assert header == ["en", "de"]
    assert len(pairs) >= 420
    for pair in pairs:
        assert len(pair) == 2
        for cell in pair:
            assert cell
            assert cell == " ".join(cell.split())
            assert cell == unicodedata.normalize("NFC", cell)
            assert cell[-1] in ".!?"


@pytest.mark.parametrize("name", FILES)
def test_lengths_are_mixed_like_the_training_data(name: str) -> None:
    lengths = [len(english.split()) for english, _ in rows(FILES[name])[1:]]
    assert min(lengths) >= 3
    assert max(lengths) <= 18
    assert sum(n <= 6 for n in lengths) > 0.25 * len(lengths)
    assert sum(n > 10 for n in lengths) > 0.15 * len(lengths)


@pytest.mark.parametrize("side", [0, 1])
def test_no_sentence_occurs_twice_in_or_across_the_files(side: int) -> None:
    sentences = [words(row[side]) for path in FILES.values() for row in rows(path)[1:]]
    assert len(set(sentences)) == len(sentences)


def test_german_is_written_with_umlauts() -> None:
    for path in FILES.values():
        text = path.read_text(encoding="utf-8")
        assert all(letter in text for letter in "äöüß")


def test_license_names_the_licenses_and_the_attribution() -> None:
    text = example.license_file().read_text(encoding="utf-8")
    for needed in ("Apache License, Version 2.0", "CC BY 2.0 FR", "tatoeba.org", "manythings.org"):
        assert needed in text


def check(data: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--data", str(data), "--example", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def tatoeba(tmp_path: Path) -> Path:
    folder = tmp_path / "tatoeba"
    folder.mkdir()
    for name in ("train.tsv", "valid.tsv", "test.tsv"):
        (folder / name).write_text(f"en\tde\nOnly in {name}.\tNur in {name}.\n", encoding="utf-8")
    return folder


def test_script_accepts_the_bundled_files(tatoeba: Path) -> None:
    result = check(tatoeba, example.directory())
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("added", "finding"),
    [
        ("a row of ONLY in: Test.tsv", "not an English and a German sentence"),
        (
            "only IN -- test.tsv!\tEin ganz anderer Satz.",
            "the English side is Tatoeba's test.tsv:2",
        ),
        (
            "A wholly different sentence.\tnur in train tsv",
            "the German side is Tatoeba's train.tsv",
        ),
        ("Too short\tZu kurz eben", "has not 3 to 18 words"),
    ],
)
def test_script_reports_the_line_but_not_the_sentence(
    tatoeba: Path, tmp_path: Path, added: str, finding: str
) -> None:
    folder = tmp_path / "example"
    folder.mkdir()
    for path in FILES.values():
        (folder / path.name).write_bytes(path.read_bytes())
    with (folder / "test.tsv").open("a", encoding="utf-8") as file:
        file.write(added + "\n")
    result = check(tatoeba, folder)
    line = len(rows(FILES["test"])) + 1
    assert result.returncode == 1
    assert result.stdout.startswith(f"test.tsv:{line}: ")
    assert finding in result.stdout
    assert added.split("\t")[0] not in result.stdout


def test_script_reports_a_sentence_in_both_files_and_too_few_rows(
    tatoeba: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "example"
    folder.mkdir()
    for name in ("calibration.tsv", "test.tsv"):
        text = "en\tde\nThe bakery is closed today.\tDie Bäckerei ist heute zu.\n"
        (folder / name).write_text(text, encoding="utf-8")
    result = check(tatoeba, folder)
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "calibration.tsv: 1 rows, fewer than 420",
        "test.tsv:2: the English side repeats calibration.tsv:2",
        "test.tsv:2: the German side repeats calibration.tsv:2",
        "test.tsv: 1 rows, fewer than 420",
    ]
