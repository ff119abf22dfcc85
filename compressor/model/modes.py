"""Working with a model from outside: modes and hooks that end with a context, and copies."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.utils import logging as hub_logging

from compressor.model.modeling_kept import TENTHS
from compressor.model.modeling_selection import SelectsTokens
from compressor.model.modeling_tokens import ReadsOneToken

Model = TypeVar("Model", bound=nn.Module)


class quiet_transformers(warnings.catch_warnings):
    """Silence the messages of transformers; what matters is checked and raised here."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        self.verbosity = hub_logging.get_verbosity()
        hub_logging.set_verbosity_error()
        hub_logging.disable_progress_bar()

    def __exit__(self, *error: Any) -> None:
        hub_logging.set_verbosity(self.verbosity)
        super().__exit__(*error)


def shared_copy(model: Model, own: Iterable[nn.Parameter] = ()) -> Model:
    """A copy of a model's modules and configuration that shares its weights, but for `own` ones."""
    copied = {id(parameter) for parameter in own}
    tensors = (*model.parameters(), *model.buffers())
    # `deepcopy` takes what its memo holds for copied already.
    return copy.deepcopy(model, {id(x): x for x in tensors if id(x) not in copied})


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within the context."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Let no parameter of a model have a gradient within the context."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


@contextmanager
def fixed_outputs(model: nn.Module, outputs: Mapping[str, Any]) -> Iterator[None]:
    """Let modules return given outputs instead of computing, within the context.

    Args:
        model: the model.
        outputs: path of a module -> what it returns.
    """
    changed: list[tuple[nn.Module, Any]] = []
    try:
        for path, output in outputs.items():
            module = model.get_submodule(path)
            changed.append((module, vars(module).get("forward")))
            module.forward = lambda *args, output=output, **kwargs: output
        yield
    finally:
        for module, forward in changed:
            del module.forward
            if forward is not None:  # libraries that offload weights set a forward of their own
                module.forward = forward


@contextmanager
def computing_all_tokens(model: nn.Module) -> Iterator[None]:
    """Let the last layer of an encoder compute all tokens within the context."""
    layers = [x for x in model.modules() if isinstance(x, ReadsOneToken) and not x.computes_all]
    try:
        for layer in layers:
            layer.computes_all = True
        yield
    finally:
        for layer in layers:
            layer.computes_all = False


def tokens_of(mask: Tensor, model: nn.Module, layer_path: str) -> Tensor:
    """Find the real positions of what a layer projects and hands on, from those of the input.

    Args:
        mask: [batch, tokens] bool.
        model: with the layer; where that hides tokens, of the same rows as its latest run.
        layer_path: of a Transformer layer of the model.

    Returns:
        `mask`, or [batch, 1] bool where the layer computes one token alone, or [batch, kept] bool
        where it keeps some.
    """
    layer = model.get_submodule(layer_path)
    if isinstance(layer, ReadsOneToken) and not layer.computes_all:
        return mask.any(1, keepdim=True)
    if not isinstance(layer, SelectsTokens):
        return mask
    if layer.masks:
        assert layer.latest is not None, "hidden tokens are known after a run"
        return layer.latest.real.to(mask.device)
    lengths = mask.sum(1, keepdim=True)
    slots = torch.arange(max(1, -(-mask.shape[1] * layer.hands_on // TENTHS)), device=mask.device)
    return (slots * TENTHS < (lengths * layer.hands_on).clamp_min(1)) & (lengths > 0)


@contextmanager
def skip_mask_inspection(device: str) -> Iterator[None]:
    """Keep transformers from inspecting masks on a GPU, which the host would wait for.

    Args:
        device: of the model; on the CPU nothing changes.
    """
    if not device.startswith("cuda"):
        yield
        return
    from transformers import masking_utils

    def is_needless(ask: Any, padding_mask: Tensor | None, *args: Any, **kwargs: Any) -> bool:
        return padding_mask is None and ask(padding_mask, *args, **kwargs)

    names = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
    asks = {name: getattr(masking_utils, name) for name in names if hasattr(masking_utils, name)}
    try:
        for name, ask in asks.items():
            setattr(masking_utils, name, partial(is_needless, ask))
        yield
    finally:
        for name, ask in asks.items():
            setattr(masking_utils, name, ask)


@contextmanager
def hooks(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end of the context."""
    with ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield


@contextmanager
def record_outputs(model: nn.Module, paths: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Record the outputs of modules within the context.

    Args:
        model: the model.
        paths: of its modules.

    Yields:
        Path -> the latest output, in the order in which the modules run.
    """
    outputs: dict[str, Any] = {}

    def keep(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        outputs[path] = output

    with hooks(
        model.get_submodule(path).register_forward_hook(partial(keep, path)) for path in paths
    ):
        yield outputs


@contextmanager
def record_inputs(module: nn.Module | None) -> Iterator[list[Tensor]]:
    """Record the inputs of a module within the context.

    Args:
        module: None records nothing.

    Yields:
        The first argument of each of its runs.
    """
    inputs: list[Tensor] = []
    watched = [] if module is None else [module]
    with hooks(
        x.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        for x in watched
    ):
        yield inputs


def is_normalization(module: nn.Module) -> bool:
    """Whether a module normalizes layers; libraries have classes of their own without a mean."""
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith("LayerNorm")


def add_span_logits(model: nn.Module) -> None:
    """Add `logits` [batch, tokens, 2], of starts and of ends of answers, to a reader's output."""
    model.register_forward_hook(_with_logits)


def _with_logits(model: nn.Module, inputs: Any, output: Any) -> Any:
    output["logits"] = torch.stack([output.start_logits, output.end_logits], -1)
    return output
