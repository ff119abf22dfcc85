"""Timing with an injected clock, its statistics, gains over other engines, and workloads."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from compressor.runtime.text import Encoded
from compressor.steps.results import Timing
from compressor.throughput import statistics
from compressor.throughput.measure import measure
from compressor.throughput.statistics import against_dense, speedup_of, summarize
from compressor.throughput.workloads import Batch, Workload, make_workloads


class Stage:
    """A clock that stands still unless a subject runs, for its seconds times the batch number."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[str, int]] = []  # (subject, batch number)

    def clock(self) -> float:
        return self.now

    def subject(self, name: str, seconds: float):
        def run(batch: Batch) -> None:
            number = int(batch["input_ids"][0, 0])
            self.calls.append((name, number))
            self.now += seconds * (1 + number)

        return run


def workload(batches: int) -> Workload:
    """Batch number n holds the number n everywhere, in two rows of three tokens."""
    return Workload.of(
        [
            {"input_ids": np.full((2, 3), n), "attention_mask": np.ones((2, 3), int)}
            for n in range(batches)
        ]
    )


def test_models_run_all_batches_in_turns_in_rotating_order() -> None:
    stage = Stage()
    subjects = {name: stage.subject(name, 1.0) for name in "abc"}
    samples = measure(subjects, [workload(3)], warmup=4, min_runs=6, min_passes=2,
                      min_seconds=0, clock=stage.clock)  # fmt: skip
    warm, passes = stage.calls[: 3 * 4], stage.calls[3 * 4 :]
    assert [number for _, number in warm] == [n for n in (0, 1, 2, 0) for _ in range(3)]
    # One call of a second is more than need not be timed.
    turns = [passes[i : i + 4] for i in range(0, len(passes), 4)]
    assert [[number for _, number in turn] for turn in turns] == [[0, 0, 1, 2]] * 6
    names = [{name for name, _ in turn} for turn in turns]
    assert names == [{name} for name in "abcbca"]
    assert samples == {(name, 2): [1.0, 2.0, 3.0] * 2 for name in "abc"}


@pytest.mark.parametrize(
    ("batches", "seconds", "untimed"),
    [
        (6, 0.02, [0, 1]),  # 0.02 s and 0.04 s
        (9, 0.0001, [*range(9)]),
        (3, 0.001, [0, 1, 2, 0, 1, 2, 0, 1]),
    ],
)
def test_a_turn_begins_with_calls_that_are_not_timed(
    batches: int, seconds: float, untimed: list[int]
) -> None:
    """Until 0.05 s are over, or eight calls were made and every batch has run."""
    stage = Stage()
    measure({"a": stage.subject("a", seconds)}, [workload(batches)], warmup=1, min_runs=1,
            min_passes=1, min_seconds=0, clock=stage.clock)  # fmt: skip
    assert [number for _, number in stage.calls[batches:]] == [*untimed, *range(batches)]


def test_every_batch_is_seen_before_timing_however_short_the_warm_up() -> None:
    stage = Stage()
    measure(
        {"a": stage.subject("a", 1.0)},
        [workload(4)],
        warmup=1,
        min_runs=1,
        min_passes=1,
        min_seconds=0,
        clock=stage.clock,
    )
    assert stage.calls[:4] == [("a", number) for number in range(4)]
    assert len(stage.calls) == 4 + 1 + 4  # and each is timed once, after one that is not


def test_garbage_collector_is_off_while_timing_and_on_again_afterwards() -> None:
    states = []

    def run(batch: Batch) -> None:
        states.append(gc.isenabled())
        if len(states) == 4:
            raise KeyboardInterrupt

    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt):
        measure({"a": run}, [workload(1)], warmup=2, min_passes=9)
    assert states == [True, True, False, False]
    assert gc.isenabled()


def test_progress_has_a_line_per_workload() -> None:
    stage, lines = Stage(), []
    subjects = {"dense": stage.subject("dense", 0.2), "small": stage.subject("small", 0.1)}
    loads = [replace(workload(1), batch_size=size) for size in (1, 4)]
    measure(subjects, loads, min_runs=5, min_seconds=0, clock=stage.clock, progress=lines.append)
    times = "dense 200.0 ms, small 100.0 ms (medians of 5 runs)"
    assert lines == [f"batch size {size}: {times}" for size in (1, 4)]


def test_passes_go_on_until_everything_asked_for_is_reached() -> None:
    for runs, seconds, passes, expected in (
        (7, 0.0, 1, 8),  # whole passes over two batches
        (1, 20.0, 1, 4),  # the two models need 2 passes of 30 s and 3 s for 20 s each
        (1, 0.0, 5, 10),
    ):
        stage = Stage()
        subjects = {"slow": stage.subject("slow", 10.0), "fast": stage.subject("fast", 1.0)}
        samples = measure(subjects, [workload(2)], min_runs=runs, min_seconds=seconds,
                          min_passes=passes, clock=stage.clock)  # fmt: skip
        assert {len(values) for values in samples.values()} == {expected}


@pytest.fixture
def by_hand() -> list[Timing]:
    """Three passes over batches that take 2 s and 4 s; the smaller model takes 1 s and 4 s."""
    samples = {("dense", 2): [2.0, 4.0] * 3, ("half", 2): [1.0, 4.0] * 3}
    load = replace(workload(2), source_tokens=6.0, padded_source_tokens=8.0, target_tokens=5.0)
    ratios, memory = {("half", 2): 1.6}, {("half", 2): 100.0}
    return summarize(samples, [load], ratios, peak_memory_mib=memory)


def test_rates_are_rows_and_generated_tokens_by_the_time_of_a_pass(by_hand: list[Timing]) -> None:
    dense, half = by_hand
    assert (dense.variant, dense.batch_size, dense.runs) == ("dense", 2, 6)
    assert dense.sentences_per_second == pytest.approx(4 / 6)  # 2 batches of 2 in 6 s
    assert half.sentences_per_second == pytest.approx(4 / 5)
    assert dense.tokens_per_second == pytest.approx(20 / 6)
    assert half.tokens_per_second == pytest.approx(20 / 5)


def test_a_speedup_is_that_of_a_pass_and_the_reference_has_none(by_hand: list[Timing]) -> None:
    dense, half = by_hand
    assert (dense.speedup, dense.speedup_interval, dense.macs_ratio) == (None, None, None)
    assert half.speedup == pytest.approx(6 / 5)
    assert half.speedup_interval == pytest.approx((6 / 5, 6 / 5))
    assert half.macs_ratio == 1.6


def test_latencies_are_percentiles_of_all_raw_times(by_hand: list[Timing]) -> None:
    expected = np.quantile(1000 * np.array([1.0, 4.0] * 3), [0.5, 0.9, 0.99])
    found = by_hand[1].latency_ms
    assert [found[name] for name in ("p50", "p90", "p99")] == pytest.approx(expected)


def test_a_timing_has_the_tokens_and_the_memory_of_its_workload(by_hand: list[Timing]) -> None:
    dense, half = by_hand
    assert (half.source_tokens, half.padded_source_tokens, half.target_tokens) == (6.0, 8.0, 5.0)
    assert (dense.peak_memory_mib, half.peak_memory_mib) == (None, 100.0)


def test_models_that_generate_nothing_are_rated_by_source_tokens() -> None:
    load = replace(workload(1), source_tokens=7.0)
    (row,) = summarize({("dense", 2): [0.5] * 5}, [load])
    assert row.tokens_per_second == pytest.approx(2 * 7 / 0.5)


def test_rows_come_by_model_and_then_by_batch_size() -> None:
    loads = [replace(workload(1), batch_size=size) for size in (8, 1)]
    samples = {(name, size): [1.0] * 5 for size in (8, 1) for name in ("dense", "half")}
    rows = [(row.variant, row.batch_size) for row in summarize(samples, loads)]
    assert rows == [("dense", 1), ("dense", 8), ("half", 1), ("half", 8)]


def test_speedup_is_found_under_noise_drift_and_stalls() -> None:
    """Noise of 3 %, a common drift over a factor of two, and stalls in 6 % of 12 x 6 times."""
    rng = np.random.default_rng(72)
    drift = np.geomspace(1.0, 2.0, 72).reshape(12, 6) * np.linspace(1.0, 3.0, 6)
    times = []
    for factor in (1.0, 1 / 1.25):
        noise = np.exp(rng.normal(0, 0.03, (12, 6)))
        stalls = 1 + 5 * (rng.random((12, 6)) < 0.06)
        times.append(factor * drift * noise * stalls)
    dense, pruned = times
    speedup, (low, high) = speedup_of(dense, pruned)
    # Known by construction; the plain quotient of total times is far off on the same data.
    assert speedup == pytest.approx(1.25, rel=0.02)
    assert low < 1.25 < high < low + 0.1
    assert abs(dense.sum() / pruned.sum() / 1.25 - 1) > 0.02


@pytest.mark.parametrize("disturbed", ["calls", "turns"])
def test_intervals_cover_the_truth_about_as_often_as_they_say(disturbed: str) -> None:
    """Sixty pairs of equal models with noise of 5 %: 57 of the 95 % intervals are expected to."""
    covered = 0
    for seed in range(60):
        shape = (2, 10, 4 if disturbed == "calls" else 1)
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.05, shape))
        dense, same = np.broadcast_to(noise, (2, 10, 4))
        low, high = speedup_of(dense, same, resamples=300)[1]
        covered += low <= 1.0 <= high
    # Fewer than 54 have a probability below 4 %; all 60 have one of 5 %.
    assert 54 <= covered < 60


def test_many_draws_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of three draws, the last of one: the same values as all at once."""
    dense, pruned = np.exp(np.random.default_rng(1).normal(0, 0.05, (2, 6, 2)))
    whole = speedup_of(dense, pruned, resamples=100)
    monkeypatch.setattr(statistics, "_DRAWS_PER_CHUNK", 3 * dense.size)
    assert speedup_of(dense, pruned, resamples=100) == whole


def pad(rows: list[Encoded]) -> Batch:
    longest = max(map(len, rows))
    return {
        "input_ids": np.array([[*row, *[0] * (longest - len(row))] for row in rows]),
        "token_type_ids": np.array([[*r.type_ids, *[0] * (longest - len(r))] for r in rows]),
        "attention_mask": np.array([[1] * len(r) + [0] * (longest - len(r)) for r in rows]),
    }


def rows_of(lengths: list[int]) -> list[Encoded]:
    """Row n holds 100 n + 1, 100 n + 2, …, the last of them of type 1."""
    return [
        Encoded([100 * n + i + 1 for i in range(length)], [0] * (length - 1) + [1])
        for n, length in enumerate(lengths, start=1)
    ]


def test_real_and_padded_tokens_are_counted_apart() -> None:
    """16 batches of 2: rows of 2 and 6 tokens, padded to 12, then rows of 8, and so on."""
    (load,) = make_workloads(rows_of([2, 6, 4, 4]), [2], pad)
    assert len(load.batches) == 16
    assert load.source_tokens == pytest.approx((8 + 8) / 4)
    assert load.padded_source_tokens == pytest.approx((12 + 8) / 4)


def test_few_rows_are_repeated_in_order() -> None:
    (load,) = make_workloads(rows_of([3] * 5), [16], pad)
    first = [int(token) for batch in load.batches for token in batch["input_ids"][:, 0]]
    assert first == [100 * (n % 5 + 1) + 1 for n in range(64)]


@pytest.mark.parametrize(("size", "batches"), [(1, 16), (4, 8), (8, 4), (200, 4)])
def test_the_number_of_batches_follows_their_size(size: int, batches: int) -> None:
    (load,) = make_workloads(rows_of([3] * 9), [size], pad)
    assert [batch["input_ids"].shape for batch in load.batches] == [(size, 3)] * batches


def test_many_rows_are_sampled_in_order() -> None:
    rows = rows_of([3] * 500)
    first, again, other = (
        [int(token) for batch in load.batches for token in batch["input_ids"][:, 0]]
        for seed in (1, 1, 2)
        for load in make_workloads(rows, [4], pad, seed=seed)
    )
    assert len(first) == 8 * 4
    assert all(a < b for a, b in pairwise(first))
    assert first == again != other


def test_forced_lengths_cut_or_fill_every_row_before_its_last_token() -> None:
    (load,) = make_workloads(rows_of([3, 9]), [2], pad, lengths=6)
    batch = load.batches[0]
    assert batch["input_ids"].tolist() == [
        [101, 102, 101, 102, 101, 103],
        [201, 202, 203, 204, 205, 209],
    ]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1]]
    assert load.source_tokens == load.padded_source_tokens == 6


def test_gains_are_ratios_to_dense_in_the_same_and_in_the_fastest_engine():
    # Model -> seconds of a batch, at the batch sizes 1 and 4.
    seconds = {
        "dense": (0.020, 0.040), "dense-other": (0.010, 0.050), "dense-other-int8": (0.008, 0.045),
        "half": (0.012, 0.024), "half-other-int8": (0.004, 0.030),
    }  # fmt: skip
    engines = {name: "other" if "other" in name else "usual" for name in seconds}
    loads = [Workload(x, [{"input_ids": np.ones((1, 3), np.int64)}], 3.0, 3.0) for x in (1, 4)]
    samples = {(x, n): [both[n == 4]] * 6 for x, both in seconds.items() for n in (1, 4)}
    dense = [name for name in seconds if name.startswith("dense")]
    rows = against_dense(summarize(samples, loads), samples, loads, engines, dense)
    assert len(rows) == 10
    for row in rows:
        at = (1, 4).index(row.batch_size)
        own = seconds[row.variant][at]
        same = "dense-other" if engines[row.variant] == "other" else "dense"
        assert row.fastest == ("dense-other-int8", "dense")[at]
        assert row.fastest_speedup == pytest.approx(seconds[row.fastest][at] / own)
        assert row.engine_speedup == pytest.approx(seconds[same][at] / own)
        assert row.engine_speedup_interval == pytest.approx([row.engine_speedup] * 2)
