"""From the options of a gate to its rules."""

from __future__ import annotations

from compressor.report.rules import Rule, parse_rules
from compressor.request.sections import Gate


def gate_rules(gate: Gate) -> list[Rule]:
    """The rules that a recipe or a command line asks for.

    Raises:
        UsageError: one has another form, or two limit the same number.
    """
    return parse_rules(
        gate.max_drop,
        gate.min_speedup,
        max_size_mb=gate.max_size_mb,
        max_macs=gate.max_macs,
        max_parameters=gate.max_parameters,
    )
