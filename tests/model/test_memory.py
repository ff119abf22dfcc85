"""Memory that goes back to the system, and weights that models share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from compressor.model import memory
from compressor.model.architectures import find_sublayers
from compressor.model.memory import free_bytes, release, trim_memory
from compressor.model.surgery import prune, remove_units
from tests.helpers.tiny import ragged_batch, tiny_model, uneven_mask

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def resident_kib(path: Path) -> int:
    """Of the mappings of a file, by the kernel."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        if not line.partition(" ")[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


@linux
@pytest.mark.parametrize("changed", [False, True])
def test_pages_of_mapped_weights_are_given_back_unless_one_was_changed(changed: bool, tmp_path):
    path = tmp_path / "model.safetensors"
    values = torch.arange(1 << 20, dtype=torch.float32)
    save_file({"x": values}, path)
    mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size // 4)
    tail = mapped[-(1 << 20) :]  # behind the header
    assert tail.sum() == values.sum()
    if changed:
        tail[5] = -1.0
        values[5] = -1.0
    before = resident_kib(path)
    assert before >= 4096
    trim_memory()
    assert (resident_kib(path) < 64) != changed
    assert torch.equal(tail, values)


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_a_pruned_model_shares_the_weights_that_lose_nothing(name: str):
    model = tiny_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batch = ragged_batch(model)
    layers = find_sublayers(model)
    mask = uneven_mask(layers)
    pruned = prune(model, layers, mask)
    own = dict(pruned.named_parameters())
    shared = [key for key, value in model.named_parameters() if own.get(key) is value]
    assert any("embed" in key or "shared" in key for key in shared)
    cut = [key for key, value in own.items() if value.shape != before[key].shape]
    assert cut
    assert not {*cut} & {*shared}
    alone = tiny_model(name)
    remove_units(alone, layers, mask)
    assert torch.equal(pruned(**batch).logits, alone(**batch).logits)
    release(pruned, keep=model)
    assert all(own[key].numel() == 0 for key in cut)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [
        (None, None, 8 << 30),  # no container
        ("max", "5000000000", 8 << 30),
        (str(4 << 30), str(3 << 30), (1 << 30) + (1 << 29)),  # files count as free
        (str(4 << 30), str(5 << 30), 0),
    ],
)
def test_free_memory_is_what_the_container_leaves(limit, used, free, tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text(
        "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n", encoding="utf-8"
    )
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n", encoding="utf-8")
        (tmp_path / "memory.current").write_text(f"{used}\n", encoding="utf-8")
        stat = f"active_file 7\ninactive_file {1 << 29}\n"
        (tmp_path / "memory.stat").write_text(stat, encoding="utf-8")
    monkeypatch.setattr(memory, "_SYSTEM", tmp_path)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert free_bytes() == free
