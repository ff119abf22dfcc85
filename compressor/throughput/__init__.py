"""Throughput of artifacts, compared side by side, and their multiply-adds.

- `benchmark`: times several artifacts, and measures memory
- `measure`, `summarize`: timing of any callables in turns, and its statistics
- `ratio_of_multiply_adds`, `shape_of`: multiply-adds of the dense model over the pruned one's
- `measure_memory`: the memory of running an artifact, in a fresh process
"""

from compressor.throughput.bench import Subject, benchmark
from compressor.throughput.measure import measure
from compressor.throughput.memory import measure_memory
from compressor.throughput.multiply_adds import WorkSize, ratio_of_multiply_adds, shape_of
from compressor.throughput.statistics import summarize

__all__ = [
    "Subject",
    "WorkSize",
    "benchmark",
    "measure",
    "measure_memory",
    "ratio_of_multiply_adds",
    "shape_of",
    "summarize",
]
