"""A sentence encoder and rows to try `compress` on, made of the bundled help desk.

    python examples/sentence_encoder/make.py --output trial

The encoder is that of the bundled classifier; texts of one intent are similar (1), others not (0).
It was trained for nothing of the kind, so its quality means little: take a model of your own.
"""

from __future__ import annotations

import argparse
import csv
import random
from pathlib import Path

from transformers import AutoModel, AutoTokenizer

from compressor import example

PAIRS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    model, calibration, test = example.help_desk()
    AutoModel.from_pretrained(model).float().save_pretrained(output / "encoder")
    AutoTokenizer.from_pretrained(model).save_pretrained(output / "encoder")
    texts = [row["text"] for row in _rows(calibration)]
    (output / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    rows, draw = _rows(test), random.Random(0)
    with (output / "pairs.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["sentence1", "sentence2", "score"])
        for number in range(PAIRS):
            first = draw.choice(rows)
            same = number % 2 == 0
            others = [row for row in rows if (row["label"] == first["label"]) is same]
            writer.writerow([first["text"], draw.choice(others)["text"], int(same)])


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


if __name__ == "__main__":
    main()
