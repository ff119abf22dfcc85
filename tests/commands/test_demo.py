"""`compress demo`: what it runs. (The runs take minutes; `make demo` is them.)"""

from __future__ import annotations

from pathlib import Path

from compressor.budgets.macs import Macs
from compressor.commands.demo import demo_recipes
from compressor.request import example


def test_the_demo_runs_the_bundled_models_on_bundled_rows():
    recipes = demo_recipes()
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
