"""`compress study` as a user meets it: shell, warnings and refusals."""

from __future__ import annotations

import json
import re

import pytest

from compressor.errors import InputError, UsageError
from tests.helpers.command_line import compress
from tests.helpers.errors import raises
from tests.helpers.studies import run

pytestmark = pytest.mark.slow


def test_calibrating_on_test_rows_is_told(toys, tmp_path):
    model = toys["classification"]
    rows = {"test": model.test, "calibration": model.test}
    data = run("curve", tmp_path / "out", model=model.model, points="0", **rows)
    assert data["shared_rows"] == 12
    page = (tmp_path / "out" / "study-curve.md").read_text(encoding="utf-8")
    assert "12 of 12 test rows are calibration rows too" in page


def test_a_wrong_checkpoint_is_an_error_before_anything_is_computed(toys, tmp_path):
    model, other = toys["classification"], toys["translation"]
    empty = tmp_path / "empty"
    empty.mkdir()
    for wrong in (other.model, empty):
        with pytest.raises(InputError, match=re.escape(str(wrong))):
            run(
                "training", tmp_path / "out",
                checkpoint=[str(model.model), str(wrong), str(model.model)],
                test=model.test, calibration=model.calibration,
            )  # fmt: skip
        assert not (tmp_path / "out").exists()


def test_roles_without_text_or_without_pruning_are_errors(toys, trees, tmp_path):
    with raises(UsageError, "rows-missing"):
        run("roles", tmp_path / "none", model=toys["translation"].model)
    with raises(InputError, "checkpoint-not-pruned"):
        run(
            "roles", tmp_path / "dense", model=toys["translation"].model, conllu=trees,
            pruned=toys["translation"].model,
        )  # fmt: skip


def test_methods_without_rows_or_data_are_refused(toys, tmp_path):
    model = toys["classification"]
    for name, given, id in [
        ("curve", {"test": model.test}, "calibration-missing"),
        ("layers", {"test": model.test}, "calibration-missing"),
        (
            "agreement",
            {"calibration": model.test, "other": model.test, "method": "random"},
            "method-without-data",
        ),
    ]:
        with raises(UsageError, id):
            run(name, tmp_path / name, model=model.model, **given)
        assert not (tmp_path / name).exists()  # so that the options can be corrected


def test_a_study_from_the_shell(toys, tmp_path):
    """One directory for two studies, whose results are not written over."""
    model, out = toys["classification"], tmp_path / "out"
    arguments = [
        "study", "heads", "-m", model.model, "--test", model.test, "-o", out, "--resamples", 200,
        "--device", "cpu",
    ]  # fmt: skip
    first = compress(*arguments, "--json")
    assert first.returncode == 0, first.stderr
    assert "removing each of 12 heads alone …" in first.stderr
    data = json.loads(first.stdout)
    assert (data["ok"], data["study"], data["output"]) == (True, "heads", str(out))
    again = compress(*arguments)
    assert again.returncode == 4
    assert "holds study-heads.json already" in again.stderr
    run("layers", out, model=model.model, test=model.test, method="magnitude")
    assert {path.stem for path in out.glob("*.md")} == {"study-heads", "study-layers"}
