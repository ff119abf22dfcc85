"""How models are timed: the same for all of one measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Timed:
    """How every model of one measurement runs its batches.

    Args:
        options: of `Runtime.compute`.
        target_tokens: what each row generates; 0 where none are.
        description: said after the source lengths.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    target_tokens: float = 0.0
    description: str = ""
