"""Start and end of the processes of a run that `accelerate launch` or `torchrun` started.

The first process with an error reports it; the others end silently. A thread in each process writes
a heartbeat to the launcher's key-value store and reads those of the others, since a process that is
suspended, or whose machine has failed, closes no connection.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from compressor import parallel
from compressor.errors import EnvironmentProblem
from compressor.parallel import Ranks

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LIMIT = "COMPRESS_RANK_SECONDS"
_SECONDS = 600.0  # as PyTorch has it for GPUs


def processes() -> int:
    """The number of processes that a launcher started, from its environment variables; else 1."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if "RANK" in os.environ and size.isdecimal() and int(size) > 1 else 1


def rank() -> int:
    """The number of this process, from the launcher's environment variables; else 0."""
    number = os.environ.get("RANK", "0")
    return int(number) if processes() > 1 and number.isdecimal() else 0


def seconds() -> float:
    """Seconds without a heartbeat after which a process counts as lost."""
    try:
        return max(1.0, float(os.environ.get(LIMIT, _SECONDS)))
    except ValueError as error:
        raise EnvironmentProblem(
            f"{LIMIT}={os.environ[LIMIT]} is not a number of seconds; set it to one, such as 600",
            id="rank-seconds-invalid",
        ) from error


def start(device: str, shards: bool = False) -> None:
    """Connect with the other processes of the run, if there are any.

    Args:
        device: `auto`, `cpu` or `cuda`; of several processes on a machine each takes its own GPU.
        shards: whether models in training are sharded over ranks.

    Raises:
        EnvironmentProblem: accelerate is not installed, some processes did not connect, or two
            share a GPU.
    """
    if processes() == 1:
        return
    try:
        from accelerate import PartialState
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"a run in {processes()} processes needs accelerate; install it with "
            "`pip install 'accelerate>=1.12,<2'`, or start the run without a launcher",
            id="accelerate-missing",
        ) from error
    if device != "cpu":
        _select_gpu()
    import torch
    from torch import distributed

    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    limit = timedelta(seconds=seconds())
    try:
        backend = "cuda:nccl,cpu:gloo" if on_gpu else "gloo"
        PartialState(cpu=not on_gpu, backend=backend, timeout=limit)
        control = distributed.new_group(backend="gloo", timeout=limit)
        patient = distributed.new_group(backend="gloo", timeout=timedelta(days=30))
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise EnvironmentProblem(
            f"not all {processes()} processes of the run connected within {seconds():g} s "
            f"({reason}); start it with `accelerate launch` or `torchrun` on every machine, with "
            "the same numbers",
            id="ranks-missing",
        ) from error
    parallel.set_ranks(Ranks(rank(), processes(), control, patient, shards))
    _watch.start(_open_store(seconds()))
    signal.signal(signal.SIGTERM, _interrupt)
    if on_gpu:
        gpu = f"GPU {torch.cuda.get_device_properties(0).uuid} of {socket.gethostname()}"
        name, count = Counter(parallel.gather(gpu)).most_common(1)[0]
        if count > 1:
            raise EnvironmentProblem(
                f"{count} processes share {name}; start as many processes on a machine as it has "
                "GPUs, or give --device cpu",
                id="ranks-share-a-gpu",
            )


def finish() -> None:
    """Disconnect; all processes call this when the work is done."""
    if parallel.size() == 1:
        return
    from torch import distributed

    parallel.gather(None)
    _watch.stop()
    parallel.gather(None)  # now no process reads heartbeats
    parallel.set_ranks(Ranks())
    distributed.destroy_process_group()


def require_same_versions(compress: str) -> None:
    """Raise `EnvironmentProblem` if processes run other versions of packages, or of `compress`."""
    if parallel.size() == 1:
        return
    from importlib.metadata import version

    packages = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
    facts = {"compress": compress, "Python": ".".join(platform.python_version_tuple()[:2])}
    parallel.require_same(
        facts | {name: version(name) for name in packages},
        "install the same versions on all machines",
        EnvironmentProblem,
        "ranks-differ-in-versions",
    )


def is_first_to_report() -> bool:
    """Whether no other process has reported an error; the launcher then ends the others."""
    if processes() == 1:
        return True
    with suppress(ValueError, OSError):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it could interrupt the report
    store = _watch.store
    try:
        if store is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = _open_store(10.0)
        if store is None:
            return rank() == 0
        first: bool = store.add(_key("reported"), 1) == 1
        return first
    except (RuntimeError, ValueError, LookupError):  # rank 0, which had the store, has reported
        return rank() == 0


def _select_gpu() -> None:
    """Make one GPU visible, so that `cuda` is the same device for torch and onnxruntime."""
    number = int(os.environ.get("LOCAL_RANK", "0"))
    visible = [x for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x.strip()]
    if len(visible) > number:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number]
    elif "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number)


def _open_store(limit: float) -> TCPStore:
    """A separate connection to the launcher's store, which no other thread can block."""
    from torch.distributed import TCPStore

    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=limit),
        wait_for_workers=False,
    )


def _key(name: str) -> str:
    """A name in the launcher's store, apart from those of earlier attempts."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun may restart processes
    return f"compress/{attempt}/{name}"


def _interrupt(number: int, frame: Any) -> None:
    """Handle SIGTERM: end as by Ctrl-C, and remember that the launcher asked for it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _watch.is_ended = True
    raise EndedByLauncher


class EndedByLauncher(KeyboardInterrupt):
    """The launcher ends this process, as it does with all when one of them has ended."""


class Watch:
    """A thread that writes this process's heartbeat and checks those of the others."""

    def __init__(self) -> None:
        self.store: TCPStore | None = None
        self.report: Callable[[EnvironmentProblem], None] = lambda error: None
        self.is_ended = False  # by the launcher
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, store: TCPStore) -> None:
        """Write the first heartbeat, wait for those of all others, and start the thread."""
        self.store = store
        self._ended.clear()
        store.set(_key(f"beat-{rank()}"), "0")
        parallel.gather(None)  # all heartbeats are written
        self._thread = threading.Thread(target=self._run, args=(store,), name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, store: TCPStore) -> None:
        """Write heartbeats, at least every two seconds; end the process if another has none."""
        limit, beat = seconds(), 0
        others = [number for number in range(processes()) if number != rank()]
        last = dict.fromkeys(others, (b"", time.monotonic()))
        while not self._ended.wait(min(2.0, limit / 5)):
            beat += 1
            try:
                store.set(_key(f"beat-{rank()}"), str(beat))
                for other in others:
                    heartbeat = store.get(_key(f"beat-{other}"))
                    if heartbeat != last[other][0]:
                        last[other] = heartbeat, time.monotonic()
            except RuntimeError:
                self._end("the process that hosts the store", limit)
            for other, (_, since) in last.items():
                if time.monotonic() - since > limit:
                    self._end(f"rank {other}", limit)

    def _end(self, name: str, limit: float) -> None:
        """End this process, whose main thread would wait forever."""
        if self._ended.is_set():
            return
        self.report(parallel.rank_lost(f"{name} did not respond for {limit:g} s"))
        os._exit(EnvironmentProblem.exit_code)


_watch = Watch()


def is_ended() -> bool:
    """Whether the launcher asked this process to end."""
    return _watch.is_ended


def on_lost(report: Callable[[EnvironmentProblem], None]) -> None:
    """Set the function that reports a lost process; this process ends afterwards."""
    _watch.report = report
