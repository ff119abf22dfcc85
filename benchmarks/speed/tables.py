"""Markdown tables of the measured throughput."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.pages import markdown_table, with_interval

Row = dict[str, Any]


def document(result: dict[str, Any]) -> str:
    """All measurements of one model."""
    hardware = ", ".join(f"{key}: {value}" for key, value in result["hardware"].items())
    kinds = ("torch", "transformers", "onnxruntime-gpu", "onnxruntime", "ctranslate2")
    used = ", ".join(f"{n} {v}" for n, v in result["versions"].items() if n in kinds)
    length = result["target_length"]
    lengths = f"; {length} generated tokens for every row" if length else ""
    options = " ".join(f"--{option} {value}" for option, value in result["budget"].items())
    share = f"{result['macs_share']:.0%} of the multiply-adds"
    parts = [f"## {result['title']}; pruned with `{options}`: {share}"]
    for tokens in dict.fromkeys(row["source_tokens"] for row in _of(result, _reference(result))):
        rows = [row for row in result["timings"] if _close(row["source_tokens"], tokens, result)]
        parts += [_speed(result, rows), _latency(result, rows)]
        if not _by_length(result):
            break
    parts += [_loading_and_quality(result), _speedups(result)]
    order = "in the order of the data" if result.get("unsorted") else "of rows of similar length"
    parts.append(
        f"{result['threads']} threads{lengths}; greedy; batches {order}; ratios within "
        f"one interleaved run, with 95 % intervals. {used}. {hardware}."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _by_length(result: dict[str, Any]) -> bool:
    """Whether rows were cut or padded to several lengths."""
    lengths = {row["source_tokens"] for row in result["timings"]}
    return len(lengths) > 1 and all(length == int(length) for length in lengths)


def _close(value: float, tokens: float, result: dict[str, Any]) -> bool:
    return value == tokens or not _by_length(result)


def _reference(result: dict[str, Any]) -> str:
    """The program that the tables' ratios are relative to: the first one timed."""
    return str(result["timings"][0]["reference"])


def _of(result: dict[str, Any], reference: str) -> list[Row]:
    return [row for row in result["timings"] if row["reference"] == reference]


def _speed(result: dict[str, Any], rows: Sequence[Row]) -> str:
    def cell(row: Row) -> str:
        ratio = "" if row["speedup"] is None else f" ({row['speedup']:.2f}x)"
        return f"{row['sentences_per_second']:.1f}{ratio}"

    tokens = " and ".join(sorted({f"{r['source_tokens']:.0f}" for r in rows}, key=int))
    title = f"Sentences per second ({tokens} source tokens a row; ratio to {_reference(result)}):"
    return f"{title}\n\n{_by_batch(result, rows, cell)}"


def _latency(result: dict[str, Any], rows: Sequence[Row]) -> str:
    def cell(row: Row) -> str:
        ms = row["latency_ms"]
        return f"{ms['p50']:.0f} / {ms['p99']:.0f} / {row['tokens_per_second']:.0f}"

    kind = "generated" if result["target_length"] else "source"
    title = f"Latency of a batch, p50 / p99 in ms, and {kind} tokens per second:"
    return f"{title}\n\n{_by_batch(result, rows, cell)}"


def _by_batch(result: dict[str, Any], rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    """A line per peer, a column per batch size."""
    reference = _reference(result)
    found = {(r["variant"], r["batch_size"]): r for r in rows if r["reference"] == reference}
    sizes = sorted({size for _, size in found})
    lines = [
        [peer["name"], *(cell(found[peer["name"], size]) for size in sizes)]
        for peer in result["peers"]
    ]
    return markdown_table(["served by", *(f"batch {size}" for size in sizes)], "lr", lines)


def _loading_and_quality(result: dict[str, Any]) -> str:
    lines = []
    for peer in result["peers"]:
        fresh, quality = peer["fresh"], peer["quality"]
        numbers = [(fresh or {}).get(x) for x in ("load_seconds", "first_seconds", "peak_mib")]
        shown = zip(numbers, (".1f", ".1f", ".0f"), strict=True)
        cells = [peer["name"], f"{peer['bytes'] / 1e6:.1f}"]
        cells += ["–" if x is None else format(x, digits) for x, digits in shown]
        cells.append("–" if quality is None else f"{quality['value']:.2f}")
        lines.append(cells)
    metric = next((p["quality"]["metric"] for p in result["peers"] if p["quality"]), "quality")
    head = ["served by", "weights MB", "load s", "first batch s", "peak MiB", metric]
    text = markdown_table(head, "lr", lines)
    for peer in result["peers"]:
        if peer["quality"] and "against_fp32" in peer["quality"]:
            difference, *ends = peer["quality"]["against_fp32"]
            text += (
                f"\n\n{peer['name']}: {with_interval(difference, ends, '+')} {metric} against "
                f"its own fp32, on {peer['quality']['rows']} rows."
            )
    return text


def _speedups(result: dict[str, Any]) -> str:
    """Speed-ups of the low-precision artifacts over every other program, and of fp32 over dense."""
    names = [peer["name"] for peer in result["peers"]]
    best = [n for n in names if n.startswith("compress, pruned") and not n.endswith("fp32")]
    references = dict.fromkeys(row["reference"] for row in result["timings"])
    lines = []
    for name, reference in ((name, reference) for name in best for reference in references):
        ratios = [
            f"{with_interval(row['speedup'], row['speedup_interval'])} at batch {row['batch_size']}"
            + (f" of {row['source_tokens']:.0f} tokens" if _by_length(result) else "")
            for row in _of(result, reference)
            if row["variant"] == name
        ]
        lines.append(f"- {name}, over {reference}: {', '.join(ratios)}.")
    dense = result["timings"][-1]["reference"]
    gains = [
        f"{row['speedup']:.2f} ({row['macs_ratio']:.2f}) at batch {row['batch_size']}"
        + (f" of {row['source_tokens']:.0f} tokens" if _by_length(result) else "")
        for row in _of(result, dense)
        if row["macs_ratio"] is not None
    ]
    lines.append(f"- What pruning gains over {dense} (ratio of multiply-adds): {', '.join(gains)}.")
    return "\n".join(lines)


def summary(results: Sequence[dict[str, Any]]) -> str:
    """One table for docs/speed.md: sentences per second of every peer of several models."""
    sizes = sorted({row["batch_size"] for result in results for row in result["timings"]})
    head = ["model", "served by", *(f"batch {size}" for size in sizes), "weights MB", "quality"]
    lines = []
    for result in results:
        reference = _reference(result)
        found = {(r["variant"], r["batch_size"]): r for r in _of(result, reference)}
        for peer in result["peers"]:
            cells = [result["name"], peer["name"]]
            for size in sizes:
                cells.append(_rate(found.get((peer["name"], size))))
            quality = peer["quality"]
            cells.append(f"{peer['bytes'] / 1e6:.0f}")
            cells.append("–" if quality is None else f"{quality['value']:.2f}")
            lines.append(cells)
    return markdown_table(head, "llr", lines) + "\n"


def _rate(row: Row | None) -> str:
    """Sentences per second to three digits, and the ratio."""
    if row is None:
        return "–"
    rate = row["sentences_per_second"]
    ratio = "" if row["speedup"] is None else f" ({row['speedup']:.1f}x)"
    return f"{rate:.0f}{ratio}" if rate >= 100 else f"{rate:.3g}{ratio}"
