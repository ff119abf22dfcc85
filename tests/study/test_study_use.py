"""`compress study` as a user meets it: shell, warnings, refusals, and earlier results."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from compressor.errors import InputError, UsageError
from compressor.study import job as study_job
from compressor.study.output import PREFIX
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
    """And the command can then be corrected in the same directory."""
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
        output = tmp_path / "out"  # a computed stage would leave a file
        assert not output.exists() or not list(output.iterdir())


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
        output = tmp_path / name  # empty, so that the options can be corrected
        assert not output.exists() or not list(output.iterdir())


def test_a_study_from_the_shell(toys, tmp_path):
    """Done stages are not done again, nor with other options; one directory for two studies."""
    model, out = toys["classification"], tmp_path / "out"
    arguments = [
        "study", "heads", "-m", model.model, "--test", model.test, "-o", out, "--resamples", 200,
        "--device", "cpu",
    ]  # fmt: skip
    first = compress(*arguments)
    assert first.returncode == 0, first.stderr
    assert "Corrected for 12 tests" in first.stdout
    assert "removing each of 4 heads of encoder_self.2 …" in first.stderr
    again = compress(*arguments, "--json")
    assert again.stderr.count("done before") == 4
    data = json.loads(again.stdout)
    assert (data["ok"], data["study"], data["output"]) == (True, "heads", str(out))
    again = compress(*arguments[:-3], 300, "--device", "cpu")
    assert again.returncode == 2
    assert "200" in again.stderr
    assert "300" in again.stderr
    run("layers", out, model=model.model, test=model.test, method="magnitude")
    assert {path.stem for path in out.glob("*.md")} == {"study-heads", "study-layers"}


@pytest.mark.parametrize("damage", [lambda text: text[: len(text) // 2], lambda text: "[1]"])
def test_damaged_results_of_a_stage_are_computed_again(damage, toys, tmp_path):
    model, out = toys["classification"], tmp_path / "out"
    options = {"model": model.model, "test": model.test, "method": "magnitude"}
    first = run("layers", out, **options)
    state = out / ".compress" / f"{PREFIX}layers" / ".compress"
    stages = [path for path in state.glob("*.json") if path.name != "run.json"]
    assert stages
    for path in stages:
        path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert run("layers", out, **options) == first


def test_a_directory_with_other_things_is_left_alone(toys, tmp_path):
    model = toys["classification"]
    (tmp_path / "report.json").write_text("{}", encoding="utf-8")
    with raises(InputError, "output-not-empty"):
        run("heads", tmp_path, model=model.model, test=model.test)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_studies_of_one_directory_share_scores_and_answers(toys, tmp_path, monkeypatch):
    """To the results that each has alone; of other rows, or damaged, they are computed."""
    model, out = toys["classification"], tmp_path / "out"
    given = {"model": model.model, "test": model.test, "calibration": model.calibration}
    given |= {"method": "taylor"}
    counts = {"scores": 0, "answers": 0}

    def counted(name: str, function):
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    alone = run("layers", tmp_path / "alone", **given)
    monkeypatch.setattr(study_job.Scorer, "score", counted("scores", study_job.Scorer.score))
    monkeypatch.setattr(study_job, "answer", counted("answers", study_job.answer))
    run("curve", out, points="0,50", **given)
    assert counts == {"scores": 1, "answers": 1}
    assert run("layers", out, **given) == alone
    assert counts == {"scores": 1, "answers": 1}
    for path in (out / ".compress").glob("*.json"):
        path.write_text("{}", encoding="utf-8")
    shutil.rmtree(out / ".compress" / f"{PREFIX}layers")
    assert run("layers", out, **given) == alone
    assert counts == {"scores": 2, "answers": 2}
    shutil.rmtree(out / ".compress" / f"{PREFIX}curve")
    run("curve", out, points="0", **given | {"calibration_rows": 8})
    assert counts == {"scores": 3, "answers": 2}
