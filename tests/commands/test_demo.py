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
def test_the_demo_ends_with_a_line_of_gain_and_loss_for_each_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    models = {
        "classifier": toy.classifier(tmp_path / "bert"),
        "translator": toy.translator(tmp_path / "marian"),
    }
    recipes = {}
    for name, model in models.items():
        (tmp_path / name).mkdir()
        recipes[name] = recipe_for(model, tmp_path / name, precision="fp32,int8")
    monkeypatch.setattr(demo, "demo_recipes", lambda: recipes)
    assert demo.demo.function(tmp_path / "out") == 0
    *_, first, second = capsys.readouterr().out.strip().split("\n\n")
    for name, told in (("classifier", first), ("translator", second)):
        heading, conclusion = told.split("\n", 1)
        assert heading.startswith(f"The {name}, ")
        assert "keep-0.5" in conclusion
        assert "int8 alone" in conclusion
        assert (tmp_path / "out" / name / "report.html").exists()
