"""Runs that distill from unlabelled text: translated once, resumable, refused where useless."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from compressor.errors import InputError, UsageError
from compressor.pipeline.run import run
from compressor.recovery import distillation, recover, translations
from compressor.recovery.distill import Distill
from compressor.report.schema import load_report
from compressor.request.recipe import Recipe
from compressor.runtime import Translator
from compressor.training import loop
from tests.helpers import toy
from tests.helpers.command_line import compress, invoke
from tests.helpers.errors import raises
from tests.helpers.packed import jsonl, packed
from tests.helpers.recipes import recipe
from tests.helpers.runs import Progress, recipe_for
from tests.helpers.stages import job

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def translator(once) -> Path:
    return once(
        "distill-marian", lambda path: toy.first_layers(toy.translator(path / "whole"), path)
    )


@pytest.fixture(scope="module")
def classifier(once) -> Path:
    return once("distill-bert", toy.classifier)


def write_text(path: Path) -> Path:
    path.write_text("".join(f"{line}\n\n" for line in toy.sentences(50, 5)), encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt")


@pytest.fixture(scope="module")
def translated(translator, tmp_path_factory) -> tuple[Recipe, Path]:
    """A finished run of the translator on the text, and its recipe."""
    folder = tmp_path_factory.mktemp("translated")
    made = recipe_for(translator, folder, **options(write_text(folder / "text.txt")))
    run(made, folder / "out")
    return made, folder / "out"


def options(text: Path, **others) -> dict:
    return {
        "recover": "distill", "distill_text": str(text), "distill_epochs": 2, "bench": False,
        "floor": "0",
    } | others  # fmt: skip


class Stopped(Progress):
    """Stops when some lines are translated."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def update(self, what: str, done: int, total: int | None) -> None:
        if what == "lines answered" and done >= self.at:
            raise KeyboardInterrupt


def sentences(text: Path) -> list[str]:
    return [line for line in text.read_text(encoding="utf-8").splitlines() if line]


def test_a_translator_learns_from_its_own_translations(translated, text, tmp_path, monkeypatch):
    """Stopped after 20 of 50 lines and continued, it ends as an uninterrupted run does.

    So it does with the same text packed.
    """
    monkeypatch.setattr(translations, "CHUNK_ROWS", 10)
    made, whole = translated
    (variant,) = load_report(whole / "report.json").variants
    assert "rows and 50 lines of text" in variant.recovery
    state = whole / ".compress"
    found = (state / "translations.txt").read_text(encoding="utf-8").splitlines()
    assert found == Translator(state / "dense").translate(sentences(text), num_beams=1)

    given = packed(tmp_path / "text.txt.gz", text.read_text(encoding="utf-8"))
    made = recipe_for(Path(made.model.path), tmp_path, **options(given))
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "stopped", progress=Stopped(20))
    (partial,) = (tmp_path / "stopped" / ".compress").glob("translate-*/*.partial")
    assert len(partial.read_text(encoding="utf-8").splitlines()) == 20
    run(made, tmp_path / "stopped")
    for name in ("model.safetensors", ".compress/translations.txt"):
        assert (tmp_path / "stopped" / name).read_bytes() == (whole / name).read_bytes()
    assert not partial.exists()

    progress = Progress()
    run(made, tmp_path / "stopped", progress=progress)  # everything is there
    assert any(message.startswith("answering text.txt.gz") for message in progress.messages)
    assert all("…" not in message for message in progress.messages)


def test_the_beam_width_is_that_of_the_option(translator, text, tmp_path):
    made = recipe_for(translator, tmp_path, **options(text, distill_beams=3))
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "out", progress=Progress("removing units"))  # with all translated
    state = tmp_path / "out" / ".compress"
    found = (state / "translations.txt").read_text(encoding="utf-8").splitlines()
    dense = Translator(state / "dense")
    assert found == dense.translate(sentences(text), num_beams=3)
    assert found != dense.translate(sentences(text), num_beams=1)


def test_another_text_is_another_run(classifier, text, tmp_path):
    made = recipe_for(classifier, tmp_path, **options(text))
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "out", progress=Progress("exporting the dense model"))
    text.write_text("w3 w4\n", encoding="utf-8")
    with raises(UsageError, "output-of-another-run"):
        run(made, tmp_path / "out")


def test_the_command_line_distills_a_classifier_from_text(classifier, text, tmp_path):
    """Three steps at most, of the eight that two epochs over 24 rows and 50 lines would take."""
    rows = toy.labels_file(tmp_path / "rows.tsv")
    out = tmp_path / "out"
    done = compress(
        "run", "--model", classifier, "--calibration", rows, "--keep", "0.5", "--no-bench",
        "--recover", "reconstruct+distill", "--distill-text", text, "--distill-steps", "3",
        "--distill-hidden", "0.5", "--learning-rate", "0.001", "--output", out, "--device", "cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads((out / "units.json").read_text(encoding="utf-8"))
    assert "16 rows and 50 lines of text" in facts["recovery"]
    assert "(3 steps)" in facts["recovery"]
    again = recipe(out / "recipe.yaml").recovery[1]
    assert (again.text, again.steps, again.hidden) == (str(text), 3, 0.5)


def test_a_single_step_translates_with_pytorch(translator, text, tmp_path):
    """Of a packed text, too."""
    given = packed(tmp_path / "text.txt.zst", text.read_text(encoding="utf-8"))
    rows = toy.pairs_file(tmp_path / "rows.tsv")
    scores = tmp_path / "scores.json"
    invoke("score", "--model", translator, "--method", "magnitude", "--output", scores)
    invoke(
        "prune", "--model", translator, "--scores", scores, "--calibration", rows, "--keep", "0.5",
        "--recover", "distill", "--distill-text", given, "--distill-epochs", "2",
        "--learning-rate", "0.001", "--output", tmp_path / "out", "--device", "cpu",
    )  # fmt: skip
    facts = json.loads((tmp_path / "out" / "units.json").read_text(encoding="utf-8"))
    assert "16 rows and 50 lines of text" in facts["recovery"]


@pytest.mark.parametrize(("name", "weight"), [("bert", 1.0), ("marian", 0.0)])
def test_weight_of_hidden_states_and_learning_rate_are_the_tasks(name, weight, monkeypatch):
    """Classifiers match hidden states; models learn faster where there is more text."""
    found = []

    class Noted(Exception):
        pass

    def note(job, student, held, rate, hidden, precision):
        found.append((rate, hidden))
        raise Noted

    monkeypatch.setattr(distillation, "Distillation", note)
    setup = job(name)
    for method in (Distill(), Distill(hidden=0.3, learning_rate=0.1)):
        with pytest.raises(Noted):
            recover([method], setup)
    assert found == [(setup.task.learning_rate, weight), (0.1, 0.3)]
    with pytest.raises(Noted):
        recover([Distill()], replace(setup, text=object()))
    assert found[-1][0] == {"bert": 2e-4, "marian": 5e-4}[name]


class StoppedTraining(Progress):
    """Stops after some steps of a training, as Ctrl-C would; the dense model reads text before."""

    def __init__(self, state: Path) -> None:
        super().__init__()
        self.state = state

    def update(self, what: str, done: int, total: int | None) -> None:
        if what == "repair" and done >= 5 and list(self.state.glob("build-*/*.safetensors")):
            raise KeyboardInterrupt


@pytest.mark.usefixtures("no_graphs")
def test_packed_text_gives_the_weights_of_plain_text_also_when_stopped(
    classifier, text, tmp_path, monkeypatch
):
    """Stopped in the middle of an epoch, and then with the unpacked text lost."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_MOST_SAVING", 1.0)
    run(recipe_for(classifier, tmp_path, **options(text, test=None)), tmp_path / "plain")
    content = jsonl({"text": x} for x in sentences(text))
    given = packed(tmp_path / "text.jsonl.zst", content)
    made, out = recipe_for(classifier, tmp_path, **options(given, test=None)), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(made, out, progress=StoppedTraining(out / ".compress"))
    assert list((out / ".compress").glob("build-*/*.safetensors"))
    stored = out / ".compress" / "distill-text.unpacked"
    assert stored.read_text(encoding="utf-8") == content
    stored.write_text("w3\n", encoding="utf-8")
    progress = Progress()
    run(made, out, progress=progress)
    assert any("distill-text.unpacked is missing or changed" in x for x in progress.messages)
    weights = "model.safetensors"
    assert (out / weights).read_bytes() == (tmp_path / "plain" / weights).read_bytes()
    # States of trainings were only to go on from.
    assert [x.name for x in (out / ".compress").iterdir() if x.is_dir()] == ["dense"]


def test_options_that_would_do_nothing_are_refused(classifier, text, tmp_path):
    with raises(UsageError, "option-without-use"):
        recipe_for(classifier, tmp_path, recover="reconstruct", distill_text=str(text))
    with raises(UsageError, "option-without-use"):
        recipe_for(classifier, tmp_path, recover="distill", distill_beams=4)
    made = recipe_for(classifier, tmp_path, **options(text, distill_beams=4))
    with raises(UsageError, "option-without-use"):
        run(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "id"),
    [
        (b"\n\n", "distill-text-empty"),
        (b"na\xefve\n", "file-not-utf8"),
        (None, "file-missing"),
    ],
)
def test_an_unusable_text_is_an_error_before_anything_is_written(
    classifier, text, tmp_path, content, id
):
    text.unlink() if content is None else text.write_bytes(content)
    with raises(InputError, id):
        run(recipe_for(classifier, tmp_path, **options(text)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_graphs")
def test_a_classifier_of_pairs_reads_pairs(classifier, tmp_path):
    rows = tmp_path / "pairs.tsv"
    lines = [f"w{i + 3} w4\tw{i + 5}\tLABEL_{i % 5}" for i in range(24)]
    rows.write_text("\n".join(["a\tb\tlabel", *lines]) + "\n", encoding="utf-8")
    text = tmp_path / "text.txt"
    text.write_text("w3 w4\tw5\n" * 20, encoding="utf-8")
    shared = options(text, text_column="a", text_pair_column="b", test=None)
    made = recipe_for(classifier, tmp_path, **shared | {"calibration": str(rows)})
    (variant,) = run(made, tmp_path / "out").variants
    assert "distill: " in variant.recovery
    text.write_text("w3 w4 w5\n", encoding="utf-8")
    with raises(InputError, "distill-text-not-pairs"):
        run(made, tmp_path / "other")
