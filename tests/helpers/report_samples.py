"""Made-up but consistent reports: translators with three variants, a bare classifier."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from compressor.report import gains
from compressor.report.rules import MaxDropRule, MinSpeedupRule, Rule, parse_rules
from compressor.report.schema import Report, Sample
from compressor.steps.results import (
    Check,
    Comparison,
    LongSources,
    Outcome,
    Quality,
    Ranking,
    Source,
    Throughput,
    Timing,
    Variant,
)
from tests.helpers.metrics import classified, compare

KINDS = ("encoder_self", "decoder_self", "cross")
HOSTILE = "<script>alert(1)</script>\"'&amp;|`*_$x$_*`](http://example.invalid)"
BATCHES = (1, 8, 32, 64)
PARTS = {f"{kind}_ffn.{layer}": 64 for kind in ("encoder", "decoder") for layer in range(6)}
# variant -> kept heads per kind (of 48 each), BLEU, chrF, interval and p of BLEU, speed-up by batch
VARIANTS = {
    "heads-75": ((32, 36, 40), 34.1378, 58.8121, (-0.2519, 0.1034), 0.4126),
    "heads-50": ((16, 26, 30), 33.9032, 58.6543, (-0.6187, 0.0081), 0.0599),
    "heads-25": ((6, 12, 18), 31.2049, 56.0127, (-3.6012, -2.4101), 0.000999),
}
SPEEDUPS = {"heads-75": (0.987, 1.021, 1.061, 1.072), "heads-50": (0.993, 1.04, 1.151, 1.163)}
SPEEDUPS["heads-25"] = (1.049, 1.112, 1.283, 1.338)
SIGNATURES = {
    "bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    "chrf": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0",
}


def _kept(counts: dict[str, int], seed: int) -> dict[str, list[int]]:
    """Random kept heads, of 8 in 6 layers, with the given count per kind.

    A kind that keeps less than a quarter of its heads loses the whole first layer.
    """
    draw = random.Random(seed)
    kept: dict[str, list[int]] = {}
    for kind, count in counts.items():
        heads = [(layer, head) for layer in range(6) for head in range(8)]
        chosen = draw.sample(heads[8:] if count < 12 else heads, count)
        for layer in range(6):
            kept[f"{kind}.{layer}"] = sorted(head for at, head in chosen if at == layer)
    return kept


def _timing(name: str, batch: int, speedup: float | None) -> Timing:
    rate = {1: 9.05, 8: 54.21, 32: 100.34, 64: 121.37}[batch] * (speedup or 1.0)
    gain = {"dense": 0.0, "heads-75": 0.13, "heads-50": 0.28, "heads-25": 0.47}[name]
    return Timing(
        variant=name, batch_size=batch, source_tokens=19.84, padded_source_tokens=24.51,
        target_tokens=24.0, runs=40, sentences_per_second=rate, tokens_per_second=24 * rate,
        latency_ms={
            name: factor * 1e3 * batch / rate
            for name, factor in (("p50", 1.0), ("p90", 1.1), ("p99", 1.23))
        },
        peak_memory_mib=412.75 + batch, speedup=speedup,
        speedup_interval=None if speedup is None else (speedup - 0.02, speedup + 0.0194),
        macs_ratio=None if speedup is None else 1 + gain + 0.001 * batch,
    )  # fmt: skip


def _comparison(metric: str, dense: float, pruned: float, **values: Any) -> Comparison:
    difference = pruned - dense
    usual = {"interval": (difference - 0.21, difference + 0.19), "resamples": 1000}
    return Comparison(
        metric=metric, dense=dense, pruned=pruned, difference=difference, **usual | values
    )


def _translator_variant(name: str, heads: dict[str, int]) -> Variant:
    counts, bleu, chrf, interval, p_value = VARIANTS[name]
    removed = 144 - sum(counts)
    return Variant(
        name=name, directory=f"out/{name}", budget=f"--keep {name.removeprefix('heads-')}%",
        kept=_kept(dict(zip(KINDS, counts, strict=True)), seed=removed), heads=heads,
        neurons=PARTS, kept_neurons=PARTS, macs_share=1 - removed / 432,
        parameters=44_121_600 - removed * 131_264,
        checkpoint_bytes=176_512_340 - removed * 525_056,
        onnx_bytes=178_330_112 - removed * 525_056, precision="fp32",
        recovery="least squares on 2,000 calibration rows",
        quality=Quality(
            metrics={"bleu": bleu, "chrf": chrf}, signatures=SIGNATURES, rows=1000,
            long_sources=LongSources(words=20, rows=213, score=2 * bleu - 34.2134),
            other_lengths=removed / 1000,
        ),
        comparisons=[
            _comparison("bleu", 34.2134, bleu, interval=interval, p_value=p_value),
            _comparison("chrf", 58.9001, chrf, p_value=0.3 if bleu > 33 else 0.000999),
        ],
        checks=[
            Check(name="pruned equals masked", largest_difference=3.1e-6, tolerance=1e-4),
            Check(name="ONNX equals PyTorch", largest_difference=1.7e-5, tolerance=1e-4,
                  detail="ragged batches of 1, 3 and 8"),
        ],
    )  # fmt: skip


def translator_report() -> Report:
    """A 6+6 layer translator pruned to three head counts, with everything measured."""
    heads = {f"{kind}.{layer}": 8 for kind in KINDS for layer in range(6)}
    draw = random.Random(7)
    scores = {name: [draw.lognormvariate(-3, 1.5) for _ in range(n)] for name, n in heads.items()}
    dense = Variant(
        name="dense", directory="out/dense", budget="all heads",
        kept={name: list(range(8)) for name in heads}, heads=heads, neurons=PARTS,
        kept_neurons=PARTS, macs_share=1, parameters=44_121_600, checkpoint_bytes=176_512_340,
        onnx_bytes=178_330_112, precision="fp32",
        quality=Quality(
            metrics={"bleu": 34.2134, "chrf": 58.9001}, signatures=SIGNATURES, rows=1000,
            long_sources=LongSources(words=20, rows=213, score=34.2134),
        ),
    )  # fmt: skip
    timings = [_timing("dense", batch, None) for batch in BATCHES]
    for name, speedups in SPEEDUPS.items():
        timings += [_timing(name, b, s) for b, s in zip(BATCHES, speedups, strict=True)]
    outcomes = [
        Outcome(rule=rule, variant=name, met=met, message=f"measured on {name}",
                verdict="passed" if met else "failed")
        for name, fast, good in (
            ("heads-75", False, True), ("heads-50", False, True), ("heads-25", True, False)
        )
        for rule, met in (("max-metric-drop bleu=0.5", good), ("min-speedup 1.1@8", fast))
    ]  # fmt: skip
    return Report(
        tool_version="0.1.0", created="2026-11-21T08:00:00+00:00",
        command="compress run -m acme/opus-en-de --keep 50%", task="translation",
        model="acme/opus-en-de", revision="0123456789abcdef0123456789abcdef01234567",
        model_type="marian", seed=17,
        calibration=Source(files=["calibration.tsv"], rows=2000, sha256="ab" * 32),
        test=Source(files=["test.en", "test.de"], rows=1000, sha256="cd" * 32),
        scoring=Ranking(
            method="taylor", signature="taylor|per:token|normalized:layer|rows:400",
            cost={"seconds": 12.345, "forward_passes": 50}, values=scores,
        ),
        dense=dense, variants=[_translator_variant(name, heads) for name in VARIANTS],
        throughput=Throughput(
            provider="CPUExecutionProvider", device="cpu", precision="fp32", threads=2,
            lengths="lengths of the test rows, 24 forced output tokens", rows=timings,
        ),
        hardware={"cpu": "Example CPU @ 2.5 GHz", "cores": "2", "memory": "16 GiB"},
        versions={"python": "3.11.9", "onnxruntime": "1.31.1", "torch": "2.13.0"},
        gate=outcomes,
    )  # fmt: skip


def classifier_report() -> Report:
    """A 4-layer classifier that lost a whole layer; no test rows, no timings, no scores."""
    heads = {f"encoder_self.{layer}": 4 for layer in range(4)}
    parts = {f"encoder_ffn.{layer}": 16 for layer in range(4)}
    base = Variant(
        name="dense", directory="runs/dense", budget="all heads",
        kept={name: [0, 1, 2, 3] for name in heads}, heads=heads, neurons=parts,
        kept_neurons=parts, macs_share=1, parameters=812_345, checkpoint_bytes=3_251_000,
        onnx_bytes=3_270_123, precision="fp32",
    )  # fmt: skip
    kept = dict(zip(heads, ([1, 3], [], [0, 1, 2], [0, 2, 3]), strict=True))
    pruned = base.model_copy(
        update={
            "name": "half", "directory": "runs/half", "budget": "--keep 8", "kept": kept,
            "macs_share": 0.8, "parameters": 746_297, "checkpoint_bytes": 2_986_808,
            "onnx_bytes": 3_004_321,
        }
    )  # fmt: skip
    return Report(
        tool_version="0.1.0", created="2026-11-21T08:00:00+00:00",
        command="compress prune -m ./local-bert", task="classification", model="./local-bert",
        revision=None, model_type="bert", seed=1, calibration=None, test=None, scoring=None,
        dense=base, variants=[pruned], throughput=None, hardware={"cpu": "Example CPU"},
        versions={"python": "3.12.1"},
    )  # fmt: skip


def accuracy_report(lost: int, won: int, rows: int) -> Report:
    """A classifier: `lost` rows only the dense model has right, `won` only the pruned one."""
    (found,) = (
        x for x in compare("classification", *classified(lost, won, rows)) if x.metric == "accuracy"
    )
    data = classifier_report().model_dump()
    for model, value in ((data["dense"], found.dense), (data["variants"][0], found.pruned)):
        model["quality"] = {"metrics": {"accuracy": value}, "signatures": {}, "rows": rows}
    data["variants"][0]["comparisons"] = [found.model_dump()]
    return Report.model_validate(data)


# variant -> neurons kept in encoder's and decoder's parts (of 64 each), share of multiply-adds
NEURONS = {
    "heads-75": ((64,) * 6, (64, 64, 64, 64, 64, 32), 0.9),
    "heads-50": ((64, 32, 32, 0, 0, 0), (64, 64, 48, 48, 32, 32), 0.521),
    "heads-25": ((0, 0, 0, 0, 0, 0), (16, 16, 16, 0, 0, 16), 0.26),
}


def mixed_report() -> Report:
    """The translator's report with neurons removed beside the heads."""
    report = translator_report()
    variants = []
    for variant in report.variants:
        encoder, decoder, share = NEURONS[variant.name]
        kept = dict(zip(PARTS, encoder + decoder, strict=True))
        changed = {"kept_neurons": kept, "macs_share": share}
        variants.append(variant.model_copy(update=changed))
    return Report.model_validate(report.model_copy(update={"variants": variants}).model_dump())


def tokens_report() -> Report:
    """A classifier of four layers as three models; two hand on fewer tokens, one of three layers.

    `half` lost heads and neurons alone, `fewer` hands on 100, 70 and 30 % of a row's tokens,
    `fewest`, which skips `encoder.1`, 80 and 20 %.
    """
    report = accuracy_report(25, 10, 1000)
    (half,) = report.variants
    neurons = dict(zip(half.neurons, (16, 8, 8, 16), strict=True))
    half = half.model_copy(update={"kept_neurons": neurons, "macs_share": 0.7})
    cuts: dict[str, dict[str, Any]] = {
        "fewer": {"handed_on": [10, 7, 3], "macs_share": 0.523},
        "fewest": {
            "handed_on": [8, 2], "macs_share": 0.2508, "dropped_layers": ["encoder.1"],
            "kept_neurons": neurons | {"encoder_ffn.1": 0}, "onnx_bytes": 2_103_400,
        },
    }  # fmt: skip
    others = [half.model_copy(update=cut | {"name": name}) for name, cut in cuts.items()]
    update = {"variants": [half, *others]}
    return Report.model_validate(report.model_copy(update=update).model_dump())


def hostile_report() -> Report:
    """The translator's report with markup in every text a user or a model can influence."""
    data = translator_report().model_dump()
    old_name, new_name = "heads-50", f"v {HOSTILE}"
    for model in (data["dense"], *data["variants"]):
        model["name"] = new_name if model["name"] == old_name else model["name"]
        model["quality"]["metrics"][HOSTILE] = 1.0
        for key in ("directory", "budget", "precision", "recovery"):
            model[key] = HOSTILE
        model["quality"]["signatures"] = dict.fromkeys(("bleu", "chrf"), HOSTILE)
        for check in model["checks"]:
            check["name"] = check["detail"] = HOSTILE
    for row in data["throughput"]["rows"]:
        row["variant"] = new_name if row["variant"] == old_name else row["variant"]
    for key in ("model", "command", "model_type", "revision", "created", "tool_version"):
        data[key] = HOSTILE
    for key in ("provider", "device", "precision", "lengths"):
        data["throughput"][key] = HOSTILE
    data["calibration"]["files"] = data["test"]["files"] = [HOSTILE]
    data["scoring"]["method"] = data["scoring"]["signature"] = HOSTILE
    data["scoring"]["cost"] = {HOSTILE: 1.0}
    data["samples"] = [{"texts": [HOSTILE], "reference": HOSTILE}] * 4
    for model in (data["dense"], *data["variants"]):
        model["samples"] = [HOSTILE] * 4
    data["hardware"] = data["versions"] = {HOSTILE: HOSTILE}
    data["notes"] = [HOSTILE]
    for outcome in data["gate"]:
        outcome["rule"] = outcome["variant"] = outcome["message"] = HOSTILE
    return Report.model_validate(data)


def rules(drops: Sequence[str] = (), speedups: Sequence[str] = (), **exact: float) -> list[Rule]:
    """Gate rules: drops in metrics, speed-ups, and limits by the names of their options."""
    given = {MaxDropRule.field(): list(drops), MinSpeedupRule.field(): list(speedups)}
    return parse_rules(given | exact)


MAKERS = [translator_report, classifier_report, hostile_report, mixed_report, tokens_report]


def lossy(name: str, base: Variant, p_value: float, **changes: object) -> Variant:
    """A precision of `base` that loses two points of BLEU against it."""
    found = Comparison(
        metric="bleu", dense=34, pruned=32, difference=-2, interval=(-3, -1),
        p_value=p_value, resamples=1000,
    )  # fmt: skip
    values = {"name": name, "base": base.name, "precision": "int8", "default": False}
    return base.model_copy(update=values | {"base_comparisons": [found]} | changes)


def int8_report(p_value: float) -> Report:
    """A report whose second variant also comes in int8, twice as fast as in float32."""
    report = translator_report()
    base = report.variants[1]
    made = lossy("heads-50-int8", base, p_value)
    rows = [
        row.model_copy(
            update={"variant": made.name, "sentences_per_second": 2 * row.sentences_per_second}
        )
        for row in gains.timings(report, base.name)
    ]  # fmt: skip
    timed = report.throughput.model_copy(update={"rows": [*report.throughput.rows, *rows]})
    variants = [*report.variants, made]
    return Report.model_validate(
        report.model_copy(update={"variants": variants, "throughput": timed}).model_dump()
    )


def with_dense_int8(report: Report) -> Report:
    """The report with the dense model in int8: 2.2 to 2.5 times as fast, a quarter as large."""
    timed = [
        row.model_copy(
            update={
                "variant": "dense-int8", "speedup": 2.3, "speedup_interval": (2.21, 2.48),
                "sentences_per_second": 2.3 * row.sentences_per_second,
            }
        )
        for row in gains.timings(report, "dense")
    ]  # fmt: skip
    (found, *_) = report.variants[0].comparisons
    worse = {"pruned": 34.1434, "difference": -0.07, "interval": (-0.284, 0.13), "p_value": 0.5}
    dense = report.dense.model_copy(
        update={
            "name": "dense-int8", "base": "dense", "precision": "int8", "default": False,
            "comparisons": [found.model_copy(update=worse)],
            "onnx_bytes": report.dense.onnx_bytes // 4,
        }
    )  # fmt: skip
    rows = [*report.throughput.rows, *timed]
    update = {"throughput": report.throughput.model_copy(update={"rows": rows})}
    return report.model_copy(update=update | {"variants": [*report.variants, dense]})


def with_samples(report: Report) -> Report:
    """The report with four rows and every model's answers to them."""
    rows = [Sample(texts=[f"text {n}"], reference=f"right {n}") for n in range(4)]
    dense, *variants = (
        model.model_copy(update={"samples": [f"{model.name} says {n}" for n in range(4)]})
        for model in (report.dense, *report.variants)
    )
    return report.model_copy(update={"samples": rows, "dense": dense, "variants": variants})


def changed(report: Report, *path: str | int, to: object) -> Report:
    """The report with the value at a place replaced."""
    data = report.model_dump()
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return Report.model_validate(data)


def with_timing(report: Report, name: str, batch: int, **changes: object) -> Report:
    """The report with one timing changed."""
    data = report.model_dump()
    for row in data["throughput"]["rows"]:
        if (row["variant"], row["batch_size"]) == (name, batch):
            row.update(changes)
    return Report.model_validate(data)
