"""`compress demo`: what it runs. (The run itself takes minutes; `make demo` is it.)"""

from __future__ import annotations

from pathlib import Path

from compressor.budgets.macs import Macs
from compressor.commands.demo import demo_recipe
from compressor.request import example


def test_the_demo_is_a_run_of_the_bundled_model_on_bundled_sentences():
    recipe = demo_recipe("0.8")
    assert Path(recipe.model.path) == example.model()
    assert recipe.data.calibration == str(example.calibration())
    assert recipe.data.test == str(example.test())
    assert isinstance(recipe.budget, Macs)
    assert recipe.budget.macs == [0.8]
    assert recipe.export.precision == ["fp32", "int8"]
    assert recipe.throughput is not None
