"""How fast artifacts are, side by side, and how fast they could be at most.

- `benchmark`: the whole measurement of several artifacts
- `measure`, `summarize`: interleaved timing and its statistics, for anything callable
- `limit_of`, `shape_of`: the theoretical limit of a speed-up
- `peak_memory`: of an artifact, in a fresh process
"""

from compressor.throughput.bench import Subject, benchmark
from compressor.throughput.limits import Limit, WorkSize, limit_of
from compressor.throughput.machine import Machine, measure_machine
from compressor.throughput.measure import measure
from compressor.throughput.memory import measure_memory, peak_memory
from compressor.throughput.shapes import ModelShape, shape_of
from compressor.throughput.statistics import summarize
from compressor.throughput.workloads import Workload, make_workloads

__all__ = [
    "Limit",
    "Machine",
    "ModelShape",
    "Subject",
    "WorkSize",
    "Workload",
    "benchmark",
    "limit_of",
    "make_workloads",
    "measure",
    "measure_machine",
    "measure_memory",
    "peak_memory",
    "shape_of",
    "summarize",
]
