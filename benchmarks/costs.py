"""What every stage of a run costs against the size of the model, and what that says of larger ones.

    python -m benchmarks.costs --work DIR [--case NAME] [--page]

Encoders with random weights of 5 to 500 million parameters are compressed to half of their
multiply-adds with the default method and recovery, exported in float32 and int8, each case in a
process of its own. Of every stage: CPU seconds (user and system of all threads: machines may be
shared), seconds by the clock, peak memory, bytes written. A case that is in the results is not
measured again, so a stopped series goes on; `--case` measures one alone, `--page` none.

The law: seconds of a stage are a sum, with coefficients of at least 0 by least squares on relative
errors, of a constant, of weights (read, written, hashed), of weights x tokens (products), and, of
stages that solve for sublayers, of sum n^2 (n + width) over them. Predictions for GPUs are computed
from the operations that the coefficients stand for, see `GPU`; they are not measured.

Results: benchmarks/results/costs.json, .md and .png.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks import pages, stages
from benchmarks.speed import models
from compressor.throughput.hardware import describe


@dataclass(frozen=True)
class Case:
    """A model and a number of calibration and of test rows."""

    name: str
    layers: int
    width: int
    pieces: int
    rows: int
    tokens: float = 0.0  # of a row, as measured

    @property
    def products(self) -> float:
        """Weights that every token is multiplied with."""
        return 12.0 * self.layers * self.width**2

    @property
    def weights(self) -> float:
        return self.products + self.width * self.pieces

    @property
    def solved(self) -> float:
        """Multiply-adds of linear algebra on sublayers, about: sum of n^2 (n + width)."""
        neurons = 4 * self.width
        return self.layers * (neurons**2 * (neurons + self.width) + 2.0 * self.width**3)


CASES = [
    Case("5M", 4, 256, 8_000, 64),
    Case("20M", 6, 448, 12_000, 64),
    Case("20M, 256 rows", 6, 448, 12_000, 256),
    Case("75M", 10, 704, 22_000, 64),
    Case("220M", 14, 1088, 20_000, 64),
    Case("500M", 20, 1408, 18_000, 64),
]
# Of 600 million, 1.3 and 3.3 billion parameters: the sizes of NLLB's, as encoders.
LARGER = [
    Case("600M", 24, 1408, 24_000, 1000),
    Case("1.3B", 24, 2048, 50_000, 1000),
    Case("3.3B", 38, 2624, 64_000, 1000),
]
# Stage -> the terms of its law.
TERMS = {
    "load": ("constant", "weights"),
    "dense": ("constant", "weights"),
    "precision": ("constant", "weights", "products"),
    "scores": ("products", "solved"),
    "build": ("constant", "weights", "products", "solved"),
    "answers": ("constant", "products"),
    "comparison": ("constant",),
}
# One H100 in float32 (67 TFLOPS in products, as much in float64 on its matrix units) of which 40 %
# and 20 % are reached. What is not products or solving stays on one core of the host.
GPU = {"products": 0.4 * 67e12, "solved": 0.2 * 67e12}
# Floating-point operations per weight and token, and per unit of `solved`.
OPERATIONS = {"scores": 4.0, "build": 12.0, "answers": 6.0, "precision": 4.0, "solved": 2.0}


def terms(case: Case, stage: str) -> dict[str, float]:
    """The terms of a stage's law, in millions, and millions of millions."""
    values = {
        "constant": 1.0,
        "weights": case.weights / 1e6,
        "products": case.products * case.rows * case.tokens / 1e12,
        "solved": case.solved / 1e12,
    }
    return {name: values[name] for name in TERMS[stage]}


def measure(case: Case, work: Path) -> dict[str, Any]:
    """The stages of a case, by their names in `TERMS`, and the mean length of its rows."""
    from transformers import AutoTokenizer

    directory = work / case.name.partition(",")[0]
    models.encoder(directory, layers=case.layers, width=case.width, pieces=case.pieces)
    rows = models.labelled_sentences(work / "rows.tsv")
    output = work / f"{directory.name}-{case.rows}-out"
    sums: dict[str, dict[str, float]] = {}
    for stage in stages.halve(directory, rows, case.rows, output):
        name = next((x for x in TERMS if stage.name.startswith(x)), "load")
        row = sums.setdefault(name, dict.fromkeys(asdict(stage).keys() - {"name"}, 0.0))
        for key in row:
            value = asdict(stage)[key]
            row[key] = max(row[key], value) if key == "peak_mib" else row[key] + value
    texts = [x.split("\t")[0] for x in rows.read_text("utf-8").splitlines()[1 : case.rows + 1]]
    ids = AutoTokenizer.from_pretrained(directory)(texts)["input_ids"]
    return {**asdict(case), "tokens": sum(map(len, ids)) / len(ids), "stages": sums}


def fit(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Stage -> its coefficients, in seconds per term, and the largest relative residual."""
    laws = {}
    for stage in TERMS:
        used = [(_case(row), row["stages"][stage]["cpu_seconds"]) for row in rows]
        values = np.array([list(terms(case, stage).values()) for case, _ in used])
        seconds = np.array([found for _, found in used])
        solution, _ = nnls(values / seconds[:, None], np.ones(len(used)))
        residuals = values @ solution / seconds - 1
        laws[stage] = {
            "coefficients": dict(zip(TERMS[stage], solution.tolist(), strict=True)),
            "largest_residual": float(np.abs(residuals).max()),
        }
    return laws


def _case(row: Mapping[str, Any]) -> Case:
    return Case(**{name: row[name] for name in Case.__dataclass_fields__})


def predict(case: Case, laws: Mapping[str, Any], gpus: int) -> float:
    """Seconds of a run; on one core where there are no GPUs."""
    total = 0.0
    for stage, values in ((stage, terms(case, stage)) for stage in TERMS):
        for name, value in values.items():
            seconds = laws[stage]["coefficients"][name] * value
            if gpus and name in GPU:
                operations = OPERATIONS["solved" if name == "solved" else stage]
                # The recovery solves on one process.
                shared = 1 if (stage, name) == ("build", "solved") else gpus
                seconds = min(seconds, operations * value * 1e12 / GPU[name] / shared)
            total += seconds
    return total


def peak_law(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Of the peak of a run: MiB without a model, bytes per weight, largest relative residual."""
    used = [row for row in rows if row["rows"] == CASES[0].rows]
    peaks = np.array([max(x["peak_mib"] for x in row["stages"].values()) for row in used])
    values = np.array([[1.0, _case(row).weights / 2**20] for row in used])
    solution, _ = nnls(values / peaks[:, None], np.ones(len(used)))
    residual = float(np.abs(values @ solution / peaks - 1).max())
    return float(solution[0]), float(solution[1]), residual


def page(results: Mapping[str, Any]) -> str:
    """Tables of what was measured, of the law and of what follows from it."""
    rows = results["cases"]
    laws = fit(rows)
    measured = pages.markdown_table(
        ["model", "parameters, millions", "rows", *TERMS, "whole run", "peak MiB", "written MiB"],
        "lr",
        [
            [
                row["name"], f"{_case(row).weights / 1e6:.1f}", str(row["rows"]),
                *(f"{row['stages'][stage]['cpu_seconds']:.1f}" for stage in TERMS),
                f"{sum(x['cpu_seconds'] for x in row['stages'].values()):.0f}",
                f"{max(x['peak_mib'] for x in row['stages'].values()):.0f}",
                f"{sum(x['written_mib'] for x in row['stages'].values()):.0f}",
            ]
            for row in rows
        ],
    )  # fmt: skip
    fitted = pages.markdown_table(
        ["stage", "constant, s", "s per million weights", "s per 10^12 weights x tokens",
         "s per 10^12 solved", "largest residual"],
        "lr",
        [
            [
                stage,
                *(f"{law['coefficients'][x]:.3g}" if x in law["coefficients"] else ""
                  for x in ("constant", "weights", "products", "solved")),
                f"{law['largest_residual']:.0%}",
            ]
            for stage, law in laws.items()
        ],
    )  # fmt: skip
    tokens = float(np.mean([row["tokens"] for row in rows]))
    constant, per_weight, residual = peak_law(rows)
    larger = [Case(**{**asdict(case), "tokens": tokens}) for case in LARGER]
    predicted = pages.markdown_table(
        ["parameters", "one core, hours", "one GPU, hours", "eight GPUs, hours", "peak GiB"],
        "lr",
        [
            [
                case.name,
                *(f"{predict(case, laws, gpus) / 3600:.1f}" for gpus in (0, 1, 8)),
                f"{(constant + per_weight * case.weights / 2**20) / 1024:.0f}",
            ]
            for case in larger
        ],
    )
    return "\n\n".join(
        [
            f"CPU seconds of every stage ({results['hardware']}; one thread; about {tokens:.0f} "
            f"tokens a row):\n\n{measured}",
            f"The law:\n\n{fitted}",
            f"The peak is {constant:.0f} MiB and {per_weight:.1f} bytes for each weight (largest "
            f"residual {residual:.0%}).",
            f"Computed from it, not measured, for {LARGER[0].rows:,} rows:\n\n{predicted}\n",
        ]
    )


def draw(results: Mapping[str, Any], path: Path) -> None:
    """CPU seconds, peak memory and bytes written of every stage against parameters."""
    rows = [row for row in results["cases"] if row["rows"] == CASES[0].rows]
    sizes = [_case(row).weights / 1e6 for row in rows]
    quantities = {"cpu_seconds": "CPU seconds", "peak_mib": "peak, MiB"}
    quantities |= {"written_mib": "written, MiB"}
    with pages.drawing(path, 12, 3.6, ncols=3) as (_, axes):
        for axis, (key, label) in zip(axes[0], quantities.items(), strict=True):
            for stage in TERMS:
                values = [row["stages"][stage][key] for row in rows]
                if max(values) > 0.1:
                    axis.plot(sizes, values, "o-", ms=4, label=stage)
            axis.set(xscale="log", yscale="log", xlabel="million parameters", ylabel=label)
        axes[0][0].legend(fontsize=7)


def main() -> None:
    parser = pages.arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--case", choices=[case.name for case in CASES], help="this one alone")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    path = pages.RESULTS / "costs.json"
    results = pages.read_json(path, {"hardware": describe().get("cpu", ""), "cases": []})
    done = {row["name"] for row in results["cases"]}
    for case in CASES:
        if not args.page and case.name not in done and args.case in (None, case.name):
            results["cases"].append(measure(case, args.work))
            pages.write_json(path, results)
    order = [case.name for case in CASES]
    results["cases"].sort(key=lambda row: order.index(row["name"]))
    pages.write_json(path, results)
    draw(results, pages.RESULTS / "costs.png")
    pages.publish("costs", page(results))


if __name__ == "__main__":
    main()
