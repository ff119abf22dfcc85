"""What pruning cost models that were measured: where to begin with another one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tried:
    """A share of the multiply-adds, and what a model lost with it in float32.

    Args:
        macs: the share that was kept.
        metric: the name of a metric, or words for it.
        change: pruned minus dense, in points.
        interval: of the change, 95 %; None where it is a mean over several sets of rows.
        parameters: of the dense model.
        model: what it was, with its rows.
    """

    macs: float
    metric: str
    change: float
    interval: tuple[float, float] | None
    parameters: int
    model: str

    @property
    def text(self) -> str:
        """Such as `bleu -0.60 [-1.07, -0.17] on the bundled translator`."""
        bounds = "" if self.interval is None else " [{:+.2f}, {:+.2f}]".format(*self.interval)
        return f"{self.metric} {self.change:+.2f}{bounds} on {self.model}"


MINILM = 22_770_966  # parameters with the 150 classes of CLINC150; other heads are smaller


@dataclass(frozen=True)
class FirstRuns:
    """Where to begin: the runs that were measured (benchmarks/results), without and with training.

    Args:
        untrained: after `--recover reconstruct`, the default.
        distilled: after `reconstruct+distill` with much unlabeled text; None where no run shows
            that it pays.
    """

    untrained: Tried
    distilled: Tried | None = None
