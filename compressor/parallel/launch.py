"""The processes of a run that `accelerate launch` or `torchrun` started: their beginning and end.

A launcher gives each process its number in environment variables. Who meets an error first tells it
(`speaks_first`); the others end without a word. A thread in each process writes a sign of life into
the launcher's key-value store once in a while and reads those of the others, since a process that
was stopped, or whose machine is gone, ends no connection.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from compressor import parallel
from compressor.errors import CompressError, EnvironmentProblem
from compressor.parallel import Ranks

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LIMIT = "COMPRESS_RANK_SECONDS"
_SECONDS = 600.0  # as PyTorch has it for GPUs
_PATIENCE = timedelta(days=30)
_STARTED_BY = "start it with `accelerate launch` or `torchrun`"


def processes() -> int:
    """How many processes a launcher started, by what it says in the environment; 1 without one."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if "RANK" in os.environ and size.isdecimal() and int(size) > 1 else 1


def rank() -> int:
    """Number of this process, by what the launcher says; 0 without one."""
    number = os.environ.get("RANK", "0")
    return int(number) if processes() > 1 and number.isdecimal() else 0


def seconds() -> float:
    """How long a process may not be heard of."""
    try:
        return max(1.0, float(os.environ.get(LIMIT, _SECONDS)))
    except ValueError as error:
        raise EnvironmentProblem(
            f"{LIMIT}={os.environ[LIMIT]} is no number of seconds; give one, such as 600",
            id="rank-seconds-invalid",
        ) from error


def start(device: str, shards: bool = False) -> None:
    """Meet the other processes, if there are any.

    Args:
        device: `auto`, `cpu` or `cuda`; of several processes on a machine each takes its own GPU.
        shards: models in training are spread over ranks.

    Raises:
        EnvironmentProblem: accelerate is not installed, the numbers of the processes make no
            sense, some did not come, or two share a GPU.
    """
    if processes() == 1:
        return
    _require_numbers()
    try:
        from accelerate import PartialState
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"a run in {processes()} processes needs accelerate; pip install "
            "'compress-heads[distributed]', or start it without a launcher",
            id="accelerate-missing",
        ) from error
    if device != "cpu":
        _take_own_gpu()
    import torch
    from torch import distributed

    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    limit = timedelta(seconds=seconds())
    try:
        backend = "cuda:nccl,cpu:gloo" if on_gpu else "gloo"
        PartialState(cpu=not on_gpu, backend=backend, timeout=limit)
        control = distributed.new_group(backend="gloo", timeout=limit)
        patient = distributed.new_group(backend="gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise EnvironmentProblem(
            f"not all {processes()} processes of the run came within {seconds():g} s ({reason}); "
            f"{_STARTED_BY} on every machine, with the same numbers",
            id="ranks-missing",
        ) from error
    parallel.use(Ranks(rank(), processes(), control, patient, shards))
    _watch.start(_open_store(seconds()))
    signal.signal(signal.SIGTERM, _interrupt)
    _require_one_device(on_gpu)


def finish() -> None:
    """Part from the other processes; all of them come here when the work is done."""
    if parallel.size() == 1:
        return
    from torch import distributed

    parallel.gather(None)
    _watch.stop()
    parallel.gather(None)  # nobody looks for signs of life any more
    parallel.use(Ranks())
    distributed.destroy_process_group()


def require_same(
    facts: Mapping[str, object], advice: str, kind: type[CompressError], id: str
) -> None:
    """Check that all processes have the same facts.

    Args:
        advice: what to do about a difference.

    Raises:
        CompressError: of this kind, on all ranks.
    """
    first, *others = parallel.gather({name: str(value) for name, value in facts.items()})
    for number, other in enumerate(others, 1):
        for name, value in first.items():
            if other[name] != value:
                raise kind(
                    f"rank 0 has {name} {value}, rank {number} has {other[name]}; {advice}", id=id
                )


def require_same_versions(own: str) -> None:
    """Check that all processes run the same programs.

    Args:
        own: version of this package.

    Raises:
        EnvironmentProblem: they do not.
    """
    if parallel.size() == 1:
        return
    from importlib.metadata import version

    packages = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
    facts = {
        "compress": own,
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }
    require_same(
        facts | {name: version(name) for name in packages},
        "install the same versions on all machines",
        EnvironmentProblem,
        "ranks-differ-in-versions",
    )


def speaks_first() -> bool:
    """Whether this process is the first of the run to tell why it ends; always, if it is alone.

    The launcher ends the others then. They do not speak, whatever they meet.
    """
    if processes() == 1:
        return True
    with suppress(ValueError, OSError):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it would come while this one speaks
    store = _watch.store
    try:
        if store is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = _open_store(10.0)
        if store is None:
            return rank() == 0
        first: bool = store.add(_key("told"), 1) == 1
        return first
    except (RuntimeError, ValueError, LookupError):  # who kept the store is gone
        return True


def wait_for_others() -> None:
    """Leave the others some seconds to see that this process has spoken, where it has the store.

    torchrun's and accelerate's launchers keep it themselves.
    """
    store = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else _watch.store
    if store is None or rank() > 0:
        return
    with suppress(RuntimeError):
        for _ in range(20):
            if store.add(_key("told"), 0) == processes():
                return
            time.sleep(0.1)


def _require_numbers() -> None:
    """Check what the launcher says, as far as `init_process_group` would wait or fail oddly."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if not os.environ.get(name)]
    number = os.environ["RANK"]
    if missing or not number.isdecimal() or int(number) >= processes():
        said = f"{', '.join(missing)} is not set" if missing else f"RANK={number}"
        raise EnvironmentProblem(
            f"WORLD_SIZE={processes()}, but {said}; {_STARTED_BY}", id="ranks-invalid"
        )


def _take_own_gpu() -> None:
    """Leave one GPU visible, so that `cuda` means the same one to torch and onnxruntime."""
    number = int(os.environ.get("LOCAL_RANK", "0"))
    visible = [x for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x.strip()]
    if len(visible) > number:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number]
    elif "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number)


def _require_one_device(on_gpu: bool) -> None:
    """Check that all processes compute on CPUs, or each on a GPU of its own."""
    import torch

    require_same(
        {"the device": "cuda" if on_gpu else "cpu"},
        "start as many processes on a machine as it has GPUs, or give --device cpu",
        EnvironmentProblem,
        "ranks-differ-in-device",
    )
    if on_gpu:
        gpu = f"GPU {torch.cuda.get_device_properties(0).uuid} of {socket.gethostname()}"
        name, count = Counter(parallel.gather(gpu)).most_common(1)[0]
        if count > 1:
            raise EnvironmentProblem(
                f"{count} processes share {name}; start as many processes on a machine as it has "
                "GPUs, or give --device cpu",
                id="ranks-share-a-gpu",
            )


def _open_store(limit: float) -> TCPStore:
    """A connection of its own to the launcher's store, which no other thread blocks."""
    from torch.distributed import TCPStore

    return TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
        timeout=timedelta(seconds=limit), wait_for_workers=False,
    )  # fmt: skip


def _key(name: str) -> str:
    """A key of this attempt: torchrun may start the processes again."""
    return f"compress/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"


def _interrupt(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _watch.is_ended = True
    raise EndedByLauncher


class EndedByLauncher(KeyboardInterrupt):
    """The launcher ends this process, as it does with all when one of them ends."""


class Watch:
    """A thread that shows that this process lives, and looks whether the others do."""

    def __init__(self) -> None:
        self.store: TCPStore | None = None
        self.report: Callable[[EnvironmentProblem], None] = lambda error: None
        self.counts: dict[int, tuple[int, int, int]] = {}  # rank -> pass, done, total
        self.passes = 0
        self.is_ended = False  # by the launcher
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, store: TCPStore) -> None:
        self.store = store
        self._ended.clear()
        self._show(0)
        parallel.gather(None)  # all signs are there
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self, beat: int) -> None:
        assert self.store is not None
        done = " ".join(map(str, self.counts.get(rank(), (0, 0, 0))))
        self.store.set(_key(f"beat-{rank()}"), f"{beat} {done}")

    def _run(self) -> None:
        limit, beat = seconds(), 0
        others = [number for number in range(processes()) if number != rank()]
        heard = dict.fromkeys(others, ("", time.monotonic()))
        while not self._ended.wait(min(2.0, limit / 5)):
            beat += 1
            try:
                self._show(beat)
                for other in others:
                    sign = self._read(other)
                    if sign != heard[other][0]:
                        heard[other] = sign, time.monotonic()
            except RuntimeError:
                self._end("the process that the others met at", limit)
            for other, (_, last) in heard.items():
                if time.monotonic() - last > limit:
                    self._end(f"rank {other}", limit)

    def _read(self, other: int) -> str:
        assert self.store is not None
        sign = str(self.store.get(_key(f"beat-{other}")).decode())
        number, done, total = map(int, sign.split()[1:])
        self.counts[other] = number, done, total
        return sign

    def _end(self, who: str, limit: float) -> None:
        """End this process: what the main thread waits for will not come."""
        if self._ended.is_set():
            return
        self.report(
            EnvironmentProblem(
                f"{who} was not heard of for {limit:g} s; see its output, and give the same "
                "command to go on from what is saved",
                id="rank-lost",
            )
        )
        os._exit(EnvironmentProblem.exit_code)


_watch = Watch()


def is_ended() -> bool:
    """Whether the launcher asked this process to end."""
    return _watch.is_ended


def counted(progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Progress of a pass over rows that counts all ranks, as far as they were heard of lately.

    Args:
        progress: called with (steps done, steps in all) of all ranks.
    """
    if parallel.size() == 1:
        return progress
    _watch.passes += 1  # the same number on all ranks, which go through the same passes
    number = _watch.passes

    def count(done: int, total: int) -> None:
        _watch.counts[rank()] = number, done, total
        heard = [(d, t) for own, d, t in list(_watch.counts.values()) if own == number]
        silent = processes() - len(heard)
        progress(sum(d for d, _ in heard), sum(t for _, t in heard) + silent * total)

    return count


def on_lost(report: Callable[[EnvironmentProblem], None]) -> None:
    """Say who tells that a process is not heard of any more; this process ends after that."""
    _watch.report = report
