"""The thread that uses the GPU where runs are captured as CUDA graphs.

A captured CUDA graph is launched at once, not node by node. It reads and writes the same buffers
each time, stays until the session ends, and only the thread that captured it can replay it.
Capturing fails while another thread of the process uses the GPU, and what is replayed uses memory
that other runs may be given: sessions are opened, and batches of captured sessions run, in one
thread, in turn. What else uses the GPU in this process, PyTorch for example, is not held back.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

Result = TypeVar("Result")


class _GpuThread:
    """A thread that computes what others ask it for; it starts when it is needed first."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        # Not a pool, which takes nothing more once the main thread has ended, though others go on.
        self._thread = Thread(target=self._work, name="compress-captures", daemon=True)
        self._starting = Lock()

    def compute(self, compute: Callable[[], Result]) -> Result:
        """Compute in the thread and wait for the result; in the thread itself, at once."""
        if current_thread() is self._thread:
            return compute()
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()
                atexit.register(self._end)
        future: Future[Result] = Future()
        self._asked.put((future, compute))
        try:
            return future.result()
        finally:
            future.cancel()  # where the wait was interrupted

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, compute = asked
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(compute())
                except BaseException as error:  # noqa: BLE001
                    future.set_exception(error)
            del asked, future, compute  # what they hold

    def _end(self) -> None:
        """End the thread: the GPU must not compute any more when the process ends."""
        self._asked.put(None)
        self._thread.join()


_GPU_THREAD = _GpuThread()
if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=lambda: globals().update(_GPU_THREAD=_GpuThread()))


def in_turn(compute: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in the thread that captures; what it calls stays there."""
    return _GPU_THREAD.compute(partial(compute, *arguments))
