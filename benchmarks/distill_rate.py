"""What distillation from text takes on a device, stage by stage, in sentences a second.

    python -m benchmarks.distill_rate --output FILE [--device cuda] [--lines 16384]
                                      [--rows 64 512 2048] [--steps 30]

The bundled translator, cut by two fifths of its units, learns from the bundled sentences, repeated
as often as it takes: the exported dense model answers them, PyTorch computes its last hidden
states, and then steps of each number of rows are timed, with products in fp32 and in bf16.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.pages import arguments, markdown_table, write_json
from compressor import example
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.languages import direction
from compressor.model.layers import find_sublayers
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.options.requests import ExportRequest, make_request
from compressor.pipeline.single import export_checkpoint
from compressor.recovery import RecoveryJob
from compressor.recovery.distillation import Distillation
from compressor.recovery.translations import GPU_CHUNK_ROWS, translate_lines
from compressor.tasks import TASKS
from compressor.tasks.opened import encode
from compressor.throughput.hardware import describe, versions
from compressor.training.data import TrainingRows
from compressor.training.loop import Schedule, _Run
from compressor.training.optimizer import embedding_tables, sparse_gradients
from compressor.training.precision import Precision, has_bf16
from compressor.training.text import Text, TextLines

KEPT = 0.6  # of the units of every sublayer
WHOLE = 150_000, 7  # sentences and epochs that the stages are added up for


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The rates, which are written after each of them, since time may be short."""
    checkpoint = open_checkpoint(str(example.model()))
    lines = Path(example.calibration()).read_text(encoding="utf-8").splitlines()[1:]
    sources = [line.split("\t")[0] for line in lines]
    (folder / "text").write_text("\n".join(islice(cycle(sources), args.lines)), encoding="utf-8")
    text = Text(TextLines(folder / "text"), TASKS[checkpoint.task], checkpoint.tokenizer, 128)
    result: dict[str, Any] = {"device": args.device, "lines": args.lines}
    request = make_request(ExportRequest, model=str(example.model()), precision=["fp32"])
    export_checkpoint(request, folder / "dense")
    runtime = text.task.open(folder / "dense", precision="fp32", device=args.device)

    def answer(texts: Sequence[str]) -> list[str]:
        return text.task.answer(runtime, texts, num_beams=1)

    with _Timed() as timed:
        translate_lines(text.lines, folder / "answers", answer, chunk_rows=GPU_CHUNK_ROWS)
    result["answers_per_second"] = args.lines / timed.seconds
    text = text.translated(folder / "answers")
    kinds: tuple[Precision, ...] = ("bf16", "fp32") if has_bf16(args.device) else ("fp32",)
    result |= {"steps": [], "hardware": describe(), "versions": versions()}
    for precision in kinds:
        problem, data, states = _problem(checkpoint, text, args.device, precision)
        result["states_per_second"] = states
        for rows in args.rows:
            result["steps"].append(_steps(problem, data, rows, args.steps, precision))
            write_json(args.output, result)
    return result


def _problem(
    checkpoint: Checkpoint, text: Text, device: str, precision: Precision
) -> tuple[Distillation, TrainingRows, float]:
    """A training, and how many lines a second its teacher remembered."""
    dense = copy.deepcopy(checkpoint.model).to(device).eval()
    layers = find_sublayers(dense)
    mask = Mask.full(layers).without(
        (layer.name, unit)
        for layer in layers
        for unit in range(round(KEPT * layer.units), layer.units)
    )
    task = text.task
    rows = task.read_rows(example.calibration(), languages=direction(checkpoint.tokenizer))
    examples = encode(rows, checkpoint, task)
    job = RecoveryJob(
        dense=dense, pruned=prune(dense, layers, mask), mask=mask, layers=layers, task=task,
        examples=examples, device=device, text=text,
    )  # fmt: skip
    problem = Distillation(job, job.pruned, [], 1e-4, 0.0, precision)
    with _Timed() as timed:
        problem.teacher.cache_text(text)
    return problem, TrainingRows(examples, task, dense, device, text), text.rows / timed.seconds


def _steps(
    problem: Distillation, data: TrainingRows, rows: int, count: int, precision: str
) -> dict[str, Any]:
    """Seconds of some steps, the first three left out."""
    run = _Run(problem, data, Schedule(100, batch_size=rows), 0, None)
    batches = (b for epoch in range(100) for b in run.batches.of_epoch(epoch) if b.rows[0] < 0)
    seen = 0
    with sparse_gradients(embedding_tables(problem.student)):
        for batch in islice(batches, 3):
            run.step(batch)
        run.read_losses()
        with _Timed() as timed:
            for batch in islice(batches, count):
                run.step(batch)
                seen += len(batch.rows)
            run.read_losses()
    return {
        "rows": rows, "products": precision, "ms": 1000 * timed.seconds / count,
        "rows_per_second": seen / timed.seconds,
    }  # fmt: skip


class _Timed:
    def __enter__(self) -> _Timed:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self._start


def draw(result: dict[str, Any]) -> str:
    """Markdown: the stages, the steps, and what they add up to for much text."""
    sentences, epochs = WHOLE
    before = sentences / result["answers_per_second"] + sentences / result["states_per_second"]
    lines = [
        [
            str(step["rows"]), step["products"], f"{step['ms']:.1f}",
            f"{step['rows_per_second']:,.0f}",
            f"{(before + epochs * sentences / step['rows_per_second']) / 60:.1f}",
        ]
        for step in result["steps"]
    ]  # fmt: skip
    titles = ["rows a step", "products", "ms a step", "sentences a second"]
    titles += [f"minutes for {epochs} epochs of {sentences:,}"]
    about = (
        f"On {result['device']} the dense model answers {result['answers_per_second']:,.0f} "
        f"sentences a second, and its hidden states are computed of "
        f"{result['states_per_second']:,.0f}. Minutes are the sum of all three, not measured "
        "as a whole."
    )
    return f"{about}\n\n{markdown_table(titles, 'rlr', lines)}\n"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--lines", type=int, default=16_384)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        print(draw(measure(args, Path(folder))))


if __name__ == "__main__":
    main()
