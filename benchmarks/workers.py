"""Workers against threads: how long an artifact takes for many texts, and how much memory.

    python -m benchmarks.workers --texts FILE [--rows 512] ARTIFACT …

Every artifact answers the first texts of a file (a line each) with one worker and one thread, with
one worker and several threads, and with several workers of one thread each, in turns; translators
that have `ctranslate2/` in that engine too, where workers are its `inter_threads`. Peak memory is
that of a fresh process. Results go to benchmarks/results/workers.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.pages import markdown_table, publish, title_of
from compressor.runtime import Classifier, Runtime, Translator
from compressor.runtime.artifact import CTRANSLATE2_DIRECTORY, read_artifact
from compressor.throughput.hardware import cores

ROUNDS = 4
PEAK = """
import sys
from benchmarks.workers import opened
texts = sys.stdin.read().splitlines()
answer = opened(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
answer(texts)
status = open("/proc/self/status").read()  # ru_maxrss has the parent's, too
print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""


def opened(
    directory: str, engine: str, precision: str, workers: int, threads: int
) -> Callable[[list[str]], object]:
    """What answers texts."""
    settings = {"engine": engine, "precision": precision, "workers": workers, "threads": threads}
    kind: type[Runtime] = (
        Classifier if read_artifact(Path(directory)).task == "classification" else Translator
    )
    model = kind(directory, verify=False, **settings)  # type: ignore[arg-type]
    return model.classify if isinstance(model, Classifier) else model.translate  # type: ignore[attr-defined]


def settings_of(directory: Path) -> Iterator[tuple[str, str]]:
    """(engine, precision) of all builds."""
    precisions = sorted(read_artifact(directory).precisions)
    yield from (("onnxruntime", precision) for precision in precisions)
    if (directory / CTRANSLATE2_DIRECTORY).exists():
        yield from (("ctranslate2", precision) for precision in precisions if precision != "fp16")


def measure(directory: Path, texts: list[str], most: int) -> Iterator[list[str]]:
    """A row for each build and setting: texts a second, relative to one thread, and memory."""
    ways = ((1, 1), (1, most), (most, 1))
    for engine, precision in settings_of(directory):
        models = [opened(str(directory), engine, precision, *way) for way in ways]
        seconds: list[list[float]] = [[] for _ in ways]
        for number in range(ROUNDS + 1):
            for found, answer in zip(seconds, models, strict=True):
                began = time.perf_counter()
                answer(texts)
                if number:  # the first round warms up
                    found.append(time.perf_counter() - began)
        for way, found in zip(ways, seconds, strict=True):
            gains = [one / other for one, other in zip(seconds[0], found, strict=True)]
            arguments = [str(directory), engine, precision, *map(str, way)]
            peak = subprocess.run(
                [sys.executable, "-c", PEAK, *arguments], input="\n".join(texts),
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            yield [
                directory.name, engine, precision, *map(str, way),
                f"{len(texts) / statistics.median(found):.0f}",
                f"{statistics.median(gains):.2f} [{min(gains):.2f}, {max(gains):.2f}]",
                peak.stdout.strip(),
            ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="a text a line")
    parser.add_argument("--rows", type=int, default=512)
    args = parser.parse_args()
    texts = args.texts.read_text(encoding="utf-8").splitlines()[: args.rows]
    most = cores()
    rows = [row for path in args.artifacts for row in measure(path, texts, most)]
    titles = ["artifact", "engine", "precision", "workers", "threads each", "texts/s"]
    titles += ["times as fast as one", "peak memory, MiB"]
    publish(
        "workers",
        f"{title_of(most)}: {len(texts)} texts in one call, median of {ROUNDS} rounds in turns, "
        f"and the range of the ratio.\n\n{markdown_table(titles, 'lllr', rows)}\n",
    )


if __name__ == "__main__":
    main()
