"""The whole measurement on tiny artifacts; no time is looked at."""

from __future__ import annotations

import dataclasses
import shutil
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from compressor.errors import EnvironmentProblem, UsageError
from compressor.tasks import TASKS, Rows
from compressor.throughput import Subject, benchmark, measure_memory
from compressor.throughput.measure import Workload
from compressor.throughput.statistics import speedup_of
from tests.helpers import runtime_artifacts
from tests.helpers.errors import raises
from tests.helpers.tiny import tiny_model

pytestmark = pytest.mark.slow

SENTENCES = ["w3 w4 w5", "w6", "w3 w3 w7 w4 w6", "w5 w5"]  # and an end: 4, 2, 6 and 3 tokens


def rows(task: str) -> Rows:
    return Rows(task, SENTENCES, None, ["LABEL_0"] * 4, ["made up"], "0")


@pytest.fixture(scope="module")
def classifiers() -> list[Subject]:
    """The same artifact with four heads a layer and, as it is said, with two."""
    directory = runtime_artifacts.classifier("bert").directory
    return [
        Subject(name, directory, {f"encoder_self.{layer}": heads for layer in range(3)})
        for name, heads in (("dense", 4), ("half", 2))
    ]


@pytest.mark.usefixtures("fresh_exports")  # which measure memory, too
def test_classifiers_are_measured_with_multiply_adds_and_memory(classifiers) -> None:
    result = benchmark(
        classifiers, rows=rows("classification"), config=tiny_model("bert").config.to_dict(),
        batch_sizes=[4], threads=1, seconds=0.001,
    )  # fmt: skip
    made = (result.provider, result.device, result.precision, result.threads, result.lengths)
    assert made == ("CPUExecutionProvider", "cpu", "fp32", 1, "source lengths from the data")
    dense, half = result.rows
    assert [(x.variant, x.batch_size) for x in result.rows] == [("dense", 4), ("half", 4)]
    assert (half.source_tokens, half.padded_source_tokens) == (3.75, 6.0)

    def macs(heads: int) -> int:
        """Four rows of six tokens through 3 layers of width 32 with heads of 8 and 48 neurons."""
        attention = 4 * 4 * 6 * 32 * 8 * heads + 2 * 4 * 6 * 6 * 8 * heads
        # The last layer: keys and values of all tokens, the rest of the first of each row.
        last = (2 * 6 + 2) * 4 * 32 * 8 * heads + 2 * 4 * 6 * 8 * heads + 2 * 4 * 32 * 48
        return 2 * (attention + 2 * 4 * 6 * 32 * 48) + last + 4 * (32 * 32 + 32 * 5)

    assert half.macs_ratio == pytest.approx(macs(4) / macs(2))
    assert dense.speedup is dense.macs_ratio is None
    assert all(row.peak_memory_mib and row.peak_memory_mib > 10 for row in result.rows)


def test_the_seed_draws_the_interval_too(classifiers, monkeypatch) -> None:
    """Times that are made up: four batches of one row, and five passes."""
    noise = np.exp(np.random.default_rng(0).normal(0, 0.1, (2, 5, 4)))
    load = Workload(1, [{"input_ids": np.ones((1, 3), np.int64)}] * 4, 3.0, 3.0)
    samples = {
        (name, 1): x.ravel().tolist() for name, x in zip(("dense", "half"), noise, strict=True)
    }
    monkeypatch.setattr("compressor.throughput.bench.make_workloads", lambda *_, **__: [load])
    monkeypatch.setattr("compressor.throughput.bench.measure", lambda *_, **__: samples)
    settings = {"rows": rows("classification"), "batch_sizes": [1], "memory": False, "threads": 1}
    for seed in (0, 5):
        _, half = benchmark(classifiers, seed=seed, **settings).rows
        expected = speedup_of(*noise, seed=seed)
        assert (half.speedup, half.speedup_interval) == expected


def test_translators_do_equal_work() -> None:
    """By default as much as the reference model, by PyTorch; or a length that is asked for."""
    made = runtime_artifacts.translator()
    subjects = [Subject(name, made.directory, {}) for name in ("dense", "other")]
    settings = {"rows": rows("translation"), "batch_sizes": [2], "seconds": 0.001}
    settings |= {"memory": False, "threads": 1}
    result = benchmark(subjects, **settings)
    lengths = []
    for text in SENTENCES:
        inputs = made.tokenizer(text, return_tensors="pt")
        lengths.append(len(made.model.generate(**inputs, num_beams=1, do_sample=False)[0]) - 1)
    expected = ceil(np.mean(lengths))
    assert len(set(lengths)) > 1
    assert result.lengths == (
        f"source lengths from the data; {expected} generated tokens for every row, the mean of the "
        "reference model's own translations"
    )
    assert [row.target_tokens for row in result.rows] == [expected] * 2
    assert result.rows[1].macs_ratio is None  # without a configuration
    assert result.rows[1].peak_memory_mib is None
    result = benchmark(subjects, lengths=3, target_length=9, **settings)
    assert result.lengths == "3 source tokens; 9 generated tokens for every row"
    assert [(x.source_tokens, x.target_tokens) for x in result.rows] == [(3.0, 9.0)] * 2


def test_a_translators_encoder_is_timed_by_itself() -> None:
    """Of the reference, with its multiply-adds, where these are counted."""
    made = runtime_artifacts.translator()
    config = made.model.config
    kinds = {"encoder_self": config.encoder_layers}
    kinds |= dict.fromkeys(("decoder_self", "cross"), config.decoder_layers)
    counts = {f"{kind}.{i}": 2 for kind, count in kinds.items() for i in range(count)}
    subjects = [Subject(name, made.directory, counts) for name in ("dense", "other")]
    settings = {"rows": rows("translation"), "batch_sizes": [1, 2], "seconds": 0.001}
    settings |= {"memory": False, "threads": 1, "config": config.to_dict()}
    result = benchmark(subjects, target_length=12, **settings)
    for row in result.rows:
        if row.variant == "other":
            assert (row.encoder_time, row.encoder_macs) == (None, None)
        else:
            assert row.encoder_time > 0
            assert 0 < row.encoder_macs < 1


def test_settings_that_contradict_each_other_are_errors(classifiers, tmp_path: Path) -> None:
    one, _ = classifiers
    said = Subject("said", runtime_artifacts.translator().directory, {})
    copied = Path(shutil.copytree(one.directory, tmp_path / "int8"))
    graphs = copied / "onnx" / "graphs.json"
    graphs.write_text(graphs.read_text("utf-8").replace('"fp32"', '"int8"'), "utf-8")
    runtime_artifacts.write_hashes(copied)
    other = dataclasses.replace(one, name="int8", directory=copied)
    for error, subjects, settings, id in (
        (UsageError, [one, one], {}, "names-not-distinct"),
        (UsageError, [one], {"lengths": 1_000_001}, "length-too-large"),
        (UsageError, [one], {"target_length": 5}, "target-length-without-generation"),
        (UsageError, [said], {"target_length": 41}, "length-beyond-positions"),
        (EnvironmentProblem, [one, other], {}, "precisions-or-providers-differ"),
    ):
        task = "translation" if said in subjects else "classification"
        with raises(error, id):
            benchmark(subjects, rows=rows(task), batch_sizes=[1], memory=False, **settings)


def test_peak_memory_is_that_of_the_run(classifiers, tmp_path: Path) -> None:
    directory, runtime = classifiers[0].directory, TASKS["classification"].runtime
    ballast = np.ones(2**26)  # 512 MiB here must not show there
    names = ("input_ids", "token_type_ids", "attention_mask")
    batches = [{name: np.ones((count, 40), np.int64) for name in names} for count in (2, 2**13)]
    small, large = (measure_memory(directory, runtime, [batch], threads=1) for batch in batches)
    assert ballast[-1] == 1
    assert small < 384
    # Scores of one head alone have 2^13 x 40 x 40 values of 4 bytes: 50 MiB.
    assert large > small + 50
    with raises(EnvironmentProblem, "memory-measurement-failed") as caught:
        measure_memory(tmp_path / "nowhere", runtime, batches[:1])
    assert "graphs.json" in str(caught.value)
