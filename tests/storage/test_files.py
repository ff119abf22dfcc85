"""Output replaces no file that is not ours, and follows the umask; errors name the file."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compressor.commands import invoke as run
from compressor.errors import InputError, UsageError
from compressor.report.scores_file import write_scores
from compressor.study.compare_scores import comparison_plot
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
    write_scores(output, sample(0, "taylor"))
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


UNWRITABLE = (
    ["run", "--keep", "0.5", "--calibration", "none.tsv"],
    ["prune", "--keep", "0.5", "--scores", "scores.json"],
    ["export"],
    ["export", "--layout", "optimum"],
    ["study", "heads", "--test", "none.tsv"],
    ["score", "--method", "magnitude"],
)


@pytest.mark.parametrize("words", UNWRITABLE, ids=" ".join)
def test_an_output_that_cannot_be_written_fails_before_anything_else(
    words, model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("afile").write_text("mine", encoding="utf-8")
    write_scores(Path("scores.json"), sample(0, "taylor"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with raises(InputError, "output-not-writable") as caught:
        invoke(*words, "-o", "afile/out", "-m", model)
    assert "--output" in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_is_an_input_error_and_not_a_bug(report, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/report.md")

    monkeypatch.setattr("compressor.report.rules.check", full)
    assert run(["gate", str(report), "--max-metric-drop", "bleu=100"]) == 4
    message = capsys.readouterr().err
    assert "out/report.md" in message
    assert os.strerror(errno.ENOSPC) in message


posix = pytest.mark.skipif(os.name != "posix", reason="modes and users are POSIX's")


@pytest.fixture
def umask():
    """A umask that is neither the usual one nor the one that libraries act as if they had."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def modes(directory: Path) -> set[str]:
    return {f"{path.stat().st_mode & 0o7777:o}" for path in directory.rglob("*") if path.is_file()}


@posix
def test_checkpoints_and_graphs_follow_the_umask(umask, tmp_path):
    dense, scores = toy.classifier(tmp_path / "dense"), tmp_path / "scores.json"
    invoke("score", "-m", dense, "--method", "magnitude", "-o", scores)
    out, pruned = tmp_path / "out", tmp_path / "pruned"
    invoke("prune", "-m", dense, "--scores", scores, "--keep", "0.5", "-o", pruned)
    invoke("export", "-m", dense, "-o", out, "--precision", "fp32,int8")
    assert {"model.int8.onnx_data", "model.onnx"} <= {path.name for path in out.rglob("*")}
    assert (pruned / "model.safetensors").exists()
    assert modes(out) == modes(pruned) == {"640"}


# Asks for files that may not be read: paths, their modes meanwhile, and the words of commands.
DENIED = """
import contextlib, io, json, sys
from pathlib import Path
from compressor.commands import invoke
found = []
for name, mode, words in json.loads(sys.argv[1]):
    path, said, hidden = Path(name), io.StringIO(), io.TextIOWrapper(io.BytesIO())
    before = path.stat().st_mode & 0o777
    path.chmod(mode)
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(hidden):
        status = invoke(words)
    path.chmod(before)
    found.append((status, said.getvalue().strip().rpartition("\\n")[2]))
print(json.dumps(found))
"""


def denied(cases: list[tuple[Path, int, list[str]]]) -> list[tuple[int, str]]:
    """How `compress` ends while a path has a mode: status and the last line of its messages.

    In a process without root's rights to read everything.
    """
    rights = "-dac_override,-dac_read_search"
    drop = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    told = json.dumps([(str(path), mode, words) for path, mode, words in cases])
    done = subprocess.run(
        [*(drop if os.geteuid() == 0 else []), sys.executable, "-c", DENIED, told],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return [(status, message) for status, message in json.loads(done.stdout)]


@posix
@pytest.mark.skipif(
    os.name == "posix" and os.geteuid() == 0 and shutil.which("setpriv") is None,
    reason="root, and setpriv is not installed",
)
def test_what_may_not_be_read_or_written_is_one_sentence_that_names_it(tmp_path):
    dense, artifact = toy.classifier(tmp_path / "dense"), tmp_path / "artifact"
    invoke("export", "-m", dense, "-o", artifact)
    rows, lines = toy.labels_file(tmp_path / "rows.tsv"), tmp_path / "lines.txt"
    lines.write_text("w3 w4\n", encoding="utf-8")
    scores, report, closed = (tmp_path / name for name in ("scores.json", "r.json", "closed"))
    write_scores(scores, sample(0, "taylor"))
    translator_report().save(report)
    closed.mkdir()
    inspect = ["inspect", str(dense)]
    classify = ["classify", str(artifact), str(lines)]
    run = ["run", "-m", str(dense), "--calibration", str(rows), "--macs", "0.5", "-o"]
    prune = ["prune", "-m", str(dense), "--scores", str(scores), "--keep", "1", "-o"]
    readers = [
        (dense, inspect),
        (dense / "model.safetensors", inspect),
        (artifact / "onnx" / "model.onnx_data", [*classify, "--no-verify"]),
        (artifact / "manifest.json", classify),
        (lines, classify),
        (rows, [*run, str(tmp_path / "out")]),
        (scores, [*prune, str(tmp_path / "out")]),
        (report, ["gate", str(report), "--max-macs", "0.9"]),
    ]
    writers = [
        [*run, str(closed / "below")],
        [*classify, "-o", str(closed / "labels.txt")],
        ["report", str(report), "-o", str(closed)],
    ]
    cases = [(path, 0, words) for path, words in readers]
    cases += [(closed, 0o500, words) for words in writers]
    for (path, _, words), (status, message) in zip(cases, denied(cases), strict=True):
        assert status == 4, (words, message)
        assert "Permission denied" in message, (words, message)
        assert str(path) in message, (words, message)
