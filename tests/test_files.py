"""Results never replace a file that is not ours, and places that cannot be written are refused."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from compressor.commands import run
from compressor.files import write_at_once, write_json
from compressor.importance.compare import comparison_plot
from tests.helpers import toy
from tests.helpers.report_samples import translator_report
from tests.helpers.scores import sample


@pytest.fixture(scope="module")
def model(once) -> Path:
    return once("outputs-model", toy.classifier)


def test_score_refuses_options_that_no_method_takes(model, tmp_path, capsys):
    output = tmp_path / "s.json"
    assert score(model, output, "--per", "example") == 2
    assert "--method taylor or relevance, not for magnitude" in capsys.readouterr().err
    # An option may be for a method that is compared with, which has no rows here.
    assert score(model, output, "--per", "example", "--compare", "taylor") == 2
    assert "--method taylor needs --calibration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--calibration", "none.tsv"], "--recover reconstruct"),
        (["--learning-rate", "3"], "--recover distill"),
    ],
)
def test_prune_refuses_options_of_a_repair_that_is_not_done(model, tmp_path, options, hint, capsys):
    scores = tmp_path / "scores.json"
    write_json(scores, sample(0, "taylor").to_json())
    output = ["-o", str(tmp_path / "out"), "--keep", "0.5"]
    assert run(["prune", "-m", str(model), "--scores", str(scores), *output, *options]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-5", "nan"])
def test_no_time_to_measure_is_refused(seconds, capsys):
    assert run(["bench", "x", "--test", "x.tsv", "--bench-seconds", seconds]) == 2
    assert "seconds above 0" in capsys.readouterr().err


@pytest.fixture
def mine(tmp_path) -> Path:
    path = tmp_path / "mycal.tsv"
    path.write_text("text\tlabel\nw5\tLABEL_1\n", encoding="utf-8")
    return path


def score(model: Path, output: Path, *options: str) -> int:
    return run(["score", "-m", str(model), "--method", "magnitude", "-o", str(output), *options])


def test_scores_never_replace_a_file_that_holds_something_else(model, mine, capsys):
    before = mine.read_bytes()
    assert score(model, mine) == 4
    assert "is not a scores file of compress" in capsys.readouterr().err
    assert mine.read_bytes() == before


def test_scores_replace_scores_and_leave_their_neighbours_alone(model, tmp_path):
    output, neighbour = tmp_path / "mycal.json", tmp_path / "mycal.tmp"
    neighbour.write_text("mine", encoding="utf-8")
    write_json(output, sample(0, "taylor").to_json())
    assert score(model, output) == 0
    assert json.loads(output.read_text(encoding="utf-8"))["method"] == "magnitude"
    assert neighbour.read_text(encoding="utf-8") == "mine"
    assert sorted(tmp_path.iterdir()) == [output, neighbour]


def test_the_plot_of_a_comparison_replaces_only_such_a_plot(model, tmp_path, capsys):
    output, plot = tmp_path / "pic.json", tmp_path / "pic.png"
    plot.write_bytes(b"\x89PNG holiday")
    assert score(model, output, "--compare", "random") == 4
    assert "pic.png" in capsys.readouterr().err
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"\x89PNG holiday"]
    comparison_plot([sample(0, "taylor"), sample(1, "fisher")], plot)
    before = plot.read_bytes()
    assert score(model, output, "--compare", "random") == 0
    assert plot.read_bytes() != before


def test_scores_and_their_plot_cannot_be_one_file(model, tmp_path, capsys):
    assert score(model, tmp_path / "both.png", "--compare", "random") == 2
    assert "both.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_junit_never_replaces_a_file_that_holds_something_else(mine, tmp_path, capsys):
    report, before = tmp_path / "r.json", mine.read_bytes()
    report.write_text(translator_report().model_dump_json(), encoding="utf-8")
    gate = ["gate", str(report), "--max-drop", "bleu=100", "--junit"]
    assert run([*gate, str(mine)]) == 4
    assert "is not a JUnit file of compress" in capsys.readouterr().err
    assert mine.read_bytes() == before
    own = tmp_path / "new" / "junit.xml"
    assert run([*gate, str(own)]) == 0
    assert run([*gate, str(own)]) == 0
    assert own.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_files_written_at_once_have_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    write_at_once(tmp_path / "ours", "text")
    usual, ours = (stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("usual", "ours"))
    assert ours == usual


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
def test_an_output_that_cannot_be_written_is_told_first(name, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("afile").write_text("mine", encoding="utf-8")
    write_json(Path("scores.json"), sample(0, "taylor").to_json())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    options = UNWRITABLE[name]
    if "/proc/out" in options and not Path("/proc").is_dir():
        pytest.skip("this system has no /proc")
    output = ["afile/out"] if options[-1] == "-o" else []
    assert run([*options, *output, "-m", str(model)]) == 4
    told = capsys.readouterr().err
    assert told.startswith("error: cannot write ")
    assert told.endswith("; choose another --output\n")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_report_replaces_reports_and_nothing_else(tmp_path, capsys):
    report, mine = tmp_path / "r.json", tmp_path / "out" / "report.md"
    report.write_text(translator_report().model_dump_json(), encoding="utf-8")
    mine.parent.mkdir()
    mine.write_text("notes", encoding="utf-8")
    again = ["report", str(report), "-o", str(mine.parent)]
    assert run(again) == 4
    assert "report.md exists, and no report of compress is beside it" in capsys.readouterr().err
    assert [path.name for path in mine.parent.iterdir()] == ["report.md"]
    assert mine.read_text(encoding="utf-8") == "notes"
    mine.unlink()
    assert run(again) == run(again) == 0
    assert "BLEU" in mine.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["json", "markdown", "html", "junit"])
def test_a_report_in_any_one_format_can_be_written_again(name, tmp_path):
    report, out = tmp_path / "r.json", tmp_path / "out"
    report.write_text(translator_report().model_dump_json(), encoding="utf-8")
    again = ["report", str(report), "-o", str(out), "--format", name]
    assert run(again) == 0
    (written,) = out.iterdir()
    before = written.read_text(encoding="utf-8")
    written.write_text(before + "\n", encoding="utf-8")
    assert run(again) == 0
    assert written.read_text(encoding="utf-8") == before


def test_reports_and_junit_say_that_they_cannot_be_written(tmp_path, capsys):
    (tmp_path / "afile").touch()
    report = tmp_path / "r.json"
    report.write_text(translator_report().model_dump_json(), encoding="utf-8")
    assert run(["report", str(report), "-o", str(tmp_path / "afile")]) == 4
    assert "choose another --output" in capsys.readouterr().err
    gate = ["gate", str(report), "--max-drop", "bleu=100", "--junit", str(tmp_path / "afile" / "x")]
    assert run(gate) == 4
    assert "choose another --junit" in capsys.readouterr().err


def test_scores_are_not_written_over_a_directory_but_make_their_own(model, tmp_path, capsys):
    assert score(model, tmp_path) == 4
    assert "is a directory" in capsys.readouterr().err
    assert score(model, tmp_path / "new" / "deep" / "s.json") == 0
    assert (tmp_path / "new" / "deep" / "s.json").exists()


def test_what_the_file_system_refuses_later_is_no_bug(tmp_path, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/report.md")

    monkeypatch.setattr("compressor.report.rules.check", full)
    report = tmp_path / "r.json"
    report.write_text(translator_report().model_dump_json(), encoding="utf-8")
    assert run(["gate", str(report), "--max-drop", "bleu=100"]) == 4
    told = capsys.readouterr().err
    assert told == f"error: cannot read or write out/report.md: {os.strerror(errno.ENOSPC)}\n"
