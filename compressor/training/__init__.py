"""The training loop that learned masks and distillation share.

- `train`: the loop; what is trained is a `Problem`, how long and how fast a `Schedule` says
- `Data`: the rows to train on; `hold_out` sets some apart to validate on
"""

from compressor.training.data import HELD_OUT, Data, StoredRows, hold_out, require_enough
from compressor.training.loop import Problem, Schedule, Trained, train

__all__ = [
    "HELD_OUT", "Data", "Problem", "Schedule", "StoredRows", "Trained", "hold_out",
    "require_enough", "train",
]  # fmt: skip
