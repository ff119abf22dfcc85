"""Models in training whose weights, gradients and moments are sharded over ranks (FSDP).

Each rank holds a part of every weight; the weights of a Transformer layer are gathered where it is
computed, and given up again (Zhao et al. 2023, "PyTorch FSDP"; `torch.distributed.fsdp`). All else,
embeddings and heads, is gathered for the whole of a pass.

To gather a layer all ranks have to compute it. So where a rank has fewer batches than others it
computes a spare one, which does not count (`Batch.spare`), and what depends on a rank's own rows is
decided together (`everywhere`). Where models are not sharded, every function here does what its
name says at once.
"""

from __future__ import annotations

import copy
import ctypes
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from compressor import parallel

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import DeviceMesh
    from torch.distributed.tensor import DTensor

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def home(device: str) -> str:
    """Where whole models are while they are trained: in the host's memory, if they are sharded."""
    return "cpu" if parallel.shards() else device


def everywhere(so: bool) -> bool:
    """Whether it is so on all ranks that compute a model together."""
    return parallel.total(int(so)) == parallel.size() if parallel.shards() else so


def sharded(model: nn.Module, layers: Iterable[str], device: str) -> nn.Module:
    """A copy of a model on the device, of which this rank holds its part; its gradients are sums
    over ranks.

    Args:
        model: not changed; in the host's memory (`home`).
        layers: paths of its Transformer layers.
        device: where to compute.
    """
    if not parallel.shards():
        return copy.deepcopy(model)
    from torch.distributed import DeviceMesh, ProcessGroup, group
    from torch.distributed.fsdp import FSDPModule

    # `init_device_mesh` would choose GPUs by LOCAL_RANK, and each rank sees one alone.
    kind = device.partition(":")[0]
    if kind == "cpu":
        _give_freed_memory_back()
    mesh = DeviceMesh.from_group(cast("ProcessGroup", group.WORLD), kind)
    made = copy.deepcopy(model, {id(p): p for p in model.parameters()})  # the memo: not copied
    for path in layers:
        _shard(made.get_submodule(path), mesh)
    _shard(made, mesh)
    for module in made.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # all that gloo has
    # T5's layers hand on a bias by distances that is a view; nobody changes it in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    return made


def _give_freed_memory_back() -> None:
    """Have glibc return blocks of 256 KiB and more to the system when they are freed.

    It comes to keep blocks of up to 32 MiB otherwise, and with them most of the weights that were
    given up: a process with half of the weights then needs more memory than one with whole models.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 256 * 1024)


def _shard(module: nn.Module, mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import fully_shard

    kept = [(p, p.data) for p in module.parameters() if not parallel.is_shard(p)]
    # After a pass without gradients nothing else would give up what was gathered, and later passes
    # would compute with it, whatever the weights are by then.
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for parameter, data in kept:
        parameter.data = data  # which was brought to the device


@contextmanager
def shards_of(model: nn.Module, layers: Iterable[str], device: str) -> Iterator[nn.Module]:
    """A model to compute with: itself, or a sharded copy while its own weights are given up.

    After an error they stay away: ranks that part cannot gather them, and their run ends.
    """
    if not parallel.shards():
        yield model
        return
    made = sharded(model, layers, device)
    for parameter in model.parameters():
        parameter.data = parameter.new_empty(0)
    yield made
    _take(model, made)


def gathered(model: nn.Module, like: nn.Module) -> nn.Module:
    """A whole model with the weights of a sharded one; that itself, if it is not.

    Args:
        like: a whole model of the same structure; not changed.
    """
    from torch import nn
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return model
    empty = {id(p): nn.Parameter(p.new_empty(0), p.requires_grad) for p in like.parameters()}
    made = copy.deepcopy(like, empty)  # the memo: what stands for each
    _take(made, model)
    return made


def _take(model: nn.Module, shards: nn.Module) -> None:
    """Give a whole model the weights of its sharded copy, one at a time."""
    found = dict(shards.named_parameters())
    for name, parameter in model.named_parameters():
        parameter.data = whole(found[name].detach()).to(parameter.device)


@contextmanager
def outer_weights(model: nn.Module) -> Iterator[None]:
    """All weights outside of the Transformer layers at hand, to compute with a module of them."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        yield
        return
    model.unshard()
    try:
        yield
    finally:
        model.reshard()


@contextmanager
def noticing_lost_ranks() -> Iterator[None]:
    """What sharded models meet where another rank is gone, as what it means.

    Raises:
        EnvironmentProblem: another process is gone or does not answer.
    """
    if not parallel.shards():
        yield
        return
    from torch.distributed import DistError

    try:
        yield
    except RuntimeError as error:
        # NCCL's errors have a class; gloo's have its path in their text.
        if isinstance(error, DistError) or "gloo/transport" in str(error):
            raise parallel.rank_lost() from error
        raise


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor, on all ranks, which call this together if it is a shard."""
    return cast("DTensor", tensor).full_tensor() if parallel.is_shard(tensor) else tensor


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """What this rank holds of a whole tensor, if `like`, of its shape, is a shard."""
    if not parallel.is_shard(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    shard = cast("DTensor", like)
    moved = tensor.to(shard.device)
    # Of a copy of its own, which does not keep the whole alive.
    return distribute_tensor(moved, shard.device_mesh, shard.placements, src_data_rank=None).clone()


def bytes_held(model: nn.Module) -> int:
    """Memory of the weights that this rank holds of a model."""
    weights = model.parameters()
    held = (cast("DTensor", p).to_local() if parallel.is_shard(p) else p for p in weights)
    return sum(x.numel() * x.element_size() for x in held)
