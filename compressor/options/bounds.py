"""Bounds of options, far beyond use; docs/checkpoints.md lists them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

MINIMUM_ROWS = 8  # of calibration and of test data
MOST_BEAMS = 1024
MOST_STEPS = 1000  # of pruning

BatchSize = Annotated[int, Field(ge=1, le=65_536)]  # rows
BatchTokens = Annotated[int, Field(ge=1, le=1 << 24)]
Beams = Annotated[int, Field(ge=1, le=MOST_BEAMS)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]  # of epochs, of steps of training
Resamples = Annotated[int, Field(ge=100, le=100_000)]
Rows = Annotated[int, Field(ge=MINIMUM_ROWS)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Tokens = Annotated[int, Field(ge=1, le=65_536)]  # of a row
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _as_text(value: Any) -> Any:
    """A number as text: in a file `keep: 0.5` and `floor: 1` will do."""
    return str(value) if isinstance(value, int | float) else value


# Of units, as in `1` or `cross=2,neurons=64`.
UnitsText = Annotated[str, BeforeValidator(_as_text), Field(max_length=1000)]
# One or several of a budget or a rule, as in `0.5` or `bleu=1`.
Amounts = Annotated[
    list[UnitsText], BeforeValidator(lambda value: value if isinstance(value, list) else [value])
]
