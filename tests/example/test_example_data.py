"""The bundled sentences: complete, disjoint, and licensed; and the script that checks them.

What the script checks (rows enough for scoring, lengths as in the model's training data, no
sentence twice) is not checked here again: it accepts them.
"""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from compressor.request import example

SCRIPT = Path(__file__).parents[2] / "examples" / "tatoeba_en_de" / "check_sentences.py"
FILES = {"calibration": example.calibration(), "test": example.test()}


def rows(name: str) -> list[list[str]]:
    header, *lines = FILES[name].read_text(encoding="utf-8").split("\n")[:-1]
    assert header == "en\tde"
    return [line.split("\t") for line in lines]


def test_cells_are_clean_and_lengths_mixed():
    pairs = rows("calibration")
    for cell in (cell for pair in pairs for cell in pair):
        assert cell == " ".join(cell.split())
        assert cell == unicodedata.normalize("NFC", cell)
        assert cell[-1] in ".!?"
    lengths = [len(english.split()) for english, _ in pairs]
    assert sum(n <= 6 for n in lengths) > 0.25 * len(lengths)
    assert sum(n > 10 for n in lengths) > 0.15 * len(lengths)
    german = "".join(pair[1] for pair in pairs)
    assert all(letter in german for letter in "äöüß")


def test_the_test_set_is_large_and_was_not_calibrated_on():
    english = [pair[0] for pair in rows("test")]
    assert len(english) == len(set(english)) == 2000
    assert not set(english) & {pair[0] for pair in rows("calibration")}


def test_license_names_the_licenses_and_the_attribution():
    text = (example.directory() / "LICENSE.txt").read_text(encoding="utf-8")
    for needed in ("Apache License, Version 2.0", "CC BY 2.0 FR", "tatoeba.org", "manythings.org"):
        assert needed in text


def findings(tatoeba: Path, folder: Path) -> list[str]:
    """What the script prints; its status says whether there is any."""
    command = [sys.executable, SCRIPT, "--data", tatoeba, "--example", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines() if done.returncode else []


@pytest.fixture
def tatoeba(tmp_path: Path) -> Path:
    folder = tmp_path / "tatoeba"
    folder.mkdir()
    for name in ("train.tsv", "valid.tsv"):
        (folder / name).write_text(f"en\tde\nOnly in {name}.\tNur in {name}.\n", encoding="utf-8")
    (folder / "test.tsv").write_bytes(FILES["test"].read_bytes())
    return folder


def test_script_accepts_the_bundled_files(tatoeba: Path):
    assert findings(tatoeba, example.directory()) == []


@pytest.mark.parametrize(
    ("name", "added", "finding"),
    [
        ("test", "a row of ONLY in: Train.tsv", "not an English and a German sentence"),
        ("test", "only IN -- train.tsv!\tEin neuer.", "the English side is Tatoeba's train.tsv:2"),
        ("calibration", "A new one.\tnur in valid tsv", "the German side is Tatoeba's valid.tsv:2"),
        ("calibration", "Too short\tZu kurz eben", "has not 3 to 18 words"),
    ],
)
def test_script_reports_the_line_but_not_the_sentence(tatoeba, tmp_path, name, added, finding):
    folder = tmp_path / "example"
    folder.mkdir()
    for path in FILES.values():
        (folder / path.name).write_bytes(path.read_bytes())
    with (folder / f"{name}.tsv").open("a", encoding="utf-8") as file:
        file.write(added + "\n")
    line = FILES[name].read_bytes().count(b"\n") + 1
    found, *other = findings(tatoeba, folder)
    assert other == ([f"test.tsv: not the file of that name in {tatoeba}"] * (name == "test"))
    assert found.startswith(f"{name}.tsv:{line}: ")
    assert finding in found
    assert added.split("\t")[0] not in found


def test_script_reports_a_sentence_in_both_files_and_too_few_rows(tatoeba, tmp_path):
    folder = tmp_path / "example"
    folder.mkdir()
    for name in ("calibration.tsv", "test.tsv"):
        text = "en\tde\nThe bakery is closed today.\tDie Bäckerei ist heute zu.\n"
        (folder / name).write_text(text, encoding="utf-8")
    assert findings(tatoeba, folder) == [
        "calibration.tsv: 1 rows, fewer than 420",
        "test.tsv:2: the English side repeats calibration.tsv:2",
        "test.tsv: 1 rows, fewer than 420",
        f"test.tsv: not the file of that name in {tatoeba}",
    ]
