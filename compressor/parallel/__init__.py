"""Several processes that share the rows of one run, with the result of one process.

Every process (rank) runs the same steps. Where a model runs over rows, each rank takes its `shard`
and sums are added up over ranks (`add_up`); rank 0 alone writes, measures and decides (`on_main`).
All functions here also work with one process, so nobody asks how many there are.
`compressor.parallel.launch` connects and disconnects them.

Functions that communicate raise `EnvironmentProblem` if another process has ended or does not
respond.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from compressor.errors import CompressError, EnvironmentProblem

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

Value = TypeVar("Value")
Inputs = ParamSpec("Inputs")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Ranks:
    """The processes of a run."""

    rank: int = 0
    size: int = 1
    # For objects and tensors on the CPU; operations time out after `launch.seconds`.
    control: ProcessGroup | None = None
    patient: ProcessGroup | None = None  # without a time limit, to wait for work of rank 0 alone
    shards: bool = False  # whether models in training are sharded (`compressor.parallel.sharding`)


_ranks = Ranks()


def set_ranks(ranks: Ranks) -> None:
    """Share the work of this process with others from now on."""
    global _ranks
    _ranks = ranks


def rank() -> int:
    """Number of this process, from 0."""
    return _ranks.rank


def size() -> int:
    """The number of processes."""
    return _ranks.size


def is_main() -> bool:
    """Whether this is the process that writes and decides."""
    return _ranks.rank == 0


def shards() -> bool:
    """Whether models in training are sharded: each rank holds a part of every weight."""
    return _ranks.shards


def threads() -> int | None:
    """Threads of this rank, from the launcher's OMP_NUM_THREADS; None with one process."""
    if _ranks.size == 1:
        return None
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return max(1, int(threads)) if threads.isdecimal() else 1


def shard(examples: Sequence[Value]) -> Sequence[Value]:
    """The rows of this rank, with about as many tokens as those of any other.

    Rows are assigned by length, longest first, back and forth over the ranks; they keep their order
    within a rank.

    Args:
        examples: encoded rows of all ranks.
    """
    if _ranks.size == 1:
        return examples
    rank = _ranks.rank
    size = _ranks.size
    rows = cast("Sequence[Any]", examples)
    lengths = [len(row.source) + len(row.target) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: -lengths[i])
    mine = order[rank :: 2 * size] + order[2 * size - 1 - rank :: 2 * size]
    return [examples[i] for i in sorted(mine)]


def round_robin(items: Sequence[Value]) -> Sequence[Value]:
    """The items of this rank, which ranks take in turn."""
    return items[_ranks.rank :: _ranks.size]


def add_up(*tensors: Tensor) -> None:
    """Replace each tensor by its sum over all ranks, in place.

    Args:
        tensors: of the same shapes on all ranks, on the CPU or on the rank's GPU.
    """
    if _ranks.size == 1:
        return
    from torch.distributed import all_reduce

    with _communicating():
        for tensor in tensors:
            # The default group reduces on GPUs; on CPUs both do.
            all_reduce(tensor, group=_ranks.control if tensor.device.type == "cpu" else None)


def total(number: Number) -> Number:
    """The sum of a number over all ranks."""
    if _ranks.size == 1:
        return number
    import torch

    tensor = torch.tensor(number, dtype=torch.float64)
    add_up(tensor)
    return type(number)(tensor.item())


def add_up_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of parameters over all ranks.

    A parameter that has none on any rank keeps none; a rank without one takes part with zeros.
    Gradients of shards are left out: the backward pass has added them up.
    """
    if _ranks.size == 1:
        return
    import torch

    chosen = [p for p in parameters if p.requires_grad and not is_shard(p)]
    if not chosen:
        return
    present = [p.new_tensor([p.grad is not None], dtype=torch.float32) for p in chosen]
    whole = (torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in chosen)
    flat = torch.cat([*present, *(gradient.flatten() for gradient in whole)])
    add_up(flat)
    flags, *sums = flat.split([len(chosen), *(p.numel() for p in chosen)])
    for parameter, flag, gradient in zip(chosen, flags.tolist(), sums, strict=True):
        parameter.grad = gradient.view_as(parameter).to(parameter) if flag else None


def equalize(tensors: Iterable[Tensor]) -> None:
    """Give all ranks the values of rank 0, in place; shards stay as they are."""
    if _ranks.size == 1:
        return
    from torch.distributed import broadcast

    for tensor in tensors:
        if is_shard(tensor):
            continue
        values = tensor.detach().contiguous()
        with _communicating():
            broadcast(values, 0, group=_ranks.control if values.device.type == "cpu" else None)
        tensor.detach().copy_(values)


def is_shard(tensor: Tensor) -> bool:
    """Whether this rank holds only a part of the tensor."""
    if not _ranks.shards:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def gather(value: Value) -> list[Value]:
    """The values of all ranks, in the order of the ranks; they are pickled."""
    if _ranks.size == 1:
        return [value]
    from torch.distributed import all_gather_object

    values: list[Any] = [None] * _ranks.size
    with _communicating():
        all_gather_object(values, value, group=_ranks.control)
    return values


def agree(value: Value) -> Value:
    """The value of rank 0, on all ranks."""
    return on_main(lambda: value)


def require_same(
    facts: Mapping[str, object], advice: str, kind: type[CompressError], id: str
) -> None:
    """Check that all processes have the same facts.

    Args:
        facts: name -> value, compared as texts.
        advice: what to do about a difference.
        kind: the error to raise.
        id: of the error.

    Raises:
        CompressError: of that kind, on all ranks.
    """
    first, *others = gather({name: str(value) for name, value in facts.items()})
    for number, other in enumerate(others, 1):
        for name, value in first.items():
            if other[name] != value:
                raise kind(
                    f"rank 0 has {name} {value}, rank {number} has {other[name]}; {advice}", id=id
                )


def on_main(compute: Callable[[], Value]) -> Value:
    """Compute something on rank 0 alone, while the others wait.

    Within `compute` there is one process, so it may call functions that are shared elsewhere.

    Args:
        compute: is called on rank 0; its result is pickled.

    Returns:
        Its result, on all ranks.

    Raises:
        Exception: the error of `compute`, on all ranks.
    """
    ranks = _ranks
    if ranks.size == 1:
        return compute()
    from torch.distributed import barrier, broadcast_object_list

    with _communicating():
        barrier(group=ranks.control)  # a missing rank is noticed before rank 0 begins
    value: Value | None = None
    error: Exception | None = None
    if ranks.rank == 0:
        set_ranks(Ranks())
        try:
            value = compute()
        except Exception as raised:  # noqa: BLE001 - raised again below, on all ranks
            error = raised
        finally:
            set_ranks(ranks)
    message = [(value, error and _sendable(error))]
    with _communicating():
        broadcast_object_list(message, 0, group=ranks.patient)
    if ranks.rank > 0:
        value, error = message[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def run_on_main(function: Callable[Inputs, Value]) -> Callable[Inputs, Value]:
    """Decorate a function that rank 0 alone computes, while the others wait; see `on_main`."""

    @wraps(function)
    def run(*inputs: Inputs.args, **named: Inputs.kwargs) -> Value:
        return on_main(lambda: function(*inputs, **named))

    return run


def _sendable(error: Exception) -> Exception:
    """An error that can be pickled: itself, or one with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - another library's exception may fail in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _communicating() -> Iterator[None]:
    """Translate errors of a connection to `rank_lost`."""
    try:
        yield
    except RuntimeError as error:
        raise rank_lost() from error


def rank_lost(
    what: str = "another process of the run ended or does not respond",
) -> EnvironmentProblem:
    """The error for a lost connection to another process.

    Args:
        what: what happened, as the beginning of the message.
    """
    return EnvironmentProblem(
        f"{what}; see its output, and run the same command again to resume", id="rank-lost"
    )
