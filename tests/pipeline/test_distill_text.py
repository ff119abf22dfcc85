"""Distillation in runs: from text, from an earlier artifact's weights, stopped and continued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.pruning_record import read_pruning_record
from compressor.model.surgery import prune
from compressor.pipeline.run import run
from compressor.recovery import translations
from compressor.recovery.distillation import with_earlier_weights
from compressor.runtime import Translator
from compressor.training import loop
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.files import jsonl, packed
from tests.helpers.runs import Progress, recipe_for

pytestmark = pytest.mark.slow

LINES = toy.sentences(50, 5)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return packed(tmp_path / "text.txt", "".join(f"{line}\n\n" for line in LINES))


def options(text: Path, **others) -> dict:
    return {
        "recover": "distill", "distill_text": str(text), "distill_epochs": 2, "bench": False,
        "floor": "0",
    } | others  # fmt: skip


class StoppedAt(Progress):
    """Stops when a step has done so much; if it is to wait, when files of some name are there."""

    def __init__(self, step: str, at: int, waits_for: tuple[Path, str] | None = None) -> None:
        super().__init__()
        self.step, self.at, self.waits_for = step, at, waits_for

    def update(self, what: str, done: int, total: int | None) -> None:
        folder, pattern = self.waits_for or (None, "")
        ready = folder is None or list(folder.glob(pattern))
        if what == self.step and done >= self.at and ready:
            raise KeyboardInterrupt


def test_a_translator_learns_from_its_own_translations(checkpoints, text, tmp_path, monkeypatch):
    """Those of beams of the width of the option.

    Stopped after 20 of 50 lines and continued, it ends as an uninterrupted run does: also of the
    same text packed.
    """
    monkeypatch.setattr(translations, "CHUNK_ROWS", 10)
    shared = {"distill_beams": 3, "distill_epochs": 1, "test": None}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    model = checkpoints["short-marian"]
    (variant,) = run(recipe_for(model, tmp_path, **options(text, **shared)), whole).variants
    assert "rows and 50 lines of text" in variant.recovery
    answers = (whole / ".compress/translations.txt").read_text("utf-8").splitlines()
    dense = Translator(whole / ".compress/dense")
    assert answers == dense.translate(LINES, num_beams=3) != dense.translate(LINES, num_beams=1)

    given = packed(tmp_path / "text.txt.gz", text.read_text(encoding="utf-8"))
    made = recipe_for(model, tmp_path, **options(given, **shared))
    with pytest.raises(KeyboardInterrupt):
        run(made, stopped, progress=StoppedAt("lines answered", 20))
    (partial,) = (stopped / ".compress").glob("translate-*/*.partial")
    assert len(partial.read_text(encoding="utf-8").splitlines()) == 20
    run(made, stopped)
    for name in ("model.safetensors", ".compress/translations.txt"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
    assert not partial.exists()


def test_a_single_step_translates_packed_text(checkpoints, text, tmp_path):
    given = packed(tmp_path / "text.txt.zst", text.read_text(encoding="utf-8"))
    rows, scores = toy.pairs_file(tmp_path / "rows.tsv"), tmp_path / "scores.json"
    model = ("--model", checkpoints["short-marian"])
    invoke("score", *model, "--method", "magnitude", "--output", scores)
    invoke(
        "prune", *model, "--scores", scores, "--calibration", rows, "--keep", "0.5",
        "--recover", "distill", "--distill-text", given, "--distill-epochs", "2",
        "--learning-rate", "0.001", "--output", tmp_path / "out", "--device", "cpu",
    )  # fmt: skip
    facts = json.loads((tmp_path / "out" / "units.json").read_text(encoding="utf-8"))
    assert "12 rows and 50 lines of text" in facts["recovery"]


@pytest.mark.usefixtures("no_graphs")
def test_packed_text_gives_the_weights_of_plain_text_also_when_stopped(
    checkpoints, text, tmp_path, monkeypatch
):
    """Stopped in the middle of an epoch, as by Ctrl-C, and then with the unpacked text lost."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_MOST_SAVING", 1.0)
    model = checkpoints["bert"]
    run(recipe_for(model, tmp_path, **options(text, test=None)), tmp_path / "plain")
    content = jsonl({"text": x} for x in LINES)
    given = packed(tmp_path / "text.jsonl.zst", content)
    made, out = recipe_for(model, tmp_path, **options(given, test=None)), tmp_path / "out"
    state, saved = out / ".compress", "recover_units-*/*.safetensors"
    with pytest.raises(KeyboardInterrupt):  # the dense model reads text before it trains
        run(made, out, progress=StoppedAt("recovery", 5, waits_for=(state, saved)))
    assert list(state.glob(saved))
    stored = state / "distill-text.unpacked"
    assert stored.read_text(encoding="utf-8") == content
    stored.write_text("w3\n", encoding="utf-8")
    progress = Progress()
    run(made, out, progress=progress)
    assert any("distill-text.unpacked is missing or changed" in x for x in progress.messages)
    weights = "model.safetensors"
    assert (out / weights).read_bytes() == (tmp_path / "plain" / weights).read_bytes()
    # States of trainings were only to go on from.
    assert {x.name for x in state.iterdir() if x.is_dir()} == {"dense", "keep-0.5"}
    assert [x.name for x in (state / "keep-0.5").iterdir()] == ["recovered.safetensors"]
    given.write_bytes(packed(tmp_path / "other.zst", jsonl([{"text": "w3"}])).read_bytes())
    with raises(UsageError, "output-of-another-run"):
        run(made, out)


@pytest.mark.usefixtures("no_graphs")
def test_it_starts_from_the_weights_of_the_artifact(checkpoints, translated, tmp_path):
    """Where nothing is gained, the new artifact has them, to the bit."""
    earlier, out = translated / "out", tmp_path / "out"
    too_small = recipe_for(
        checkpoints["marian"], tmp_path, macs="0.5", keep=None, multiple="8", bench=False,
        drop_layers="decoder=1,encoder=1", recover="distill", distill_epochs=3, test=None,
        distill_start=str(earlier), learning_rate=1e-12,
    )  # fmt: skip
    (variant,) = run(too_small, out).variants
    before, after = (load_file(x / "model.safetensors") for x in (earlier, out))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert variant.recovery.endswith(f"started from the weights of {earlier.name}")


def test_artifacts_of_other_units_and_models_are_no_start(checkpoints, translated, tmp_path):
    dense = open_checkpoint(str(checkpoints["marian"]))
    mask = read_pruning_record(translated / "out").mask
    layer = next(name for name in mask.keep if mask.kept(name))
    fewer = mask.without([(layer, mask.kept(layer)[0])])
    pruned = prune(dense.model, dense.layers, fewer)
    with raises(InputError, "start-other-units"):
        with_earlier_weights(pruned, fewer, translated / "out")
