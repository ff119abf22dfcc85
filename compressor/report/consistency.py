"""Whether the numbers of a report can be true together; asked of reports that are read from files.

A run writes each fact from one measurement. Where two places of a file contradict each other, it
was edited or damaged, and no rule is to be met by it. NaN contradicts nothing: it meets no rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from compressor.model.bounds import HEADS, LAYERS, NEURONS
from compressor.model.sublayers import UNITS_OF, kind_of, layer_of
from compressor.results import Comparison, Throughput, Variant, differ

_MOST = {"heads": HEADS, "neurons": NEURONS}


def require_same_layers(dense: Variant, variants: Iterable[Variant]) -> None:
    """Check that the dense model has layers, and the others the same ones.

    Raises:
        ValueError: it is not so.
    """
    if not dense.heads:
        raise ValueError(f"{dense.name!r} has no layers")
    for units, sizes in (("heads", dense.heads), ("neurons", dense.neurons)):
        for name, count in sizes.items():
            number = name.rpartition(".")[2]
            is_number = re.fullmatch(r"0|[1-9][0-9]{0,5}", number) and int(number) < LAYERS
            if UNITS_OF.get(kind_of(name)) != units or not is_number:
                raise ValueError(f"{name[:99]!r} is no layer that has {units}")
            if count > _MOST[units]:
                raise ValueError(f"{name} has {count} {units}, more than {_MOST[units]:,}")
    for variant in variants:
        if (variant.heads, variant.neurons) != (dense.heads, dense.neurons):
            raise ValueError(f"{variant.name!r} has other layers than {dense.name!r}")
        known = {layer_of(name) for name in dense.heads}
        left = {layer_of(name) for name, count in variant.counts.items() if count}
        if not known - left >= set(variant.dropped_layers):
            raise ValueError(f"{variant.name!r} has units in layers that it dropped")


def require_same_quality(dense: Variant, variants: Iterable[Variant]) -> None:
    """Check that models are compared by the metrics they have, once each, on the same rows.

    Raises:
        ValueError: it is not so.
    """
    models = {variant.name: variant for variant in (dense, *variants)}
    for model in models.values():
        rows = [found.quality.rows for found in (dense, model) if found.quality is not None]
        if len(set(rows)) > 1:
            raise ValueError(f"{model.name!r} was measured on other rows than {dense.name!r}")
        _require_compared(dense, model, model.comparisons)
        _require_compared(models.get(model.base, dense), model, model.base_comparisons)


def _require_compared(reference: Variant, model: Variant, found: list[Comparison]) -> None:
    metrics = [comparison.metric for comparison in found]
    if len(set(metrics)) < len(metrics):
        raise ValueError(f"{model.name!r} is compared twice in one metric")
    for comparison in found:
        for measured, compared in ((reference, comparison.dense), (model, comparison.pruned)):
            known = measured.quality.metrics if measured.quality is not None else {}
            if differ(known.get(comparison.metric, compared), compared):
                raise ValueError(
                    f"{comparison.metric} of {measured.name!r} is {known[comparison.metric]:g}, "
                    f"and {compared:g} where {model.name!r} is compared with it"
                )
        if comparison.discordant is not None and model.quality is not None and model.quality.rows:
            lost, won = comparison.discordant
            if differ(100 * (won - lost) / model.quality.rows, comparison.difference):
                raise ValueError(
                    f"{model.name!r} lost {lost} and won {won} of {model.quality.rows} rows, which "
                    f"is no difference of {comparison.difference:g}"
                )


def require_same_speed(dense: str, timed: Throughput) -> None:
    """Check that each model is timed once at a batch size, and its speed-up is of these times.

    Args:
        dense: name of the dense model.

    Raises:
        ValueError: it is not so.
    """
    rows = {(row.variant, row.batch_size): row for row in timed.rows}
    if len(rows) < len(timed.rows):
        raise ValueError("a model is timed twice at one batch size")
    for (name, size), row in rows.items():
        reference = rows.get((dense, size))
        if row.speedup is None or reference is None:
            continue
        ratio = row.speedup * reference.sentences_per_second
        if differ(ratio, row.sentences_per_second):
            raise ValueError(
                f"{name!r} at batch {size} has the speed-up {row.speedup:g}, but "
                f"{row.sentences_per_second:g} sentences per second where the dense model has "
                f"{reference.sentences_per_second:g}"
            )
