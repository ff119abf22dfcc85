"""`compress demo`: what it runs. (The runs take minutes; `make demo` is them.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.budgets.macs import Macs
from compressor.commands import demo
from compressor.request import example
from tests.helpers import toy
from tests.helpers.runs import recipe_for


def test_the_demo_runs_the_bundled_models_on_bundled_rows():
    recipes = demo.demo_recipes()
    bundled = {
        "classifier": (*example.help_desk(), 0.3),
        "translator": (example.model(), example.calibration(), example.test(), 0.8),
    }
    assert list(recipes) == list(bundled)
    for name, (model, calibration, test, macs) in bundled.items():
        recipe = recipes[name]
        assert Path(recipe.model.path) == model
        assert recipe.data.calibration == str(calibration)
        assert recipe.data.test == str(test)
        assert isinstance(recipe.budget, Macs)
        assert recipe.budget.macs == [macs]
        assert recipe.export.precision == ["fp32", "int8"]
        assert recipe.throughput is not None


@pytest.mark.slow
def test_the_demo_ends_with_what_each_model_gains_and_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    model = toy.classifier(tmp_path / "bert")
    recipe = recipe_for(model, tmp_path, bench=False)
    monkeypatch.setattr(demo, "demo_recipes", lambda: dict.fromkeys(demo.CASES, recipe))
    assert demo.demo.function(tmp_path / "out") == 0
    *_, first, second = capsys.readouterr().out.strip().split("\n\n")
    for name, told in (("classifier", first), ("translator", second)):
        heading, conclusion = told.split("\n", 1)
        assert heading.startswith(f"The {name}, ")
        assert conclusion.startswith("keep-0.5 keeps 6 of 12 heads")
        assert (tmp_path / "out" / name / "report.html").exists()
