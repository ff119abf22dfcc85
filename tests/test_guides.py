"""The commands of the first page and of the guides run as they stand there, on small models."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.helpers.sentence_encoders import save_encoder, write_pairs, write_texts
from tests.test_docs import PAGES, ROOT, commands_in

GUIDES = [
    page
    for page in PAGES
    if page.relative_to(ROOT).as_posix() in ("README.md", "docs/README.md")
    or page.name.startswith("guide-")
]
# Added to make commands quick; the guides' own options stay.
QUICK = {
    "run": "--calibration-rows 24 --test-rows 24 --batch-size 1 --bench-seconds 0.01",
    "bench": "--batch-size 1 --bench-seconds 0.01",
    "translate": "english.txt",
}
HUB = "Helsinki-NLP/opus-mt-en-de", "all-MiniLM-L6-v2"  # directories here


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of model -> a directory with what its commands name."""
    folders = {}
    for kind in ("classifier", "encoder", "translator"):
        folder = folders[kind] = tmp_path_factory.mktemp(kind)
        for name in ("texts.txt", "lines.txt", "english.txt"):
            write_texts(folder / name)
        write_pairs(folder / "pairs.tsv")
        for seed, name in enumerate(("valid.tsv", "test.tsv")):
            (toy.pairs_file if kind == "translator" else toy.labels_file)(folder / name, seed=seed)
    toy.classifier(folders["classifier"] / "MODEL")
    save_encoder(folders["encoder"] / "MODEL")
    toy.translator(folders["translator"] / "MODEL")
    for kind, name in zip(("translator", "encoder"), HUB, strict=True):
        shutil.copytree(folders[kind] / "MODEL", folders[kind] / name)
    return folders


def kind_of(command: str, page: Path) -> str:
    """What kind of model a command is about."""
    if "pairs.tsv" in command or page.name == "guide-sentence-encoder.md":
        return "encoder"
    if "english.txt" in command or page.name == "guide-translator.md":
        return "translator"
    return "classifier"


@pytest.mark.attack
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_run_as_they_stand_there(page: Path, folders: dict[str, Path]):
    commands = commands_in(page.read_text(encoding="utf-8"))
    assert commands
    for command in commands:
        if "demo-out/" in command:  # needs a run of the demo
            continue
        folder = folders[kind_of(command, page)]
        words = shlex.split(command)[1:]
        if words[0] in ("run", "export"):
            shutil.rmtree(folder / "out", ignore_errors=True)
        done = compress(*words, *shlex.split(QUICK.get(words[0], "")), cwd=folder)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
