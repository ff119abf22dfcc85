"""The facts about the machine that every measurement is told with."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.throughput import hardware, memory

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


def test_a_system_without_those_files_has_fewer_facts(linux: Path, monkeypatch) -> None:
    for name in ("cpuinfo", "meminfo"):
        (linux / name).unlink()
    monkeypatch.setattr(hardware, "run_tool", lambda *_: "")
    monkeypatch.setattr(hardware.platform, "processor", lambda: "arm")
    assert {"cpu": "arm", "cores": "8"}.items() <= hardware.describe().items()
    assert hardware.describe().keys() == {"cpu", "cores", "os"}


def test_nvidia_smi_is_asked_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its manual has them; of one GPU no number is told."""
    calls = []
    monkeypatch.setattr(hardware, "run_tool", lambda *call: calls.append(call) or "A 80GB, 590.1")
    assert hardware._gpu() == {"gpu": "A 80GB", "gpu driver": "590.1"}
    asked = ("--query-gpu=name,driver_version", "--format=csv,noheader")
    assert calls == [("nvidia-smi", *asked)]


@pytest.mark.parametrize(
    ("script", "expected"), [("echo ' 5 '", "5"), ("echo 5; exit 1", ""), ("sleep 9", "")]
)
def test_a_tool_that_fails_or_hangs_says_nothing(script: str, expected: str, monkeypatch) -> None:
    run = hardware.subprocess.run
    patient = {"timeout": 0.5}
    monkeypatch.setattr(hardware.subprocess, "run", lambda *a, **k: run(*a, **k | patient))
    assert hardware.run_tool("sh", "-c", script) == expected


def test_a_tool_that_is_not_there_says_nothing() -> None:
    assert hardware.run_tool("no-such-tool") == ""


def test_the_peak_is_read_from_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    assert memory.host_peak_mib() is None
    (tmp_path / "status").write_text("VmPeak:\t  9000 kB\nVmHWM:\t    2560 kB\nx: 1 kB\n", "utf-8")
    assert memory.host_peak_mib() == 2.5


def test_memory_of_a_gpu_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.os, "getpid", lambda: 71)
    for listed, expected in (("7, 5\n71, 640\n", 640.0), ("71, [N/A]", None), ("", None)):
        monkeypatch.setattr(memory, "run_tool", lambda *_, text=listed: text)
        assert memory.device_mib() == expected
