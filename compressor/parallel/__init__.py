"""Several processes that share the rows of one run, with the result of one process.

Every process (rank) goes through the same steps. Where a model runs over rows, each rank takes its
`shard` and sums are added up over ranks (`add_up`); what is written, measured or decided happens on
rank 0 (`on_main`), which tells the others. With one process every function here does what its name
says at once, so nobody asks how many there are. `compressor.parallel.launch` starts and ends it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from compressor.errors import EnvironmentProblem

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

Value = TypeVar("Value")


class EncodedRow(Protocol):
    """A row as token ids."""

    @property
    def source(self) -> tuple[int, ...]: ...
    @property
    def target(self) -> tuple[Any, ...]: ...


Row = TypeVar("Row", bound=EncodedRow)
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Ranks:
    """The processes of a run.

    Args:
        control: for objects and tensors on the CPU; an operation that takes longer than the limit
            (`launch.seconds`) fails.
        patient: as `control`, without a limit, to wait for what rank 0 does alone.
        shards: models in training are spread over ranks (`compressor.parallel.sharding`).
    """

    rank: int = 0
    size: int = 1
    control: ProcessGroup | None = None
    patient: ProcessGroup | None = None
    shards: bool = False


_ranks = Ranks()


def use(ranks: Ranks) -> None:
    """Share the work of this process with others from now on."""
    global _ranks
    _ranks = ranks


def rank() -> int:
    """Number of this process, from 0."""
    return _ranks.rank


def size() -> int:
    """How many processes there are."""
    return _ranks.size


def is_main() -> bool:
    """Whether this is the process that writes and decides."""
    return _ranks.rank == 0


def shards() -> bool:
    """Whether models in training are spread over ranks, each holding a part of every weight."""
    return _ranks.shards


def threads() -> int | None:
    """Threads of this rank's share of the cores, as the launcher says; None with one process."""
    given = os.environ.get("OMP_NUM_THREADS", "1")
    return None if _ranks.size == 1 else int(given) if given.isdecimal() and int(given) else 1


def shard(examples: Sequence[Row]) -> Sequence[Row]:
    """The rows of this rank, about as many tokens as any other's.

    Rows are dealt by length, longest first and back and forth, and keep their order within a rank.
    """
    if _ranks.size == 1:
        return examples
    rank, size = _ranks.rank, _ranks.size
    order = sorted(
        range(len(examples)), key=lambda i: -len(examples[i].source) - len(examples[i].target)
    )
    mine = order[rank :: 2 * size] + order[2 * size - 1 - rank :: 2 * size]
    return [examples[i] for i in sorted(mine)]


def dealt(items: Sequence[Value]) -> Sequence[Value]:
    """The items that this rank works on, one after the other to each rank."""
    return items[_ranks.rank :: _ranks.size]


def add_up(*tensors: Tensor) -> None:
    """Replace each tensor by its sum over all ranks; all have tensors of the same shapes."""
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

    found = torch.tensor(number, dtype=torch.float64)
    add_up(found)
    return type(number)(found.item())


def add_up_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up gradients over all ranks; a parameter without one on any rank stays without.

    A rank that had no row in a step takes part with zeros. The gradients of sharded parameters were
    added up in the backward pass (`compressor.parallel.sharding`).
    """
    if _ranks.size == 1:
        return
    import torch

    chosen = [p for p in parameters if p.requires_grad and not is_shard(p)]
    if not chosen:
        return
    present = [p.new_tensor([p.grad is not None], dtype=torch.float32) for p in chosen]
    whole = (torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in chosen)
    parts = [gradient.flatten() for gradient in whole]
    flat = torch.cat([*present, *parts])
    add_up(flat)
    flags, *sums = flat.split([len(chosen), *(p.numel() for p in chosen)])
    for parameter, flag, found in zip(chosen, flags.tolist(), sums, strict=True):
        parameter.grad = found.view_as(parameter).to(parameter) if flag else None


def equalize(tensors: Iterable[Tensor]) -> None:
    """Give all ranks the values of rank 0, in place; of shards each rank has its own."""
    if _ranks.size == 1:
        return
    from torch.distributed import broadcast

    for tensor in tensors:
        if is_shard(tensor):
            continue
        data = tensor.detach()
        held = data.contiguous()
        with _communicating():
            broadcast(held, 0, group=_ranks.control if data.device.type == "cpu" else None)
        if held is not data:
            data.copy_(held)


def is_shard(tensor: Tensor) -> bool:
    """Whether this rank holds a part of the tensor alone."""
    if not _ranks.shards:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def gather(value: Value) -> list[Value]:
    """The values of all ranks, in the order of the ranks."""
    if _ranks.size == 1:
        return [value]
    from torch.distributed import all_gather_object

    found: list[Any] = [None] * _ranks.size
    with _communicating():
        all_gather_object(found, value, group=_ranks.control)
    return found


def agree(value: Value) -> Value:
    """What rank 0 has."""
    return on_main(lambda: value)


def on_main(compute: Callable[[], Value]) -> Value:
    """What rank 0 computes, while the others wait; an error is raised on all ranks.

    Within `compute` there is one process, so that it may call what is shared elsewhere.
    """
    if _ranks.size == 1:
        return compute()
    from torch.distributed import barrier, broadcast_object_list

    with _communicating():
        barrier(group=_ranks.control)  # a rank that does not come is noticed before rank 0 begins
    value: Value | None = None
    error: Exception | None = None
    if is_main():
        try:
            with _alone():
                value = compute()
        except Exception as raised:  # noqa: BLE001 - raised again below, on all ranks
            error = raised
    message = [(value, error and _sendable(error))]
    with _communicating():
        broadcast_object_list(message, 0, group=_ranks.patient)
    if not is_main():
        value, error = message[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


@contextmanager
def _communicating() -> Iterator[None]:
    """Errors of a connection as what they mean.

    Raises:
        EnvironmentProblem: another process is gone or does not answer.
    """
    try:
        yield
    except RuntimeError as error:
        raise rank_lost() from error


def rank_lost() -> EnvironmentProblem:
    """The error of a connection to another process."""
    return EnvironmentProblem(
        "another process of the run ended or does not answer; see its output, and give the "
        "same command to go on from what is saved",
        id="rank-lost",
    )


@contextmanager
def _alone() -> Iterator[None]:
    """One process while the context lasts."""
    ranks = _ranks
    use(Ranks())
    try:
        yield
    finally:
        use(ranks)


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever an exception of another library does
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
