"""How fast artifacts are, compared side by side, and how fast they could be in theory.

- `benchmark`: times several artifacts, with limits and memory
- `measure`, `summarize`: interleaved timing of any callables, and its statistics
- `limit_of`, `shape_of`: the theoretical limit of a speed-up
- `measure_memory`: the memory of running an artifact, in a fresh process
"""

from compressor.throughput.bench import benchmark
from compressor.throughput.limits import Limit, WorkSize, limit_of
from compressor.throughput.machine import Machine, measure_machine
from compressor.throughput.measure import measure
from compressor.throughput.memory import measure_memory
from compressor.throughput.plan import Subject
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
    "shape_of",
    "summarize",
]
