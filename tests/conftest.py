"""Fixtures that several folders of tests share.

What needs PyTorch is imported where it is used: the process that starts the others does without.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from filelock import FileLock

# Of tests that are repeated for every architecture, `make quick` runs one per kind of model.
QUICK_ARCHITECTURES = {"marian", "bert"}

# A shell ignores Ctrl-C for what it starts in the background, and processes inherit that; those
# that tests interrupt must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Each worker has a processor of its own, with all that it starts: threads that wait for each other
# without sleeping, as CTranslate2's and onnxruntime's do, take tenfold on one that others use too.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    _processors = sorted(os.sched_getaffinity(0))
    _number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.sched_setaffinity(0, {_processors[_number % len(_processors)]})

# No test cuts the power; waiting for the disk, a processor would be idle a tenth of the time.
os.fsync = lambda file: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but two of the architectures as slow."""
    from tests.helpers.tiny import BUILDERS, RELATIVES

    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        names = {value for value in parameters if isinstance(value, str)}
        if names & ((BUILDERS | RELATIVES).keys() - QUICK_ARCHITECTURES):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all worker processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def once(_shared: Path) -> Callable[[str, Callable[[Path], object]], Path]:
    """`once(name, make)`: a directory that `make` filled, called by one worker for all of them.

    Tests only read it; a test that writes takes a copy.
    """

    def made(name: str, make: Callable[[Path], object]) -> Path:
        directory, done = _shared / name, _shared / f"{name}.done"
        with FileLock(_shared / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(directory, ignore_errors=True)  # left by a failed attempt
                directory.mkdir()
                make(directory)
                done.touch()
        return directory

    return made


@pytest.fixture(scope="session")
def checkpoints(once) -> dict[str, Path]:
    """`bert` of three layers, `marian` with pieces of two a stack, `short` ones of one layer."""
    from tests.helpers import toy

    def make(folder: Path) -> None:
        toy.first_layers(toy.classifier(folder / "bert"), folder / "short-bert")
        toy.first_layers(toy.translator(folder / "words"), folder / "short-marian")
        pieces = toy.marian_with_pieces(folder / "pieces")
        marian = toy.first_layers(pieces, folder / "marian", count=2)
        # Some models of the hub hold their weights a second time, for another library.
        shutil.copy(marian / "model.safetensors", marian / "consolidated.safetensors")

    return {path.name: path for path in once("checkpoints", make).iterdir()}


@pytest.fixture(scope="session")
def inputs(checkpoints, once) -> dict[str, str]:
    """Options of a short run of a classifier; most tests share its files."""
    from tests.helpers.runs import recipe_for

    made = once("inputs", lambda folder: recipe_for(checkpoints["short-bert"], folder))
    files = {name: str(made / f"{name}.tsv") for name in ("calibration", "test")}
    return {"model": str(checkpoints["short-bert"]), **files}


@pytest.fixture(scope="session", autouse=True)
def _kept_exports(_shared: Path) -> Iterator[None]:
    """Export each graph once per run of the tests: see `helpers.exports`."""
    from tests.helpers.exports import kept_exports

    import_module("torch.onnx._internal.exporter._core")  # what the first export would import
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # the default of 700 takes twice the time
    exports = Path(os.environ.get("KEPT_EXPORTS", _shared / "exports"))
    with kept_exports(exports), pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEPT_EXPORTS", str(exports))
        yield


@pytest.fixture(scope="session", autouse=True)
def _float32() -> Iterator[None]:
    """Train in float32 where nothing else is said, whatever the processor has."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
            patch.setattr(torch.cpu, name, lambda: False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _quick_collection() -> Iterator[None]:
    """What is alive between files stays alive: a run collects garbage a dozen times.

    With all that PyTorch, its exporter and pytest hold, each time takes a third of a second.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def fresh_exports() -> Iterator[None]:
    """Export every graph anew and measure memory, for tests of that."""
    from tests.helpers.exports import exports_made_anew

    with exports_made_anew():
        yield
