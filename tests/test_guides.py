"""The commands of the first pages and of the guides run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.test_docs import ROOT, commands_in

GUIDES = sorted(ROOT.glob("docs/guide-*.md"))
# Added to make commands quick; the guides' own options stay.
FEW = {
    "run": "--calibration-rows 24 --test-rows 24 --batch-size 1 --bench-seconds 0.01",
    "evaluate": "--test-rows 24",
    "bench": "--test-rows 24 --batch-size 1 --bench-seconds 0.01",
}
SHIM = """#!/bin/sh
case "$1" in
{cases}
esac
case "$*" in *--distill-text*) set -- "$@" --distill-steps 2;; esac
exec {python} -m compressor "$@"
"""


@pytest.mark.attack
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_guides_can_be_followed(page: Path, tmp_path: Path):
    """From what a checkout has: every block for a shell, one after the other, with few rows."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    programs = tmp_path / "programs"
    programs.mkdir()
    cases = "\n".join(f'{name}) set -- "$@" {options};;' for name, options in FEW.items())
    scripts = {
        "compress": SHIM.format(cases=cases, python=sys.executable),
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',  # finds the environment's packages
    }
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("compressor", "examples"):
        (checkout / name).symlink_to(ROOT / name)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "".join(blocks)],
        cwd=checkout, env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.attack
@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_commands_of_the_first_pages_run(page: str, tmp_path: Path):
    """On a small model, where they name no files of their own."""
    toy.classifier(tmp_path / "MODEL")
    for seed, name in enumerate(("valid.tsv", "test.tsv")):
        toy.labels_file(tmp_path / name, seed=seed)
    commands = [
        command
        for command in commands_in((ROOT / page).read_text(encoding="utf-8"))
        if "demo-out/" not in command  # needs a run of the demo
    ]
    assert commands
    for command in commands:
        words = shlex.split(command)[1:]
        if words[0] == "run":
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
        done = compress(*words, *shlex.split(FEW.get(words[0], "")), cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
