"""Steps of a run: kept where their records can be relied on, done again where not."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from pydantic import BaseModel

import compressor
from compressor.budgets.base import Limits
from compressor.budgets.counts import Macs
from compressor.budgets.removal_path import PathCut
from compressor.errors import InputError, UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.progress import SILENT
from compressor.steps.results import OutputPath
from compressor.steps.store import Steps, open_steps
from compressor.storage.staging import staging
from compressor.tasks import Rows
from tests.helpers.errors import raises
from tests.helpers.runs import Progress


def opened(root: Path, identity=None, progress=SILENT) -> AbstractContextManager[Steps]:
    return open_steps(root, identity or {}, progress, lambda: 0)


@pytest.fixture
def steps(tmp_path):
    with opened(tmp_path / "out") as steps:
        yield steps


def build(number: int, *, directory: Path, content: bytes = b"12345", result: int = 1) -> int:
    """A step that writes two files; of another content on purpose, where a test says so."""
    (directory / "weights").write_bytes(content)
    (directory / "list").write_text("fp32", encoding="utf-8")
    return number + result


def built(steps: Steps, result: int, number: int = 0, content: bytes = b"12345") -> int:
    how = {"content": content, "result": result}
    return steps.do(build, number, title="building", into=steps.root, **how)


def add(name: str, *, source: Path, directory: Path) -> str:
    """A step that writes one of the files of `build` anew."""
    text = f"{source.read_text(encoding='utf-8')} {name}"
    (directory / "list").write_text(text, encoding="utf-8")
    return text


def added(steps: Steps, name: str) -> str:
    source = steps.root / "list"
    return steps.do(add, name, title=f"adding {name}", into=steps.root, source=source)


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("name", ["weights", "list"])
@pytest.mark.parametrize("harm", [zeros, Path.unlink])
def test_a_step_is_done_once_and_again_when_a_file_is_lost_or_changed(steps, name, harm):
    assert [built(steps, 1), built(steps, 2)] == [1, 1]
    harm(steps.root / name)
    assert [built(steps, 2), built(steps, 3)] == [2, 2]


def test_files_of_others_are_no_loss(steps):
    (steps.root / "report.md").write_text("short", encoding="utf-8")
    built(steps, 1)
    (steps.root / "report.md").unlink()
    assert built(steps, 2) == 1


def names(root: Path) -> tuple[str, list[str]]:
    """What a file that three steps write holds, by a run that is started; what it did again."""
    progress = Progress()
    with opened(root, progress=progress) as steps:
        built(steps, 0)
        for name in ("fp16", "int8"):
            added(steps, name)
        again = [x for x in progress.messages if x.endswith("…")]
        return (root / "list").read_text(encoding="utf-8"), again


def test_a_file_that_later_steps_write_anew_is_no_loss_of_earlier_ones(tmp_path):
    """Whatever happens to it, the run makes it what it was."""
    root = tmp_path / "out"
    first = names(root)
    assert first == ("fp32 fp16 int8", ["building …", "adding fp16 …", "adding int8 …"])
    assert names(root) == ("fp32 fp16 int8", [])
    zeros(root / "list")
    assert names(root) == first
    zeros(root / "weights")  # the step that wrote it writes the list, too
    assert names(root) == first
    # A process that was killed before the later steps were known to be done.
    (root / "list").write_text("fp32 fp16", encoding="utf-8")
    assert names(root) == ("fp32 fp16 int8", ["adding int8 …"])
    (root / ".compress" / "rewritten.list").write_text("[", encoding="utf-8")
    assert names(root)[0] == "fp32 fp16 int8"
    assert names(root) == ("fp32 fp16 int8", [])


def interrupted(*, directory: Path) -> int:
    (directory / "weights").write_bytes(b"123")
    raise KeyboardInterrupt


def test_what_fails_leaves_nothing_under_its_final_name(steps):
    with pytest.raises(KeyboardInterrupt):
        steps.do(interrupted, title="building", into=steps.root / "made")
    assert not (steps.root / "made").exists()
    assert steps.files == {}


MASK = Mask({"cross.0": (True, False)})
SCORES = Scores({"cross.0": (0.5, 0.25)}, "taylor", "taylor|x", {"seconds": 1.0})
LIMITS = Limits(MASK, frozenset({"heads"}), {"cross": 1}, {"heads": 1})
ROWS = Rows("classification", ["a"], None, ["0"], ["rows.tsv"], "0" * 64)


@dataclass(frozen=True)
class Named:
    """Its digest says nothing of its text: no attribute of a certain name counts for others."""

    text: str
    sha256: str = "0" * 64


class Pruned(BaseModel):
    share: float


class Dropped(BaseModel):
    share: float


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, 2], [2, 1]), ({"encoder": 1}, {"encoder": 2}),
        (MASK, Mask(MASK.keep, frozenset({"decoder.0"}))),
        (PathCut(MASK, 0.5, 1), PathCut(MASK, 0.5, 2)),
        (SCORES, replace(SCORES, values={"cross.0": (0.5, 0.75)})),
        (LIMITS, replace(LIMITS, even=True)), (LIMITS, replace(LIMITS, floors={"cross": 0})),
        (ROWS, replace(ROWS, tokenizers={"bleu": "zh"})),
        (Macs(macs=[0.5]), Macs(macs=[0.5], steps=2)),
        (Named("a"), Named("b")), ([Named("a")], [Named("b")]),
        (Pruned(share=0.5), Dropped(share=0.5)),
    ],
)  # fmt: skip
def test_another_input_is_another_step(steps, first, second):
    """Also one that differs only within; what scoring took makes no difference."""
    assert [count(steps, x) for x in (first, second, first)] == [1, 2, 1]
    assert count(steps, SCORES) == count(steps, replace(SCORES, cost={"seconds": 2.0}))


def test_a_file_of_the_user_counts_with_its_content(steps, tmp_path):
    rows = tmp_path / "rows.tsv"
    for text, number in (("a", 1), ("b", 2), ("a", 1)):
        rows.write_text(text, encoding="utf-8")
        assert count(steps, rows) == number


def test_an_input_that_declares_nothing_is_refused(steps):
    with pytest.raises(TypeError, match="Tensor declares nothing"):
        count(steps, torch.zeros(1))


def count(steps: Steps, given: object) -> int:
    return steps.do(counted, given, title="", steps=steps)


def counted(given: object, *, steps: Steps) -> int:
    return len(list(steps.state.glob("counted-*.json"))) + 1


@dataclass(frozen=True)
class Made:
    directory: OutputPath
    weights: OutputPath


def make(*, directory: Path, content: bytes) -> Made:
    path = directory / "weights"
    path.write_bytes(content)
    return Made(directory, path)


@pytest.mark.parametrize("part", ["directory", "weights"])
def test_a_file_that_was_made_again_differently_changes_what_depends_on_it(steps, part):
    into = steps.root / "model"
    for content, number in ((b"1", 1), (b"1", 1), (b"2", 2)):
        (into / "weights").unlink(missing_ok=True)
        made = steps.do(make, title="", into=into, content=content)
        assert made == Made(into, into / "weights")
        assert count(steps, getattr(made, part)) == number


def test_a_result_lies_where_its_directory_was_moved_to(tmp_path):
    for name in ("first", "second"):
        root = tmp_path / name
        with opened(root) as steps:
            made = steps.do(make, title="", into=root / "model", content=b"1")
        assert made.weights == root / "model" / "weights"
        if name == "first":
            shutil.move(root, tmp_path / "second")
    assert len(list((root / ".compress").glob("make-*.json"))) == 1


def write(*, directory: Path) -> OutputPath:
    (directory / "notes").write_text("1", encoding="utf-8")
    return directory / "notes"


def test_a_path_alone_is_a_result_too(steps):
    for _ in range(2):
        found = steps.do(write, title="", into=steps.root / "model")
        assert found == steps.root / "model" / "notes"
        assert found.read_text(encoding="utf-8") == "1"


def test_what_a_killed_run_was_making_is_removed(tmp_path):
    with opened(tmp_path / "out") as steps, staging(steps.state) as staged:
        left = shutil.copytree(staged.parent, staged.parent.with_name(".writing-left"))
    with opened(tmp_path / "out"):
        assert not left.exists()


@pytest.mark.parametrize("folder", [".", "macs-0.5"])
def test_what_was_left_below_the_output_is_removed_too(tmp_path, folder):
    """A run of several budgets writes into a directory of each."""
    with opened(tmp_path / "out") as steps, staging(steps.root / folder) as staged:
        left = shutil.copytree(staged.parent, staged.parent.with_name(".writing-left"))
    with opened(tmp_path / "out"):
        assert not left.exists()


def test_files_of_all_steps_are_known_those_for_the_user_apart(steps):
    """What manifests list: of the output all but the run's own, of a folder in these all."""
    dense = steps.state / "dense"
    for into, number in ((steps.root / "out", 1), (dense, 2)):
        steps.do(build, number, title="", into=into)
    of_output = steps.files_below(steps.root)
    assert set(of_output) == {"out/weights", "out/list"}
    assert set(steps.files_below(dense)) == {"weights", "list"}
    assert of_output["out/weights"] == hashlib.sha256(b"12345").hexdigest()


def test_a_lost_file_is_named(tmp_path):
    progress = Progress()
    with opened(tmp_path / "out", progress=progress) as steps:
        built(steps, 1)
        (steps.root / "weights").unlink()
        assert built(steps, 2) == 2
    (line,) = (text for text in progress.messages if "missing or changed" in text)
    assert line.startswith(str(tmp_path / "out" / "weights"))


def test_a_step_that_was_done_is_said_once(tmp_path):
    progress = Progress()
    with opened(tmp_path / "out") as steps:
        built(steps, 1)
    with opened(tmp_path / "out", progress=progress) as steps:
        for _ in range(2):
            built(steps, 1)
    assert progress.messages == ["building: done before"]


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
    with raises(UsageError, "output-of-another-run") as caught, opened(root, {"seed": 2}):
        pass
    assert "seed=1, now it is 2" in str(caught.value)


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").touch()
    with raises(InputError, "output-not-empty"), opened(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_steps_find_out_counts_in_the_keys_of_others():
    """By keyword a step gets what its run was started with, for which the identity stands."""
    started_with = {"opened", "checkpoint", "rows", "config", "costs", "text", "command", "context"}
    how = {"title", "shared", "into", None}  # None: a dictionary of such
    calls = [
        (path.name, {word.arg for word in node.keywords})
        for path in Path(compressor.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and re.fullmatch(r"(.*\.)?do", ast.unparse(node.func))
    ]
    assert len(calls) > 15
    assert [
        (name, words - how - started_with) for name, words in calls if words - how - started_with
    ] == []
