"""Steps of a run: kept where their records can be relied on, done again where not."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from compressor.budgets.units import PathCut
from compressor.errors import InputError, UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.progress import SILENT
from compressor.results import Variant
from compressor.steps import Steps, open_steps
from compressor.storage.files import write_json
from compressor.storage.staging import staging
from tests.helpers.errors import raises
from tests.helpers.runs import Progress


def opened(root: Path, identity=None, progress=SILENT) -> AbstractContextManager[Steps]:
    return open_steps(root, identity or {}, progress, lambda: 0)


@pytest.fixture
def steps(tmp_path):
    with opened(tmp_path / "out") as steps:
        yield steps


GRAPHS = {"precisions": {"fp32": {"model": "model.onnx"}}, "default_precision": "fp32", "pad": 0}


def build(number: int, *, steps: Steps, result: int = 1) -> int:
    """A step that writes two files."""
    with steps.making(steps.root) as making:
        (making / "weights").write_bytes(b"12345")
        write_json(making / "graphs.json", GRAPHS)
    return result


def built(steps: Steps, result: int, number: int = 0) -> int:
    return steps.do(build, number, title="building", steps=steps, result=result)


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def changed(**facts):
    return lambda path: write_json(path, GRAPHS | facts)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("weights", zeros), ("weights", Path.unlink), ("graphs.json", zeros),
        ("graphs.json", changed(pad=1)), ("graphs.json", changed(default_precision="int8")),
        ("graphs.json", changed(precisions={"fp32": {"model": "other.onnx"}})),
    ],
)  # fmt: skip
def test_a_step_is_done_once_and_again_when_a_file_is_lost_or_changed(steps, name, harm):
    assert [built(steps, 1), built(steps, 2)] == [1, 1]
    harm(steps.root / name)
    assert [built(steps, 2), built(steps, 3)] == [2, 2]


def test_files_of_others_and_what_later_steps_add_are_no_loss(steps):
    (steps.root / "report.md").write_text("short", encoding="utf-8")
    built(steps, 1)
    more = GRAPHS["precisions"] | {"int8": {"model": "model.int8.onnx"}}
    changed(precisions=more, default_precision="int8")(steps.root / "graphs.json")
    (steps.root / "weights.int8").touch()
    (steps.root / "report.md").unlink()
    assert built(steps, 2) == 1


def test_what_fails_leaves_nothing_under_its_final_name(steps):
    def interrupted() -> int:
        with steps.making(steps.root / "made") as making:
            (making / "weights").write_bytes(b"123")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps.do(interrupted, title="building")
    assert not (steps.root / "made").exists()
    assert steps.files == {}


MASK = Mask({"cross.0": (True, False)})
SCORES = Scores({"cross.0": (0.5, 0.25)}, "taylor", "taylor|x", {"seconds": 1.0})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, 2], [2, 1]), ({"encoder": 1}, {"encoder": 2}),
        (MASK, Mask(MASK.keep, frozenset({"decoder.0"}))),
        (PathCut(MASK, 0.5, 1), PathCut(MASK, 0.5, 2)),
        (SCORES, replace(SCORES, values={"cross.0": (0.5, 0.75)})),
    ],
)  # fmt: skip
def test_another_input_is_another_step(steps, first, second):
    """Also one that differs only within; what scoring took makes no difference."""
    assert [count(steps, x) for x in (first, second, first)] == [1, 2, 1]
    assert count(steps, SCORES) == count(steps, replace(SCORES, cost={"seconds": 2.0}))


def count(steps: Steps, given: object) -> int:
    return steps.do(counted, given, title="", steps=steps)


def counted(given: object, *, steps: Steps) -> int:
    return len(list(steps.state.glob("counted-*.json"))) + 1


def test_a_file_that_was_made_again_differently_changes_what_depends_on_it(steps):
    directory = steps.root / "model"
    numbers = dict.fromkeys(("macs_share", "parameters", "checkpoint_bytes", "onnx_bytes"), 1)

    def make(*, content: bytes) -> Variant:
        with steps.making(directory) as making:
            (making / "weights").write_bytes(content)
        return Variant(
            name="a", directory=str(directory), budget="", kept={}, heads={}, neurons={},
            kept_neurons={}, precision="fp32", **numbers,
        )  # fmt: skip

    for content, number in ((b"1", 1), (b"1", 1), (b"2", 2)):
        (directory / "weights").unlink(missing_ok=True)
        assert count(steps, steps.do(make, title="", content=content)) == number


def test_what_a_killed_run_was_making_is_removed(tmp_path):
    with opened(tmp_path / "out") as steps, staging(steps.state) as staged:
        left = shutil.copytree(staged.parent, staged.parent.with_name(".writing-left"))
    with opened(tmp_path / "out"):
        assert not left.exists()


def test_two_runs_do_not_share_an_output(tmp_path):
    with opened(tmp_path / "out") as first:
        built(first, 1)
        with raises(InputError, "output-in-use") as caught, opened(tmp_path / "out"):
            pass
        assert f"process {os.getpid()} on " in str(caught.value)
    with opened(tmp_path / "out") as second:
        assert built(second, 2) == 1


def test_a_run_whose_options_are_lost_goes_on_with_its_own_steps_alone(tmp_path):
    root, progress = tmp_path / "out", Progress()
    for seed, number, result in ((1, 1, 1), (2, 2, 2), (1, 3, 1)):
        with opened(root, {"seed": seed}, progress) as steps:
            assert built(steps, number) == result
        path = root / ".compress" / "run.json"
        path.write_text("[1]", encoding="utf-8")
    assert sum(str(path) in message for message in progress.messages) == 2
    with opened(root, {"seed": 1}):
        pass
    with raises(UsageError, "output-of-another-run"), opened(root, {"seed": 2}):
        pass


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").touch()
    with raises(InputError, "output-not-empty"), opened(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
