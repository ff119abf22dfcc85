"""A disk that refuses: status 4 with what is needed, nothing half written, and it goes on later."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compressor.commands import invoke
from compressor.errors import InputError
from compressor.pipeline.run import run
from compressor.storage.disk import disk_problem
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runs import hashes, recipe_for


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond `size` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.attack  # the limit holds for the whole process
@pytest.mark.usefixtures("fresh_exports")  # kept ones are written elsewhere
def test_a_run_goes_on_when_there_is_room(tmp_path, capsys):
    model = toy.classifier(tmp_path / "dense")
    output = tmp_path / "out"
    recipe = recipe_for(model, tmp_path)
    after = []
    for size in (0, 40_000):
        with largest_file(size), raises(InputError, "disk-refuses"):
            run(recipe, output)
        after.append(hashes(output))
    run(recipe, output)
    for found in after:
        assert found.items() <= hashes(output).items()
    assert (output / "report.json").exists()
    # A single step, which leaves nothing.
    words = ["export", "-m", str(model), "-o", str(tmp_path / "exported")]
    with largest_file(20_000):
        assert invoke(words) == 4
    shown = capsys.readouterr().err
    assert "cannot write" in shown
    assert "about 1 MiB are needed in all" in shown
    assert "MiB are free" in shown
    assert not (tmp_path / "exported").exists()
    assert invoke(words) == 0


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (OSError(errno.ENOSPC, "…"), "No space left on device"),
        (RuntimeError("I/O error: … (os error 30)"), "Read-only file system"),
        (ValueError("something else"), ""),
    ],
)
def test_a_refusal_is_known_whichever_library_met_it(error: Exception, problem: str):
    assert disk_problem(error) == problem
    wrapped = RuntimeError("while saving")
    wrapped.__cause__ = error
    assert disk_problem(wrapped) == problem
