"""Check that the bundled example sentences are the project's own and fit for measuring.

The example's calibration and test sentences are shipped under the project's license, so none of
them may occur in the Tatoeba data that the example model was trained on: not the English side and
not the German side, letter case, punctuation and spacing aside.

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
BUNDLED = ("calibration.tsv", "test.tsv")
TATOEBA = ("train.tsv", "valid.tsv", "test.tsv")
LANGUAGES = ("English", "German")
# Enough for scoring, and for an interval of a BLEU difference about one point wide on each side.
MINIMUM_ROWS = {"calibration.tsv": 420, "test.tsv": 2000}
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
                if sentence in seen[side]:
                    yield f"{where}: the {language} side repeats {seen[side][sentence]}"
                seen[side].setdefault(sentence, where)
                for table in known.values():
                    if sentence in table[side]:
                        yield f"{where}: the {language} side is Tatoeba's {table[side][sentence]}"
        if rows < MINIMUM_ROWS[name]:
            yield f"{name}: {rows:,} rows, fewer than {MINIMUM_ROWS[name]:,}"


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
        print("every bundled sentence is the project's own")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
