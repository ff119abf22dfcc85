"""The examples of docs/python.md run, and the fields in its tables are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib import pyplot

import compressor
from compressor.options.assemble import options_of_command
from compressor.options.recipe import Recipe
from compressor.report.schema import Report
from compressor.steps.results import Throughput, Timing, Variant
from tests.helpers.report_samples import translator_report

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text("utf-8")
KINDS = {"report": Report, "build": Variant, "row": Timing}


def test_fields_that_are_named_are_there():
    named = set(re.findall(r"`(report|build|row)\.(\w+)", PAGE)) - {("report", "json")}
    assert len(named) > 30
    missing = [(kind, name) for kind, name in named if name not in KINDS[kind].model_fields]
    assert missing == []
    assert {"rows", "threads", "device"} <= Throughput.model_fields.keys()


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """On a report that is there: a run of these models takes minutes, `make attack` has those."""
    calls = []

    def run(output: str, config: str | None = None, **options) -> Report:
        assert options.keys() <= options_of_command(Recipe).keys()
        calls.append((output, config))
        return translator_report()

    monkeypatch.setattr(compressor, "run", run)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    figure = pyplot.figure()
    run_example, gate, plot = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(run_example, names)
    printed = capsys.readouterr().out
    for variant in translator_report().variants:
        assert f"{variant.name} {variant.macs_share:.0%} {variant.comparisons[0].pruned}" in printed
    met = all(outcome.met for outcome in translator_report().gate)
    if met:
        exec(gate, names)
    else:
        with pytest.raises(SystemExit):
            exec(gate, names)
    exec(plot.replace("batch = 16", "batch = 8"), names)
    assert len(figure.gca().texts) == len(translator_report().variants)
    assert Path("tradeoff.png").read_bytes().startswith(b"\x89PNG")
    assert calls == [("out", None), ("out/macs-0.5", "out/macs-0.5/recipe.yaml")]
