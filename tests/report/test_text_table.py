"""Plain tables: aligned, complete, and the same wherever they are printed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compressor.report.summary import timing_table
from compressor.report.table import Column, columns
from compressor.report.text_table import render_table
from compressor.results import Throughput, Timing


def shown(titles: Sequence[Column], *rows: Sequence[str]) -> str:
    return render_table(titles, rows)


def test_names_stand_left_and_numbers_right():
    assert shown(columns("model", "heads"), ["dense", "144"], ["half", "72"]) == (
        "model  heads\ndense    144\nhalf      72"
    )


def test_texts_stand_left_in_every_column():
    assert shown(columns("a, b"), ["cpu", "fast"], ["memory", "16 GiB"]) == (
        "a       b\ncpu     fast\nmemory  16 GiB"
    )


def test_no_cell_is_cut_or_wrapped_however_narrow_the_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    name = "a name with spaces " * 20

    assert shown(columns("x", "y"), [name + "end", "1"]).splitlines()[1] == name + "end  1"


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_there_are_no_colors_and_no_markup(monkeypatch: pytest.MonkeyPatch, variable: str):
    monkeypatch.setenv(variable, "1")

    assert shown((), ["[bold]x[/bold] 12.5 'y' http://z", "1"]) == (
        "[bold]x[/bold] 12.5 'y' http://z  1"
    )


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([["a\nb\x1b[31m", "1"]], "a b [31m  1"),  # a cell stays on its line
        ([["翻訳", "1"], ["abcd", "2"]], "翻訳  1\nabcd  2"),  # wide characters take two columns
        ([["a", "1"], ["b", "2", "3"]], "a  1\nb  2  3"),  # rows may be shorter than others
        ([], ""),
    ],
)
def test_cells_without_titles(rows, text):
    assert shown((), *rows) == text


def test_timings_are_shown_with_speed_up_interval_and_multiply_adds():
    def timing(variant: str, **more) -> Timing:
        return Timing(
            variant=variant, batch_size=4, source_tokens=3, padded_source_tokens=3,
            target_tokens=0, runs=5, sentences_per_second=12.34, tokens_per_second=99.6,
            latency_ms={"p50": 1.0, "p90": 2.0, "p99": 3.04}, **more,
        )  # fmt: skip

    pruned = timing(
        "some/long/directory/of-the-pruned-model", peak_memory_mib=41.6, speedup=1.256,
        speedup_interval=(1.2, 1.3), macs_ratio=1.5,
    )  # fmt: skip
    throughput = Throughput(
        provider="CPUExecutionProvider", device="cpu", precision="fp32", threads=2,
        lengths="source lengths from the data", rows=[timing("dense"), pruned],
    )  # fmt: skip

    first, _, dense, other = timing_table(throughput).splitlines()

    assert first == "CPUExecutionProvider, fp32, 2 threads, lengths: source lengths from the data"
    assert dense.split() == ["4", "dense", "12.3", "100", "1.0", "2.0", "3.0"]
    assert other.split()[1] == "some/long/directory/of-the-pruned-model"
    assert other.endswith("3.0   42  1.26 [1.20, 1.30] (1.50)")
