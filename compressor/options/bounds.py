"""Bounds of options, far beyond use; docs/checkpoints.md lists them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MINIMUM_ROWS = 8  # of calibration and of test data
MOST_BATCH = 65_536  # rows
MOST_BATCH_TOKENS = 1 << 24
MOST_BEAMS = 1024
MOST_CHARACTERS = 1000  # of a budget or a rule
MOST_CHUNK_LINES = 1 << 20
MOST_COUNT = 1_000_000_000  # of epochs, of steps of training
MOST_RESAMPLES = 100_000
MOST_SECONDS = 3600
MOST_STEPS = 1000  # of pruning
MOST_THREADS = 1024
MOST_TOKENS = 65_536  # of a row

BatchSize = Annotated[int, Field(ge=1, le=MOST_BATCH)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
