"""The facts about the machine that every measurement is told with."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.throughput import hardware

PROCESSOR = """\
model name\t: Example CPU @ 2.50GHz
flags\t\t: fpu sse avx2 avx512f avx512_vnni amx_tile
"""


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Linux of our own making: its /proc and /sys/fs/cgroup are below the returned folder."""
    monkeypatch.setattr(hardware, "PROC", tmp_path)
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "cpuinfo").write_text(PROCESSOR, encoding="utf-8")
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\n", encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("linux")
def test_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVIDIA Example, 80GB, 590.12"
    monkeypatch.setattr(hardware, "run_tool", lambda *_: f"{line}\n{line}")
    facts = hardware.describe()
    assert facts.pop("os")
    assert facts == {
        "cpu": "Example CPU @ 2.50GHz", "instructions": "avx2 avx512f avx512_vnni amx_tile",
        "cores": "8", "memory": "16.0 GiB", "gpu": "NVIDIA Example, 80GB (1 of 2)",
        "gpu driver": "590.12",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "250000 100000"}, 3),  # two and a half cores' time
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_cores_respect_the_containers_share(
    linux: Path, files: dict[str, str], expected: int
) -> None:
    (linux / "cpu").mkdir()
    for name, text in files.items():
        (linux / name).write_text(text, encoding="utf-8")
    assert hardware.cores() == expected
