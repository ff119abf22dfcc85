"""Models in training whose weights, gradients and moments are sharded over ranks (FSDP).

Each rank holds a part of every weight; the weights of a Transformer layer are gathered when it is
computed, and freed again (Zhao et al. 2023, "PyTorch FSDP"). All others, embeddings and heads, stay
gathered for a whole pass.

All ranks must compute a layer together. So a rank with fewer batches than others computes spare
ones (`Batch.spare`), and decisions that depend on a rank's own rows are made together
(`on_all_ranks`). All functions also work with models that are not sharded.
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


def on_all_ranks(condition: bool) -> bool:
    """Whether a condition holds on all ranks that compute a model together."""
    return parallel.total(int(condition)) == parallel.size() if parallel.shards() else condition


def sharded(model: nn.Module, layers: Iterable[str], device: str) -> nn.Module:
    """A copy of a model on the device, of which this rank holds its part.

    Gradients of its parameters are sums over ranks. Without sharding it is a plain copy.

    Args:
        model: on the CPU; not changed.
        layers: paths of its Transformer layers, which are gathered one by one.
        device: where to compute.
    """
    if not parallel.shards():
        return copy.deepcopy(model)
    from torch.distributed import DeviceMesh, ProcessGroup, group
    from torch.distributed.fsdp import FSDPModule

    # `init_device_mesh` would choose GPUs by LOCAL_RANK, but only one is visible to each rank.
    kind = device.partition(":")[0]
    if kind == "cpu" and sys.platform == "linux":
        # M_MMAP_THRESHOLD of glibc, which would else keep most of the freed weights.
        ctypes.CDLL(None).mallopt(-3, 256 * 1024)
    mesh = DeviceMesh.from_group(cast("ProcessGroup", group.WORLD), kind)
    shards = copy.deepcopy(model, {id(p): p for p in model.parameters()})  # parameters: not copied
    for path in layers:
        _shard(shards.get_submodule(path), mesh)
    _shard(shards, mesh)
    for module in shards.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    # T5's layers return a position bias that is a view, and is never changed in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    return shards


def _shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the parameters of one module that are not sharded yet."""
    from torch.distributed.fsdp import fully_shard

    kept = [(p, p.data) for p in module.parameters() if not parallel.is_shard(p)]
    # Without resharding, a pass without gradients would keep the gathered weights, and later passes
    # would compute with outdated ones.
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for parameter, data in kept:
        parameter.data = data  # `fully_shard` has moved it to the device


@contextmanager
def shards_of(model: nn.Module, layers: Iterable[str], device: str) -> Iterator[nn.Module]:
    """Within the context, a model to compute with: itself, or a sharded copy.

    While the copy exists the model's own weights are freed. After an error they stay so: ranks that
    have ended cannot gather them, and the run ends.

    Args:
        model: on the CPU if it is to be sharded.
        layers: paths of its Transformer layers.
        device: where to compute.
    """
    if not parallel.shards():
        yield model
        return
    shards = sharded(model, layers, device)
    for parameter in model.parameters():
        parameter.data = parameter.new_empty(0)
    yield shards
    _load(model, shards)


def gathered(model: nn.Module, like: nn.Module) -> nn.Module:
    """A whole model with the weights of a sharded one; itself if it is not sharded.

    Args:
        model: sharded or not.
        like: a whole model of the same structure; not changed.
    """
    from torch import nn
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return model
    empty = {id(p): nn.Parameter(p.new_empty(0), p.requires_grad) for p in like.parameters()}
    whole_model = copy.deepcopy(like, empty)  # with `empty` for its parameters
    _load(whole_model, model)
    return whole_model


def _load(model: nn.Module, shards: nn.Module) -> None:
    """Give a model's parameters the values of a sharded model's."""
    parameters = dict(shards.named_parameters())
    for name, parameter in model.named_parameters():
        parameter.data = whole(parameters[name].detach()).to(parameter.device)


@contextmanager
def outer_weights(model: nn.Module) -> Iterator[None]:
    """Gather all weights outside of the Transformer layers within the context."""
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
def translate_rank_errors() -> Iterator[None]:
    """Translate the errors of sharded models to `rank_lost` when another process has ended."""
    if not parallel.shards():
        yield
        return
    from torch.distributed import DistError

    try:
        yield
    except RuntimeError as error:
        # NCCL's errors have a class; gloo's have the path of its source in their text.
        if isinstance(error, DistError) or "gloo/transport" in str(error):
            raise parallel.rank_lost() from error
        raise


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor; all ranks call this together if it is a shard."""
    return cast("DTensor", tensor).full_tensor() if parallel.is_shard(tensor) else tensor


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor if `like`, of the same shape, is a shard."""
    if not parallel.is_shard(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    shard = cast("DTensor", like)
    moved = tensor.to(shard.device)
    # Cloned, so that it does not keep the whole tensor alive.
    return distribute_tensor(moved, shard.device_mesh, shard.placements, src_data_rank=None).clone()


def local(tensor: Tensor) -> Tensor:
    """The values of a tensor that this rank holds."""
    return cast("DTensor", tensor).to_local() if parallel.is_shard(tensor) else tensor


def local_bytes(model: nn.Module) -> int:
    """The bytes of a model's parameters on this rank."""
    return sum(x.numel() * x.element_size() for x in map(local, model.parameters()))
