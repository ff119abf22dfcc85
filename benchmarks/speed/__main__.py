"""Throughput of artifacts and of other programs that serve the same model, timed in turns.

    python -m benchmarks.speed [NAME …] --work DIR [--tatoeba TEST.tsv]
                               [--target-text TEXT] [--parallel TRAIN.tsv]
                               [--classifier FINE_TUNED --clinc DIR]

Needs the extra `peers` (CTranslate2). Models with random weights are created here; train the
classifier with benchmarks.finetune. Every program (peer) runs the same batches of rows of
similar length, and while it is timed every translator generates the same number of tokens for every
row. For trained models quality is measured too, with sentences that end by themselves. Results go
to benchmarks/results/speed-NAME.json and .md, or to --results; --device cuda and --threads N add
`-cuda` and `-N-threads` to the names.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import RESULTS, arguments, read_json, write_json
from benchmarks.speed.peers import Run, measure_fresh, open_peer
from benchmarks.speed.settings import NAMES, Setting, peers, prepare
from benchmarks.speed.tables import document, summary
from compressor.commands.console import Console
from compressor.evaluation import compare_rows, score_rows
from compressor.model.pruning_record import read_pruning_record
from compressor.progress import Progress
from compressor.runtime import collate
from compressor.runtime.batching import by_length
from compressor.runtime.opening import count_output_tokens, reads_one_token
from compressor.tasks import TASKS
from compressor.throughput import WorkSize, measure, ratio_of_multiply_adds, shape_of, summarize
from compressor.throughput.hardware import cores, describe, versions
from compressor.throughput.workloads import Workload, make_workloads

PROGRAMS = ("eager", "compile", "ctranslate2")
QUALITY_ROWS = 64  # rows per batch while quality is measured


def make_timed(
    setting: Setting, runtime: Any, sizes: list[int], tokens: int | None, unsorted: bool = False
) -> list[Workload]:
    """Batches of rows of similar length, as the runtime makes them from a list of texts.

    Args:
        tokens: source tokens that every row is cut or padded to; None keeps the rows' lengths.
        unsorted: in the order of the data instead, as a server gets its batches.
    """
    artifact = runtime.artifact
    encoded = runtime.encode(setting.rows.sources)
    rows = encoded if unsorted else sorted(encoded, key=len)

    def padded(rows: list[Any]) -> Any:
        return collate(rows, artifact.pad_token_id, artifact.inputs)

    made = make_workloads(rows, sizes, padded, lengths=tokens or "data")
    # Evenly spaced batches, so that short and long rows are among them.
    chosen = (w.batches[:: -(-len(w.batches) // setting.batches)] for w in made)
    target = float(setting.target_length or 0)
    return [replace(Workload.of(batches), target_tokens=target) for batches in chosen]


def answers(setting: Setting, run: Run, runtime: Any) -> list[str]:
    """The answers of one peer to the test rows, in their order."""
    encoded = runtime.encode(setting.rows.sources)
    artifact = runtime.artifact
    found = [""] * len(encoded)
    for places in by_length(encoded, QUALITY_ROWS):
        chosen = [encoded[place] for place in places]
        output = run(collate(chosen, artifact.pad_token_id, artifact.inputs), None)
        if setting.generates:
            texts = runtime.decode(output)
        else:
            texts = [runtime.artifact.labels[i] for i in np.argmax(output, axis=1)]
        for place, text in zip(places, texts, strict=True):
            found[place] = text
    return found


def quality(setting: Setting, answered: dict[str, list[str]]) -> dict[str, Any]:
    """BLEU or accuracy of every peer, and the difference of each low precision from its fp32."""
    rows, found = setting.rows, {}
    metric = TASKS[rows.task].main_metric
    for name, outputs in answered.items():
        value = score_rows(rows, outputs).metrics[metric]
        found[name] = {"metric": metric, "value": value, "rows": len(rows.targets)}
        base = f"{name.rpartition(', ')[0]}, fp32"
        if name.startswith("compress") and base in answered and base != name:
            compared = compare_rows(rows, answered[base], outputs)
            own = next(c for c in compared if c.metric == metric)
            found[name]["against_fp32"] = [own.difference, *own.interval]
    return found


def macs_ratios(
    setting: Setting, workloads: list[Workload], name: str
) -> dict[tuple[str, int], float]:
    """The dense model's multiply-adds over those of the pruned one, which has this name."""
    config = read_json(setting.checkpoint / "config.json", {})
    mask = read_pruning_record(setting.output).mask
    tokens = count_output_tokens(setting.output)
    one = reads_one_token(setting.output)
    dense = shape_of(TASKS[setting.task], config, mask.totals(), tokens, one_token=one)
    pruned = shape_of(TASKS[setting.task], config, mask.counts(), tokens, one_token=one)
    found = {}
    for workload in workloads:
        work = [
            WorkSize(rows, source, setting.target_length or 0)
            for rows, source in (batch["input_ids"].shape for batch in workload.batches)
        ]
        found[name, workload.batch_size] = ratio_of_multiply_adds(dense, pruned, work)
    return found


def compare_peers(
    setting: Setting, args: argparse.Namespace, progress: Progress
) -> Iterator[dict[str, Any]]:
    """All about one model, once more after each length: quality, times; then load time, memory."""
    threads = args.threads or cores()
    runtime = TASKS[setting.task].open(setting.dense)
    first = make_timed(setting, runtime, [1], None)[0].batches[0]
    chosen, opened = [], {}
    for peer in peers(setting, args.device, threads, args.programs):
        try:
            run = open_peer(peer, args.device, threads)
            run(first, setting.target_length)
        except Exception as error:  # of whatever another program lacks here
            if peer.program == "compress":
                raise
            progress.message(f"{peer.name} is left out: {error}")
        else:
            chosen.append(peer)
            opened[peer.name] = run
    found: dict[str, Any] = {}
    if setting.trained:
        progress.message(f"{setting.name}: quality on {len(setting.rows.sources)} rows")
        answered = {name: answers(setting, run, runtime) for name, run in opened.items()}
        found = quality(setting, answered)
    low = "fp16" if args.device == "cuda" else "fp32"
    pair = (f"compress, dense, {low}", f"compress, pruned, {low}")
    result: dict[str, Any] = {
        "name": setting.name, "title": setting.title, "task": setting.task,
        "device": args.device, "threads": threads, "budget": setting.budget,
        "unsorted": args.unsorted,
        "macs_share": setting.macs_share,
        "target_length": setting.target_length,
        "kept": read_pruning_record(setting.output).mask.counts(),
        "peers": [
            asdict(peer) | {"directory": Path(peer.directory).name}
            | {"quality": found.get(peer.name), "fresh": None}
            for peer in chosen
        ],
        "timings": [], "hardware": describe(), "versions": versions(),
    }  # fmt: skip
    for tokens in args.lengths or [None]:
        workloads = make_timed(setting, runtime, args.batches, tokens, args.unsorted)
        ratios = macs_ratios(setting, workloads, pair[1])
        timed = _timed(setting, opened, workloads, ratios, args.seconds, pair[0], progress)
        result["timings"] += timed
        yield result
    if not args.no_fresh:
        # Load time and memory, with the largest batch.
        batch = max(workloads[-1].batches, key=lambda batch: batch["input_ids"].size)
        for peer, row in zip(chosen, result["peers"], strict=True):
            progress.message(f"{setting.name}: {peer.name} in a process of its own")
            row["fresh"] = measure_fresh(peer, batch, setting.target_length, args.device, threads)
        yield result


def _timed(
    setting: Setting, opened: dict[str, Run], workloads: list[Workload],
    ratios: dict[tuple[str, int], float], seconds: float, dense: str, progress: Progress,
) -> list[dict[str, Any]]:  # fmt: skip
    def of_length(run: Run) -> Any:
        return lambda batch: run(batch, setting.target_length)

    samples = measure(
        {name: of_length(run) for name, run in opened.items()}, workloads, warmup=setting.warmup,
        min_runs=6, min_seconds=seconds, progress=progress.message,
    )  # fmt: skip
    references = [name for name in opened if name.startswith(("transformers", "CTranslate2"))]
    return [
        {"reference": reference} | row.model_dump()
        for reference in (*references, dense)
        for row in summarize(
            samples, workloads, ratios if reference == dense else {}, reference=reference
        )
    ]


def _problem(args: argparse.Namespace) -> str:
    return "" if args.work is not None or args.draw else "give --work, or --draw"


def main() -> None:
    parser = arguments(__doc__, _problem)
    parser.add_argument("names", nargs="*", default=[], choices=[*NAMES, []], help="default: all")
    parser.add_argument("--work", type=Path, help="models, reused by later calls")
    parser.add_argument("--tatoeba", help="test.tsv for the translator; default: bundled rows")
    parser.add_argument("--target-text", help="a sentence a line, for one more translator row")
    parser.add_argument(
        "--parallel",
        help="TSV of sentence pairs for CTranslate2's vocabulary map of the translator",
    )
    parser.add_argument("--classifier", help="the fine-tuned classifier")
    parser.add_argument("--clinc", help="CLINC150: valid.tsv, test.tsv")
    parser.add_argument("--test-rows", type=int, help="quality on the first N rows")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--lengths", type=int, nargs="+", help="source tokens; default: the data's")
    parser.add_argument("--unsorted", action="store_true", help="batches in the data's order")
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=3.0, help="least per peer and batch")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory to write to")
    parser.add_argument("--draw", action="store_true", help="only write the tables again")
    parser.add_argument("--prepare", action="store_true", help="only make and compress the models")
    parser.add_argument("--no-fresh", action="store_true", help="without load time and memory")
    args = parser.parse_args()
    progress = Console()
    args.results.mkdir(parents=True, exist_ok=True)
    kind = "-cuda" if args.device == "cuda" else ""
    kind += f"-{args.threads}-threads" if args.threads else ""
    paths = {name: args.results / f"speed-{name}{kind}.json" for name in NAMES}
    for name in [] if args.draw else args.names or NAMES:
        setting = prepare(name, args, progress)
        if not args.prepare:
            for result in compare_peers(setting, args, progress):
                write_json(paths[name], result)
    if args.prepare:
        return
    results = []
    for path in paths.values():
        if path.exists():
            results.append(read_json(path, {}))
            text = document(results[-1])
            path.with_suffix(".md").write_text(text, encoding="utf-8")
            print(text)
    (args.results / f"speed{kind}-summary.md").write_text(summary(results), encoding="utf-8")


if __name__ == "__main__":
    main()
