"""Standard streams that are full, closed or not read: the status is that of the work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compressor.report.schema import render_json
from tests.helpers.report_samples import translator_report

pytestmark = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="there is no /dev/full, as on Linux"
)
FAILS, PASSES = "--max-metric-drop bleu=0.0001", "--max-metric-drop bleu=99"


@pytest.mark.parametrize(
    ("rule", "streams", "status"),
    [
        (FAILS, ">/dev/full", 1),
        (FAILS, "<&- >&- 2>&-", 1),
        (PASSES, "| true", 0),
        (PASSES, "--json >/dev/full", 4),  # a result that was wanted is lost
    ],
)
def test_a_gates_status_is_its_outcome(rule: str, streams: str, status: int, tmp_path):
    report = tmp_path / "report.json"
    report.write_text(render_json(translator_report()), encoding="utf-8")
    command = f'"$0" -m compressor gate "$1" {rule} {streams}'
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command, sys.executable, report],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (found.returncode, "Traceback" in found.stderr) == (status, False), found.stderr
    if status == 4:
        assert "cannot write the result to standard output: No space left" in found.stderr
