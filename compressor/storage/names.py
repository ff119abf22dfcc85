"""Names of engines and precisions, as artifacts, results and options have them."""

from __future__ import annotations

AUTO = "auto"  # in place of a name: the program chooses
ONNXRUNTIME = "onnxruntime"  # the engine that runs every artifact
BASE = "fp32"  # every other precision is converted from it and compared with it
PRECISIONS = (BASE, "fp16", "int8")  # of graphs
COMPUTED = (*PRECISIONS, "bf16")  # including those that an engine uses for float32 graphs
