"""The frame of benchmarks: their arguments, runs of `compress`, results, tables and figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.report.plots import plot_style

if TYPE_CHECKING:
    from compressor.report.schema import Report

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NNCF = "int8 (NNCF)"  # a precision of OpenVINO, in tables of engines; `compress` does not write it
Problem = Callable[[Any], str]  # of parsed arguments
_RULES = {"l": " --- ", "r": " ---: "}


class Arguments(argparse.ArgumentParser):
    """A parser that also knows which options go together.

    Args:
        problem: says what is wrong with parsed arguments, or nothing.
    """

    def __init__(self, *args: Any, problem: Problem = lambda parsed: "", **named: Any) -> None:
        super().__init__(*args, **named)
        self._problem = problem

    def parse_args(self, *args: Any, **named: Any) -> Any:
        """As of the base class; what does not go together ends the script, too."""
        parsed = super().parse_args(*args, **named)
        if problem := self._problem(parsed):
            self.error(problem)
        return parsed


def arguments(text: str | None, problem: Problem = lambda parsed: "") -> Arguments:
    """A parser of arguments, described by the first line of a script's docstring."""
    return Arguments(description=(text or "").splitlines()[0], problem=problem)


def compress(output: Path, command: str = "", **options: Any) -> Report:
    """A run of `compress` with some options; those that are None are not given.

    The same run that was stopped goes on.
    """
    from compressor.commands.console import Console
    from compressor.options.requests import make_recipe
    from compressor.pipeline.run import run

    recipe = make_recipe(**{name: value for name, value in options.items() if value is not None})
    return run(recipe, output, command, Console())


def read_json(path: Path, default: Any) -> Any:
    """What is in a file of results; the default where there is none yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else default


def write_json(path: Path, data: Any) -> None:
    """Write results, which later calls read again."""
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merge_rows(path: Path, rows: list[Any], key: Callable[[Any], Hashable]) -> list[Any]:
    """Write rows, and keep those of earlier calls that were not measured again; all of them."""
    new = set(map(key, rows))
    merged = [*rows, *(row for row in read_json(path, []) if key(row) not in new)]
    write_json(path, merged)
    return merged


def markdown_table(titles: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    """A table of cells.

    Args:
        align: `l` (left) or `r` (right) for the first columns; the last letter is for all others.
    """
    letters = align.ljust(len(titles), align[-1])
    lines = [[f" {cell} " if cell else " " for cell in cells] for cells in (titles, *rows)]
    lines.insert(1, [_RULES[letter] for letter in letters])
    return "\n".join(f"|{'|'.join(cells)}|" for cells in lines)


def with_interval(value: float, interval: Sequence[float], sign: str = "") -> str:
    """`1.23 [1.20, 1.26]`; with `sign` `+`, of differences."""
    return f"{value:{sign}.2f} [{interval[0]:{sign}.2f}, {interval[1]:{sign}.2f}]"


def changed(value: float, change: Sequence[float] | None) -> str:
    """A score, and in parentheses its difference with the interval, where it is compared."""
    return f"{value:.1f}" + (f" ({with_interval(change[0], change[1:], '+')})" if change else "")


def publish(name: str, text: str) -> None:
    """Write a page of results, and print it."""
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    print(text)


@contextmanager
def drawing(path: Path, width: float, height: float, **panels: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, [rows, columns], in the style of reports; saved at the end.

    Args:
        panels: as of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    with plot_style(path.stem):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(squeeze=False, **panels)
        figure.savefig(path, dpi=150, facecolor="white")
