"""`compress demo`: what it runs and says. (The runs take minutes; `make demo` is them.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.commands import demo
from compressor.request import example
from tests.helpers.report_samples import translator_report


def test_the_demo_runs_both_bundled_models_and_tells_what_each_gains_and_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Of runs that give a made-up report."""
    ran = []

    def run(recipe, directory, *arguments):
        ran.append((Path(recipe.model.path), directory.name, Path(recipe.data.test)))
        return translator_report()

    monkeypatch.setattr("compressor.pipeline.run.run", run)
    assert demo.demo.function(tmp_path / "out") == 0
    model, _, test = example.help_desk()
    assert ran == [
        (model, "classifier", test), (example.model(), "translator", example.test()),
    ]  # fmt: skip
    *_, first, second = capsys.readouterr().out.strip().split("\n\n")
    for name, told in (("classifier", first), ("translator", second)):
        heading, conclusion = told.split("\n", 1)
        assert heading.startswith(f"The {name}, ")
        assert "keeps 72 of 144 heads (50%)" in " ".join(conclusion.split())
