"""How fast artifacts are, compared side by side, and how fast they could be in theory.

- `benchmark`: times several artifacts, with limits and memory
- `measure`, `summarize`: interleaved timing of any callables, and its statistics
- `limit_of`, `shape_of`: the theoretical limit of a speed-up
- `measure_memory`: the memory of running an artifact, in a fresh process
"""

from compressor.throughput.bench import benchmark
from compressor.throughput.limits import WorkSize, limit_of
from compressor.throughput.machine import measure_machine
from compressor.throughput.measure import measure
from compressor.throughput.memory import measure_memory
from compressor.throughput.plan import Subject
from compressor.throughput.shapes import shape_of
from compressor.throughput.statistics import summarize

__all__ = [
    "Subject",
    "WorkSize",
    "benchmark",
    "limit_of",
    "measure",
    "measure_machine",
    "measure_memory",
    "shape_of",
    "summarize",
]
