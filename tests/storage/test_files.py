"""Output never replaces a file that is not ours; a place that cannot be written is an error."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from compressor.commands import invoke as run
from compressor.errors import InputError, UsageError
from compressor.pipeline.score import write_scores
from compressor.request.sections import ModelSection
from compressor.study.agreement import comparison_plot
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.report_samples import translator_report
from tests.helpers.scores import sample


@pytest.fixture(scope="module")
def model(once) -> Path:
    return once("outputs-model", toy.classifier)


@pytest.fixture
def report(tmp_path) -> Path:
    path = tmp_path / "r.json"
    translator_report().save(path)
    return path


def score(model: Path, output: Path, *options: str) -> None:
    invoke("score", "-m", model, "--method", "magnitude", "-o", output, *options)


def test_scores_replace_scores_alone_and_leave_their_neighbours_alone(model, tmp_path):
    output, neighbour = tmp_path / "mycal.json", tmp_path / "mycal.tmp"
    neighbour.write_text("mine", encoding="utf-8")
    write_scores(output, sample(0, "taylor"), ModelSection(path=str(model)))
    score(model, output)
    assert json.loads(output.read_text(encoding="utf-8"))["method"] == "magnitude"
    with raises(InputError, "output-not-ours"):
        score(model, neighbour)
    assert neighbour.read_text(encoding="utf-8") == "mine"
    assert sorted(tmp_path.iterdir()) == [output, neighbour]
    with raises(InputError, "output-not-ours"):
        score(model, tmp_path)
    score(model, tmp_path / "new" / "deep" / "s.json")
    assert (tmp_path / "new" / "deep" / "s.json").exists()


def test_the_plot_of_a_comparison_replaces_only_such_a_plot(model, tmp_path):
    output, plot = tmp_path / "pic.json", tmp_path / "pic.png"
    plot.write_bytes(b"\x89PNG holiday")
    with raises(InputError, "output-not-ours") as caught:
        score(model, output, "--compare", "random")
    assert "pic.png" in str(caught.value)
    with raises(UsageError, "scores-and-plot-in-one-file"):
        score(model, tmp_path / "both.png", "--compare", "random")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"\x89PNG holiday"]
    comparison_plot([sample(0, "taylor"), sample(1, "fisher")], plot)
    before = plot.read_bytes()
    score(model, output, "--compare", "random")
    assert plot.read_bytes() != before


def test_junit_replaces_such_a_file_alone(report, tmp_path):
    mine, own = tmp_path / "mine.tsv", tmp_path / "new" / "junit.xml"
    mine.write_text("text\tlabel\n", encoding="utf-8")
    gate = ["gate", report, "--max-metric-drop", "bleu=100", "--junit"]
    with raises(InputError, "output-not-ours"):
        invoke(*gate, mine)
    assert mine.read_text(encoding="utf-8") == "text\tlabel\n"
    for _ in range(2):
        invoke(*gate, own)
    assert own.read_text(encoding="utf-8").startswith("<?xml")


UNWRITABLE = {
    "run": ["run", "--keep", "0.5", "-o"],
    "run in a system directory": ["run", "--keep", "0.5", "-o", "/proc/out"],
    "prune": ["prune", "--keep", "0.5", "--scores", "scores.json", "-o"],
    "export": ["export", "-o"],
    "export for optimum": ["export", "--layout", "optimum", "-o"],
    "study": ["study", "heads", "--test", "none.tsv", "-o"],
    "score": ["score", "--method", "magnitude", "-o"],
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_an_output_that_cannot_be_written_fails_before_anything_else(
    name, model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("afile").write_text("mine", encoding="utf-8")
    write_scores(Path("scores.json"), sample(0, "taylor"), ModelSection(path=str(model)))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    options = UNWRITABLE[name]
    if "/proc/out" in options and not Path("/proc").is_dir():
        pytest.skip("this system has no /proc")
    output = ["afile/out"] if options[-1] == "-o" else []
    with raises(InputError, "output-not-writable") as caught:
        invoke(*options, *output, "-m", model)
    assert "--output" in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_unwritable_report_or_junit_names_the_option_to_change(report, tmp_path):
    (tmp_path / "afile").touch()
    for option, command in {
        "--output": ["report", report, "-o", tmp_path / "afile"],
        "--junit": ["gate", report, "--max-macs", "1", "--junit", tmp_path / "afile" / "x"],
    }.items():
        with raises(InputError, "output-not-writable") as caught:
            invoke(*command)
        assert option in str(caught.value)


@pytest.mark.parametrize("name", ["json", "markdown", "html", "junit"])
def test_a_report_in_any_one_format_can_be_written_again(name, report, tmp_path):
    out = tmp_path / "out"
    again = ["report", report, "-o", out, "--format", name]
    invoke(*again)
    (written,) = out.iterdir()
    before = written.read_text(encoding="utf-8")
    written.write_text(before + "\n", encoding="utf-8")
    invoke(*again)
    assert written.read_text(encoding="utf-8") == before


def test_a_full_disk_is_an_input_error_and_not_a_bug(report, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/report.md")

    monkeypatch.setattr("compressor.report.rules.check", full)
    assert run(["gate", str(report), "--max-metric-drop", "bleu=100"]) == 4
    message = capsys.readouterr().err
    assert "out/report.md" in message
    assert os.strerror(errno.ENOSPC) in message
