"""Repair after pruning: better weights for the heads that are left.

One file per method, one line each in `RECOVERIES`; `recover` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compressor.errors import UsageError, did_you_mean
from compressor.model.sublayers import Sublayer

if TYPE_CHECKING:
    from torch import nn

    from compressor.recovery.text import Text
    from compressor.tasks import Example, Task


class Method(NamedTuple):
    """What is known of a recovery method without importing it.

    Args:
        function: `module:function`, called with a `Recovery` and the options.
        options: what can be set. `text` and `beams` reach the function as `Recovery.text`, the
            others as keywords.
        trains: it holds some of the rows out, to judge itself on them.
        help: one line for the user.
    """

    function: str
    options: tuple[str, ...]
    trains: bool
    help: str


RECOVERIES: dict[str, Method] = {
    "reconstruct": Method(
        "compressor.recovery.reconstruct:recover", (), False,
        "re-solve the projections into the residual stream by least squares; needs no labels",
    ),
    "distill": Method(
        "compressor.recovery.distill:recover",
        ("epochs", "steps", "learning_rate", "patience", "hidden", "text", "beams"), True,
        "fine-tune with the dense model as teacher",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Recovery:
    """The models and the data that a recovery method works with.

    Args:
        dense: the model before pruning; not changed.
        pruned: the model to repair; not changed.
        layers: of the dense model.
        task: the task's module.
        examples: calibration rows as `task.encode` gives them.
        device: where to compute; both models are brought there and back to the CPU.
        progress: called with (steps done, steps in all); what a step is, the method decides.
        report: called with a line now and then.
        state: file from which a stopped training goes on.
        text: more rows to train on, without labels; for `distill`.
    """

    dense: nn.Module
    pruned: nn.Module
    layers: Sequence[Sublayer]
    task: Task
    examples: Sequence[Example]
    seed: int = 0
    device: str = "cpu"
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)
    report: Callable[[str], None] = field(default=lambda line: None)
    state: Path | None = None
    text: Text | None = None


@dataclass(frozen=True)
class Recovered:
    """A repaired model, and what was done in a few words for the report.

    Parameters that no method changed are those of the pruned model, not copies of them.
    """

    model: nn.Module
    text: str


def recover(methods: Mapping[str, Mapping[str, Any]], job: Recovery) -> Recovered:
    """Repair a pruned model with some of `RECOVERIES`, one after the other.

    Args:
        methods: name -> options, in the order in which they are applied; options that are not
            given have their defaults. With no method at all the model is `job.pruned`.

    Raises:
        UsageError: there is no such method, or there are no calibration rows.
        InputError: too few rows to train on, or values that are not finite.
    """
    if not methods:
        return Recovered(job.pruned, "")
    for name in methods:
        if name not in RECOVERIES:
            raise UsageError(
                f"there is no recovery method {name!r}; there are {', '.join(RECOVERIES)}"
                f"{did_you_mean(name, RECOVERIES)}",
                id="recovery-unknown",
            )
    if not job.examples:
        raise UsageError(
            f"--recover {'+'.join(methods)} needs --calibration FILE; give one, or --recover none",
            id="calibration-missing",
        )
    from compressor.model.modes import evaluating

    done = Recovered(job.pruned, "")
    texts = []
    models = [job.dense, job.pruned]
    with evaluating(job.dense), evaluating(job.pruned):
        try:
            for model in models:
                model.to(job.device)
            names = list(methods)
            for number, name in enumerate(names):
                now = replace(job, pruned=done.model)
                if any(RECOVERIES[later].trains for later in names[number + 1 :]):
                    now = _without_held_out(now)
                module, _, function = RECOVERIES[name].function.partition(":")
                done = getattr(import_module(module), function)(now, **methods[name])
                models.append(done.model)
                texts.append(done.text)
        finally:
            for model in models:
                model.to("cpu")
    return Recovered(done.model, "; then ".join(texts))


def _without_held_out(job: Recovery) -> Recovery:
    """The job without the rows on which a later training judges itself.

    A model that was fitted to those rows would look as if there were nothing left to learn.
    """
    from compressor.training import hold_out

    learn, _ = hold_out(job.examples, job.seed)
    return replace(job, examples=learn)
