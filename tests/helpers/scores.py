"""Random scores, and timings, costs and comparisons that were never measured."""

from __future__ import annotations

import numpy as np

from compressor.model.sublayers import Scores
from compressor.steps.results import Comparison, CostTable, LayerCost, QualityCandidate, Timing

LAYERS = {"encoder_self.0": 8, "encoder_self.1": 8, "decoder_self.0": 6, "cross.0": 8}


def sample(seed: int, method: str, *, levels: int | None = None, signature: str = "") -> Scores:
    """Random scores; with `levels`, only so many different ones, so that there are ties."""
    rng = np.random.default_rng(seed)
    draw = rng.random if levels is None else (lambda n: rng.integers(0, levels, n) / 4)
    values = {name: tuple(float(v) for v in draw(n)) for name, n in LAYERS.items()}
    return Scores(values, method, signature or f"{method}|seed:{seed}", {})


def timing(speedup: float, variant: str = "trial") -> Timing:
    return Timing(
        variant=variant, batch_size=16, source_tokens=10, padded_source_tokens=12, target_tokens=0,
        runs=20, sentences_per_second=100 * speedup, tokens_per_second=1000 * speedup,
        latency_ms={"p50": 1.0, "p90": 1.0, "p99": 1.0}, speedup=speedup,
        speedup_interval=(speedup - 0.01, speedup + 0.01),
    )  # fmt: skip


def cost_table(shares: dict[str, list[float]], layers: dict[str, int]) -> CostTable:
    """Shares of the dense time saved per layer at 0, 1, 2 and 3 heads, by kind."""
    rows = [
        LayerCost(
            kind=kind, units=heads, layers=layers[kind], speedup=1 / (1 - layers[kind] * share),
            speedup_interval=(0.9, 1.1), saved_share=share,
        )
        for kind, found in shares.items()
        for heads, share in enumerate(found)
    ]  # fmt: skip
    return CostTable(batch_size=16, dense_seconds=0.5, lengths="made up", rows=rows)


def comparison(low: float, high: float, metric: str = "bleu") -> Comparison:
    """A difference in the middle of its interval."""
    middle = (low + high) / 2
    return Comparison(
        metric=metric, dense=30.0, pruned=30 + middle, difference=middle, interval=(low, high),
        p_value=0.5, resamples=1000,
    )  # fmt: skip


def judged(
    kept: int, difference: float, bound: float, position: int = 0, *, accepted: bool = True
) -> QualityCandidate:
    """A model with so many heads that was judged on rows never seen."""
    found = comparison(bound, 2 * difference - bound)
    return QualityCandidate(
        kept=kept, neurons=64, macs=0.9, position=position, comparison=found, bound=bound,
        confidence=0.975, accepted=accepted,
    )  # fmt: skip
