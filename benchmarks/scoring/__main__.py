"""Seconds and peak memory of every scoring method as the model and the data grow.

    python -m benchmarks.scoring

Heads and neurons are scored together; by methods that are about attention, heads alone.
Relative to a plain forward and backward pass over the same batches, with gradients of all weights:
the cost of a training step without its optimizer. Weights and rows are random, which does not
change the cost. Timings are interleaved (plain, method, method, …, plain, …) and given as the
median ratio to the plain pass of the same round; memory is the peak of a new process minus the peak
of one that only loads model and rows. Results: benchmarks/results/scoring.md, .json. Settings
already measured there with the same number of rounds on the same hardware are skipped, unless
--again is given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pages import RESULTS, markdown_table, with_interval
from compressor.importance import METHODS
from compressor.throughput.hardware import describe

PLAIN, NOTHING = "plain pass", "nothing"
SETTING = ("task", "layers", "width", "heads", "rows")
# Task -> (layers, width, heads). The larger classifier has the size of MiniLM, the smaller
# translator that of the bundled one, the larger translator that of OPUS-MT's small models.
MODELS = {
    "classification": ((3, 192, 6), (6, 384, 12)),
    "translation": ((3, 256, 8), (6, 384, 8)),
}
ROWS = (64, 256)
VOCABULARY = 8000
# Ablation makes a pass per head, relevance one per target position: timed only on the smallest
# setting of each task.
SLOW = ("ablation", "relevance")
ONE_PASS = ("taylor", "fisher", "second-order")  # should stay within 1.5 plain passes


def build(task: str, size: tuple[int, int, int]) -> Any:
    import torch
    import transformers as t

    layers, width, heads = size
    torch.manual_seed(0)
    if task == "classification":
        config = t.BertConfig(
            vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=layers,
            num_attention_heads=heads, intermediate_size=4 * width,
        )  # fmt: skip
        config.num_labels = 10
        return t.BertForSequenceClassification(config).eval()
    return t.MarianMTModel(
        t.MarianConfig(
            vocab_size=VOCABULARY, d_model=width, encoder_layers=layers, decoder_layers=layers,
            encoder_attention_heads=heads, decoder_attention_heads=heads,
            encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, pad_token_id=VOCABULARY - 1,
            eos_token_id=0, decoder_start_token_id=VOCABULARY - 1, forced_eos_token_id=None,
        )
    ).eval()  # fmt: skip


def make_work(task: str, size: tuple[int, int, int], rows: int) -> dict[str, Callable[[], object]]:
    """Name -> function to time, on one model and one set of batches of rows of unequal length."""
    import random

    from compressor.importance import ScoringJob, score_units
    from compressor.model.architectures import find_sublayers
    from compressor.model.sublayers import Mask
    from compressor.tasks import TASKS, Example

    model, module, rng = build(task, size), TASKS[task], random.Random(0)

    def tokens() -> tuple[int, ...]:
        return tuple(rng.randrange(5, VOCABULARY - 1) for _ in range(rng.randint(5, 35)))

    translates = task == "translation"
    examples = [
        Example(row, tokens(), tokens() if translates else (row % 10,)) for row in range(rows)
    ]
    batches = module.batches(examples, model)
    layers = find_sublayers(model)
    heads = [layer for layer in layers if layer.is_attention]
    mask = Mask.full(layers)

    def plain() -> None:
        for batch in batches:
            module.loss(model, batch).backward()
        model.zero_grad()

    work: dict[str, Callable[[], object]] = {PLAIN: plain, NOTHING: lambda: None}
    for name, method in METHODS.items():
        scored = layers if method.scores_neurons else heads
        work[name] = partial(
            score_units, method(), ScoringJob(model, scored, mask, batches, module)
        )
    return work


def timings(task: str, size: tuple[int, int, int], rows: int, rounds: int) -> list[dict[str, Any]]:
    work = make_work(task, size, rows)
    methods = [m for m in METHODS if m not in SLOW or (size, rows) == (MODELS[task][0], ROWS[0])]
    seconds: dict[str, list[float]] = {name: [] for name in (PLAIN, *methods)}
    for turn in range(rounds + 1):  # the first round warms up
        for name, taken in seconds.items():
            began = time.perf_counter()
            work[name]()
            if turn:
                taken.append(time.perf_counter() - began)
    found = []
    for name, taken in seconds.items():
        ratios = sorted(a / b for a, b in zip(taken, seconds[PLAIN], strict=True))
        found.append(
            {
                "task": task, "layers": size[0], "width": size[1], "heads": size[2], "rows": rows,
                "method": name, "seconds": median(taken), "ratio": median(ratios),
                "lowest": ratios[0], "highest": ratios[-1],
            }
        )  # fmt: skip
    return found


def peak(task: str, size: tuple[int, int, int], rows: int, method: str) -> float:
    """Peak resident memory of a fresh process that does the work once, MiB."""
    arguments = [task, ",".join(map(str, size)), str(rows), method]
    command = [sys.executable, "-m", "benchmarks.scoring", "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def child(task: str, size: str, rows: str, method: str) -> None:
    layers, width, heads = (int(number) for number in size.split(","))
    make_work(task, (layers, width, heads), int(rows))[method]()
    # Not getrusage: that counts what the parent held when it forked.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line per setting, a column per method."""
    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    text = [
        "Seconds as multiples of a plain forward and backward pass over the same rows, median and "
        "range of the rounds; in brackets, where measured, extra peak memory in MiB.",
        "",
    ]
    titles = ["task", "layers x width", "heads", "rows", "plain pass", *methods]
    lines = []
    settings: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[part] for part in SETTING)
        settings.setdefault(key, {})[row["method"]] = row
    for (task, layers, width, heads, count), cells in settings.items():
        plain = cells[PLAIN]
        values = [task, f"{layers} x {width}", str(heads), str(count)]
        values.append(f"{plain['seconds']:.2f} s{_memory(plain)}")
        for method in methods:
            cell = cells.get(method)
            values.append("–" if cell is None else (
                with_interval(cell["ratio"], (cell["lowest"], cell["highest"])) + _memory(cell)
            ))  # fmt: skip
        lines.append(values)
    text.append(markdown_table(titles, "lr", lines))
    worst = max(row["ratio"] for row in rows if row["method"] in ONE_PASS)
    text += ["", f"{', '.join(ONE_PASS)}: at most {worst:.2f} plain passes.", ""]
    text.append(", ".join(f"{key}: {value}" for key, value in describe().items()) + ".")
    return "\n".join(text) + "\n"


def earlier(rounds: int) -> list[dict[str, Any]]:
    """Rows of an earlier run with as many rounds on this hardware; empty if there is none."""
    file = RESULTS / "scoring.json"
    if not file.exists():
        return []
    facts = json.loads(file.read_text(encoding="utf-8"))
    same = (facts["hardware"], facts["rounds"]) == (describe(), rounds)
    return facts["rows"] if same else []


def write(rows: list[dict[str, Any]], rounds: int) -> None:
    """Write the results measured so far."""
    RESULTS.mkdir(exist_ok=True)
    facts = {"hardware": describe(), "rounds": rounds, "rows": rows}
    (RESULTS / "scoring.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "scoring.md").write_text(table(rows), encoding="utf-8")


def _memory(cell: dict[str, Any]) -> str:
    return f" ({cell['memory']:.0f})" if "memory" in cell else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument(
        "--again", action="store_true", help="measure settings again that were measured before"
    )
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return
    known = [] if args.again else earlier(args.rounds)
    found = []
    for task, sizes in MODELS.items():
        for size in sizes:
            for rows in ROWS:
                setting = (task, *size, rows)
                old = [row for row in known if tuple(row[key] for key in SETTING) == setting]
                if old:
                    found += old
                    continue
                timed = timings(task, size, rows, args.rounds)
                if rows == max(ROWS):
                    base = peak(task, size, rows, NOTHING)
                    for row in timed:
                        if METHODS[row["method"]].needs_rows:
                            growth = peak(task, size, rows, row["method"]) - base
                            row["memory"] = max(0.0, growth)
                found += timed
                write(found, args.rounds)  # keep partial results if this is stopped
                print(task, size, rows, {r["method"]: round(r["ratio"], 2) for r in timed})
    print(table(found))


if __name__ == "__main__":
    main()
