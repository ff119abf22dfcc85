"""The command line as a user meets it: real processes, exit statuses, stdout and stderr."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from compressor import example
from compressor.commands import COMMANDS, application
from compressor.commands import invoke as run
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.tasks import TASKS
from compressor.throughput.inspection import inspect_checkpoint
from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.helpers.report_samples import translator_report
from tests.helpers.tiny import BUILDERS, LABELS

pytestmark = pytest.mark.slow


def run_options(inputs: dict[str, str]) -> list[object]:
    return [
        "run", "-m", inputs["model"], "--calibration", inputs["calibration"],
        "--test", inputs["test"], "-b", "1,4", "--bench-seconds", "0.05", "--device", "cpu",
        "--keep", "0.5",
    ]  # fmt: skip


@pytest.fixture
def output_of(capsys) -> Callable[..., str]:
    """The standard output of a command that succeeds, in this process."""

    def output(*arguments: object) -> str:
        capsys.readouterr()
        assert run([*map(str, arguments)]) == 0
        return capsys.readouterr().out

    return output


@pytest.fixture(scope="module")
def finished(inputs, once, tmp_path_factory) -> Path:
    def make(directory: Path) -> None:
        done = compress(*run_options(inputs), "-o", directory)
        assert done.returncode == 0, done.stderr
        assert "removing units (2 of 4 heads kept)" in done.stderr

    own = tmp_path_factory.mktemp("finished") / "out"
    return shutil.copytree(once("cli-finished", make), own)


def test_help_names_every_command_and_needs_no_torch():
    code = (
        "import sys; from compressor.commands import invoke; invoke(['--help']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'onnxruntime')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize(("words", "name"), [([], "doctor"), (["study"], "curve")])
def test_a_bare_command_shows_its_commands(words, name, capsys):
    assert run(words) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert f"\n  {name} " in shown.out
    assert "..." not in shown.out.partition("Commands:")[2]  # no description is cut


def test_help_has_an_example_and_panels(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["run", "--help"]) == 0
    text = capsys.readouterr().out
    headings = [x for x in text.splitlines() if x[:1].isalpha()]
    panels = ["Data", "Method", "Budget", "Recovery", "Export", "Measurement", "Gate", "General"]
    assert [x.rstrip(":").split()[0] for x in headings[1:]] == ["Example", "Model", *panels]
    assert "list[" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_examples_of_the_help_are_right_but_for_their_files(tmp_path, monkeypatch, capsys):
    """Nothing is wrong with the options; the model, or the artifact, is not there."""
    monkeypatch.chdir(tmp_path)
    group: Any = typer.main.get_command(application())
    commands = [*group.commands.values(), *group.commands["study"].commands.values()]
    examples = [x.epilog for x in commands if x.epilog]
    assert len(examples) >= 18
    for shown in examples:
        assert run(shlex.split(shown)[1:]) == 4, shown


def test_stdout_is_the_result_alone(inputs, finished):
    """The same command again: everything is done; -q leaves stderr empty."""
    done = compress(*run_options(inputs), "-o", finished, "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("dense") >= 1


def test_the_gate_exits_with_1_exactly_when_a_rule_is_not_met(finished):
    report = finished / "report.json"
    met = compress("gate", report, "--max-metric-drop", "accuracy=100", "-v")
    assert met.returncode == 0
    assert met.stderr.startswith("took ")
    missed = compress("gate", report, "--min-speedup", "1000@4")
    assert (missed.returncode, missed.stderr) == (1, "")
    assert missed.stdout.startswith("FAILED  ")
    assert run(["gate", str(report), "--max-metric-drop", "bleu=1"]) == 4
    assert run(["gate", str(report), "--max-metric-drop", "accuracy"]) == 2


@pytest.mark.parametrize(
    ("arguments", "status", "id", "message"),
    [
        ("run -o x -m no/model --keep 0.5 --calibration x.tsv", 4, "", "no/model"),
        ("run -o x -m BERT --keep 0.5 --calibration BAD", 4, "label-unknown", "bad.tsv:2"),
        ("run -o x --frobnicate", 2, "command-line-invalid", "--frobnicate"),
        ("report nothing.json -o x", 4, "file-missing", "nothing.json"),
    ],
)
def test_errors_have_a_status_an_id_and_one_sentence(
    arguments, status, id, message, inputs, tmp_path, monkeypatch, capsys
):
    (bad := tmp_path.parent / "bad.tsv").write_text("text\tlabel\nw5\tLABEL_9\n", "utf-8")
    files = {"BERT": inputs["model"], "BAD": str(bad)}
    words = [files.get(word, word) for word in arguments.split()]
    done = compress(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    monkeypatch.chdir(tmp_path)
    assert run([*words, "--json"]) == status
    failure = json.loads(capsys.readouterr().out)
    assert failure["exit_status"] == status
    assert failure["id"] == (id or failure["id"])
    assert list(tmp_path.iterdir()) == []


def test_single_steps_do_what_run_does(inputs, finished, tmp_path, output_of):
    scores, pruned = tmp_path / "scores.json", tmp_path / "pruned"
    common = ["-m", inputs["model"], "--calibration", inputs["calibration"], "--device", "cpu"]
    assert output_of("score", *common, "-o", scores).startswith("second-order: ")
    repair = ["--keep", "0.5", "--recover", "reconstruct"]
    output_of("prune", *common, *repair, "--scores", scores, "-o", pruned)
    heads = [json.loads((d / "units.json").read_text())["kept"] for d in (pruned, finished)]
    assert heads[0] == heads[1]
    output_of("export", "-m", pruned, "-o", pruned)
    graphs = [(d / "onnx" / "model.onnx").read_bytes() for d in (pruned, finished)]
    assert graphs[0] == graphs[1]
    shown = output_of("evaluate", pruned, finished, "--test", inputs["test"], "--json")
    first, second = json.loads(shown)["artifacts"]
    assert first["quality"] == second["quality"]
    assert all(c["difference"] == 0 for c in second["comparisons"])
    # As in a gate: that no answer changed on a few rows does not show that none would.
    assert all(low < 0 < high for low, high in (c["interval"] for c in second["comparisons"]))
    timed = ["--test", inputs["test"], "-b", "2", "--bench-seconds", "0.05"]
    assert "CPUExecutionProvider" in output_of("bench", pruned, finished, *timed)


def test_a_written_recipe_runs_from_any_directory(inputs, tmp_path, monkeypatch, output_of):
    """Also one of a run whose files were named from where it was started."""
    names = {x: Path(inputs[x]) for x in ("model", "calibration", "test")}
    monkeypatch.chdir(names["model"].parent)
    relative = {name: os.path.relpath(path) for name, path in names.items()}
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    rows = ["--calibration", relative["calibration"], "--test", relative["test"]]
    options = ["--device", "cpu", "--keep", "0.5", "--no-bench", "-o", out]
    text = output_of("run", "-m", relative["model"], *rows, *options)
    *_, report, advice, command = text.rstrip().splitlines()
    assert report == f"Report: {out / 'report.html'}"
    assert advice.startswith("Next: Measure how fast it is")
    assert shlex.split(command) == [
        "compress", "run", "-c", str(out / "recipe.yaml"), "-o", "NEW", "--bench"
    ]  # fmt: skip
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    output_of(*shlex.split(command)[1:], "-b", "1", "--bench-seconds", "0.05")
    kept = [json.loads((d / "units.json").read_text())["kept"] for d in (out, Path("NEW"))]
    assert kept[0] == kept[1]


def test_inspect_shows_what_units_cost(inputs, output_of):
    data = json.loads(output_of("inspect", inputs["model"], "--json"))
    text = output_of("inspect", inputs["model"])
    assert "1 x 4 = 4 heads of 8" in text
    assert "1 x 48 = 48 neurons" in text
    assert f"{data['shapes'][0]['fixed_share']:.1%} at 16x16" in text
    lines = [line.strip() for line in text.splitlines() if line.startswith("    compress run ")]
    assert lines == [suggested["command"] for suggested in data["suggestions"]]
    words, deeper = map(shlex.split, lines)
    assert words[:6] == ["compress", "run", "-m", inputs["model"], "-t", "classification"]
    assert "reconstruct+distill" not in words
    assert "reconstruct+distill" in deeper
    share = float(words[words.index("--macs") + 1])
    assert share > data["shapes"][0]["least_share"]
    # All units may go.
    assert data["shapes"][0]["least_share"] == pytest.approx(data["shapes"][0]["fixed_share"])
    assert TASKS["classification"].first_runs.untrained.text in " ".join(text.split())


def test_reports_can_be_written_again(finished, tmp_path, output_of):
    formats = ["--format", "html", "--format", "junit", "--plots"]
    output_of("report", finished / "report.json", "-o", tmp_path, *formats)
    assert {"report.html", "junit.xml", "units.png"} <= {p.name for p in tmp_path.iterdir()}


def test_doctor_knows_this_environment(monkeypatch, output_of):
    data = json.loads(output_of("doctor", "--json"))
    assert data["providers"]["cpu"].startswith("works")
    assert data["engines"]["pytorch"].startswith(data["versions"]["torch"])
    monkeypatch.setitem(sys.modules, "openvino", None)  # its import fails
    *lines, last = output_of("doctor").splitlines()
    (line,) = (line for line in lines if " absent: " in line)
    assert line.startswith("openvino ")
    assert "pip install 'openvino>=" in line
    assert last == "no problems found"


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(inputs, tmp_path):
    """To the end, where a gate is not met, which still leaves the artifact."""
    out = tmp_path / "out"
    options = [*run_options(inputs), "-o", out, "--min-speedup", "1000", "--json"]
    stopped = compress(*options, fault="SIGINT")
    assert stopped.returncode == 130
    assert "the same command goes on from what is saved" in stopped.stderr
    again = compress(*options)
    assert again.returncode == 1, again.stderr
    assert "done before" in again.stderr
    assert json.loads(again.stdout)["output"] == str(out)


def test_the_demo_runs_both_bundled_models_and_tells_what_each_gains(
    tmp_path, monkeypatch, output_of
):
    """Of runs that give a made-up report."""
    ran = []

    def made_up(recipe, directory, *arguments):
        ran.append((Path(recipe.model.path), directory.name, Path(recipe.data.test)))
        return translator_report()

    monkeypatch.setattr("compressor.pipeline.run.run", made_up)
    *_, first, second = output_of("demo", "-o", tmp_path / "out").strip().split("\n\n")
    model, _, test = example.help_desk()
    assert ran == [(model, "classifier", test), (example.model(), "translator", example.test())]
    assert (first[:16], second[:16]) == ("The classifier, ", "The translator, ")
    assert "keeps 72 of 144 heads (50%)" in " ".join(first.split())


LAYERS, WIDTH, NEURONS, TOKENS = 3, 32, 48, 60


def test_a_classifiers_parts(tmp_path):
    found = inspect_checkpoint(open_checkpoint(str(toy.checkpoint(tmp_path, "bert"))))
    parts = {part.name: part for part in found.parts}
    # Four projections with biases, but the output's stays; likewise up and down.
    assert parts["encoder_self"].parameters == LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH)
    assert parts["encoder_ffn"].parameters == LAYERS * (2 * WIDTH * NEURONS + NEURONS)
    assert parts["embeddings"].parameters == (TOKENS + 40 + 2) * WIDTH  # positions, token types
    # Its tokenizer gives 32 tokens at most.
    assert [(x.batch_size, x.source_tokens) for x in found.shapes] == [(16, 16), (16, 32)]
    for position, (batch, tokens) in enumerate([(16, 16), (16, 32)]):
        rows = batch * tokens
        heads = (LAYERS - 1) * (4 * rows * WIDTH * WIDTH + 2 * rows * tokens * WIDTH)
        neurons = (LAYERS - 1) * 2 * rows * WIDTH * NEURONS
        # The last layer: keys and values of all tokens, and the rest of the first of each row.
        heads += 2 * rows * WIDTH * WIDTH + 2 * batch * WIDTH * WIDTH + 2 * rows * WIDTH
        neurons += 2 * batch * WIDTH * NEURONS
        rest = batch * (WIDTH * WIDTH + WIDTH * LABELS)
        total = heads + neurons + rest
        shape = found.shapes[position]
        assert shape.fixed_share == pytest.approx(rest / total)
        # Every head may go, and of 48 neurons the last 16, which are no group of 32, may too.
        assert shape.least_share == pytest.approx(rest / total)
        assert parts["encoder_self"].macs_share[position] == pytest.approx(heads / total)
        assert parts["encoder_ffn"].macs_share[position] == pytest.approx(neurons / total)
        assert parts["other"].macs_share[position] == pytest.approx(rest / total)


@pytest.mark.parametrize("name", BUILDERS)
def test_parts_add_up_to_the_whole(name: str, tmp_path):
    found = inspect_checkpoint(open_checkpoint(str(toy.checkpoint(tmp_path, name))))
    assert sum(part.parameters for part in found.parts) == found.parameters
    assert all(part.parameters > 0 for part in found.parts if part.name != "vocabulary")
    for position in range(len(found.shapes)):
        assert sum(part.macs_share[position] for part in found.parts) == pytest.approx(1)


def test_a_checkpoint_that_hands_on_fewer_tokens_says_so_and_counts_them(tmp_path, output_of):
    """5 and 2 tenths: of 16 tokens the layers get 16, 8 and 4, since 3.2 are rounded up."""

    def cut(layers):
        gone = [("encoder_tokens.0", unit) for unit in range(5, 10)]
        gone += [("encoder_tokens.1", unit) for unit in range(2, 10)]
        return Mask.full(layers).with_tokens().without(gone)

    pruned = toy.pruned(toy.classifier(tmp_path / "dense", "bert"), tmp_path / "pruned", cut)
    data = json.loads(output_of("inspect", pruned, "--json"))
    assert data["handed_on"] == [5, 2]
    line = "Hands on 50 and 20% of a row's tokens from layer to layer, as the multiply-adds count"
    assert line in output_of("inspect", pruned).splitlines()
    square, rows, batch = WIDTH * WIDTH, {n: 16 * n for n in (16, 8, 4)}, 16
    heads = neurons = 0
    for received, left in ((16, 8), (8, 4)):
        # All tokens attend; output projection and feed-forward part see those that go on.
        heads += 3 * rows[received] * square + 2 * rows[received] * received * WIDTH
        heads += rows[left] * square
        neurons += 2 * rows[left] * WIDTH * NEURONS
    heads += 2 * rows[4] * square + 2 * rows[4] * WIDTH + 2 * batch * square
    neurons += 2 * batch * WIDTH * NEURONS
    total = heads + neurons + batch * (square + WIDTH * LABELS)
    shares = {part["name"]: part["macs_share"][0] for part in data["parts"]}
    assert "encoder_tokens" not in shares
    assert shares["encoder_self"] == pytest.approx(heads / total)
    assert shares["encoder_ffn"] == pytest.approx(neurons / total)


def test_tokens_are_scored_listed_pruned_recorded_and_shown(inputs, tmp_path, output_of):
    dense, scores = toy.classifier(tmp_path / "dense", "bert"), tmp_path / "scores.json"
    rows = ["-m", dense, "--calibration", inputs["calibration"]]
    text = output_of("score", *rows, "--prune", "tokens", "-o", scores)
    written = json.loads(scores.read_text())["scores"]
    assert {name: len(values) for name, values in written.items()} == {
        "encoder_tokens.0": 10, "encoder_tokens.1": 10,
    }  # fmt: skip
    for name, values in written.items():
        (line,) = (line for line in text.splitlines() if line.startswith(name))
        assert line.split()[1:] == [f"{value:.3g}" for value in values]
        assert values == sorted(values, reverse=True)  # the most significant tenth counts most
    out = tmp_path / "out"
    text = output_of("prune", "-m", dense, "--scores", scores, "--keep", "tokens=0.5", "-o", out)
    record = json.loads((out / "units.json").read_text())
    kept = [len(record["kept"][name]) for name in written]
    assert sum(kept) == 10
    assert record["units"]["encoder_tokens.1"] == 10
    assert record["scores"] == written
    left = [kept[0], min(kept)]
    shares = f"hands on {10 * left[0]} and {10 * left[1]}% of a row's tokens from layer to layer"
    assert shares in text
    assert "encoder_tokens" not in text
    data = json.loads(output_of("inspect", out, "--json"))
    assert data["handed_on"] == left
    # Scores of heads alone say nothing of tokens.
    output_of("score", *rows, "-o", scores)
    given = ["prune", "-m", str(dense), "--scores", str(scores), "--keep", "tokens=0.5"]
    done = compress(*given, "-o", tmp_path / "other")
    assert done.returncode == 2
    assert (
        "the scores are not of tokens; make them with `compress score --prune all`" in done.stderr
    )


def test_a_dense_checkpoint_hands_on_all_tokens(tmp_path, output_of):
    dense = toy.classifier(tmp_path / "dense", "bert")
    assert json.loads(output_of("inspect", dense, "--json"))["handed_on"] == []
    assert "Hands on" not in output_of("inspect", dense)


def test_a_pruned_checkpoint_has_the_units_that_are_left(tmp_path):
    pruned = toy.pruned(toy.classifier(tmp_path / "dense", "bert"), tmp_path / "pruned")
    found = inspect_checkpoint(open_checkpoint(str(pruned)))
    assert all(shape.least_share is None for shape in found.shapes)
    heads, neurons, *_ = found.parts
    assert (heads.units, neurons.units) == ([3, 2, 0], [47, 46, 0])
    assert neurons.parameters == (47 + 46) * (2 * WIDTH + 1)
