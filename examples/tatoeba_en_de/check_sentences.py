"""Check that the bundled example sentences are what their license says, and fit for measuring.

The calibration sentences are the project's own: none of them may occur in Tatoeba, not the English
side and not the German side, letter case, punctuation and spacing aside. The test sentences are all
rows of Tatoeba's test.tsv, in its order; no English side may be one that the model was trained or
chosen on, or that it is calibrated on.

    python examples/tatoeba_en_de/check_sentences.py --data DIR    (train.tsv, valid.tsv, test.tsv)

Prints one line per finding (files and line numbers, never the sentences) and exits with status 1
if there is any.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "compressor" / "example"
OWN, TEST = "calibration.tsv", "test.tsv"
BUNDLED = (OWN, TEST)
TATOEBA = ("train.tsv", "valid.tsv", "test.tsv")
SEEN = TATOEBA[:2]  # in training: what weights and settings were chosen on
LANGUAGES = ("English", "German")
MINIMUM_ROWS = 420
SHORTEST, LONGEST = 3, 18  # English words, as in the training data


def normalize(sentence: str) -> str:
    """Lower-cased words only, so that neither punctuation nor spacing can hide a copy."""
    return " ".join(re.findall(r"\w+", sentence.casefold()))


def read_pairs(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and columns of every row below the header."""
    with path.open(encoding="utf-8-sig", newline="\n") as lines:
        next(lines)
        for number, line in enumerate(lines, start=2):
            yield number, line.rstrip("\r\n").split("\t")


def known_sentences(data: Path) -> dict[str, list[dict[str, str]]]:
    """Per file and language: normalized sentence -> `file:line` of its first occurrence."""
    known: dict[str, list[dict[str, str]]] = {}
    for name in TATOEBA:
        known[name] = [{}, {}]
        for number, cells in read_pairs(data / name):
            for side in range(2):
                known[name][side].setdefault(normalize(cells[side]), f"{name}:{number}")
    return known


def findings(example: Path, data: Path) -> Iterator[str]:
    """One sentence per problem of the bundled files, with line numbers."""
    known = known_sentences(data)
    seen: list[dict[str, str]] = [{}, {}]
    for name in BUNDLED:
        rows = 0
        for number, cells in read_pairs(example / name):
            rows += 1
            where = f"{name}:{number}"
            if len(cells) != 2 or not all(cell.strip() for cell in cells):
                yield f"{where}: not an English and a German sentence separated by a tab"
                continue
            if not SHORTEST <= len(cells[0].split()) <= LONGEST:
                yield f"{where}: the English side has not {SHORTEST} to {LONGEST} words"
            for side, language in enumerate(LANGUAGES):
                sentence = normalize(cells[side])
                if sentence in seen[side] and (name == OWN or side == 0):
                    yield f"{where}: the {language} side repeats {seen[side][sentence]}"
                seen[side].setdefault(sentence, where)
                # German sentences of the test set may translate other English ones in training.
                files = TATOEBA if name == OWN else SEEN if side == 0 else ()
                for table in (known[file] for file in files):
                    if sentence in table[side]:
                        yield f"{where}: the {language} side is Tatoeba's {table[side][sentence]}"
        if rows < MINIMUM_ROWS:
            yield f"{name}: {rows} rows, fewer than {MINIMUM_ROWS}"
    if (example / TEST).read_bytes() != (data / TEST).read_bytes():
        yield f"{TEST}: not the file of that name in {data}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="train.tsv, valid.tsv, test.tsv")
    parser.add_argument("--example", type=Path, default=EXAMPLE, help="calibration.tsv, test.tsv")
    args = parser.parse_args()
    for path in [args.data / name for name in TATOEBA] + [args.example / name for name in BUNDLED]:
        if not path.is_file():
            parser.error(f"{path} does not exist")
    found = list(findings(args.example, args.data))
    for finding in found:
        print(finding)
    if not found:
        print("every bundled sentence is where it belongs")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
