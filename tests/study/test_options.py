"""Options of studies, the order in which heads are removed, and Holm's correction."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from compressor.model.sublayers import Mask
from compressor.options.assemble import options_of_command
from compressor.study import STUDIES
from compressor.study.curve import removals
from compressor.study.quality import holm
from tests.helpers.studies import scores


def test_heads_are_removed_in_ascending_order_within_their_kind():
    given = scores(encoder=[0.5, 0.1, 0.3], decoder=[0.2, 0.9])
    full = Mask({name: (True,) * len(values) for name, values in given.values.items()})
    removed = removals(given, full, "encoder_self", (0, 50, 100))
    assert [mask.total() - mask.count() for mask in removed] == [0, 2, 3]
    assert removed[1].keep == {
        "encoder_self.0": (True, False, False), "decoder_self.0": (True, True),
    }  # fmt: skip
    assert removals(given, full, "heads", (40,))[0].keep == {
        "encoder_self.0": (True, False, True), "decoder_self.0": (False, True),
    }  # fmt: skip


def test_holm_rejects_what_the_step_down_procedure_rejects():
    """Holm 1979 as it is written: compare the k-th smallest with level / (n - k + 1), stop once."""
    p_values = [0.04, 0.001, 0.2, 0.012, 1.0, 0.012, 0.6, 0.0004]
    adjusted = holm(p_values)
    for level in (0.0032, 0.005, 0.05, 0.1, 0.3, 0.61, 0.9):
        rejected = set()
        for k, place in enumerate(np.argsort(p_values, kind="stable")):
            if p_values[place] > level / (len(p_values) - k):
                break
            rejected.add(int(place))
        assert {i for i, p in enumerate(adjusted) if p <= level} == rejected


def test_a_study_has_only_its_own_options():
    options = {name: options_of_command(kind).keys() for name, kind in STUDIES.items()}
    assert [name for name in options if "conllu" in options[name]] == ["roles"]
    assert [name for name in options if "model" not in options[name]] == ["training"]
    assert "calibration" not in options["heads"]


def test_every_study_is_described():
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    for name in STUDIES:
        assert f"## {name}" in page
        assert f"compress study {name}" in page
