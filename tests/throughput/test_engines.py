"""What builds in several engines gain over dense ones, from times that are made up."""

from __future__ import annotations

import numpy as np
import pytest

from compressor.throughput.measure import Workload
from compressor.throughput.statistics import against_dense, summarize

# Model -> seconds of a batch, at the batch sizes 1 and 4.
SECONDS = {
    "dense": (0.020, 0.040),
    "dense-other": (0.010, 0.050),
    "dense-other-int8": (0.008, 0.045),
    "half": (0.012, 0.024),
    "half-other-int8": (0.004, 0.030),
}
ENGINES = {name: "other" if "other" in name else "usual" for name in SECONDS}


def test_gains_are_ratios_to_dense_in_the_same_and_in_the_fastest_engine():
    batch = {"input_ids": np.ones((1, 3), np.int64)}
    workloads = [Workload(size, [batch], 3.0, 3.0, 0.0) for size in (1, 4)]
    samples = {
        (name, size): [seconds] * 6
        for name, both in SECONDS.items()
        for size, seconds in zip((1, 4), both, strict=True)
    }
    dense = [name for name in SECONDS if name.startswith("dense")]
    rows = against_dense(summarize(samples, workloads), samples, workloads, ENGINES, dense)
    assert len(rows) == 10
    for row in rows:
        at = (1, 4).index(row.batch_size)
        own = SECONDS[row.variant][at]
        same = "dense-other" if ENGINES[row.variant] == "other" else "dense"
        assert row.fastest == ("dense-other-int8", "dense")[at]
        assert row.fastest_speedup == pytest.approx(SECONDS[row.fastest][at] / own)
        assert row.engine_speedup == pytest.approx(SECONDS[same][at] / own)
        assert row.engine_speedup_interval == pytest.approx([row.engine_speedup] * 2)
