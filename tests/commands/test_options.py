"""Options and recipes: flags over a file over the defaults; what is wrong is refused first."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
import yaml

import compressor
from compressor.commands import invoke as run
from compressor.errors import InputError, UsageError
from compressor.model.sublayers import Scores
from compressor.options.requests import make_gate, make_recipe
from compressor.tasks import TASKS
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises

HUGE, LONG = "99999999999999999999", "9" * 5000
RUN = "run -m m --calibration c --test t -o out"
SCORE = "score -m m -o out"
PRUNE = "prune -m m --scores s -o out --keep 1"
# The command line, the error's id, and a piece of the message.
REFUSED = [
    ("run -o out --keep 0.5", "option-missing", "--model and --calibration; add them"),
    ("run", "option-missing", "--penalty), --output and --calibration; add them"),
    ("prune -m m", "option-missing", "a budget (--keep or --remove), --scores and --output"),
    (RUN, "option-missing", "--keep"),
    (f"{RUN} --keep 1 --speedup 1.3", "options-exclude-each-other", "--keep and --speedup"),
    (f"{RUN} --keep 1 --at-batch 8", "option-without-use", "--speedup"),
    (f"{RUN} --keep 1 --recover distill --distill-beams 5", "option-without-use", "--distill-text"),
    (f"{RUN} --keep 1 --recover distill --distill-augment 2", "option-without-use",
     "--distill-text"),
    (f"{RUN} --keep 1 --recover distill --distill-text t --distill-augment -1", "option-invalid",
     "--distill-augment"),
    (f"{RUN} --keep 1 --no-bench -b 1", "option-without-use", "--batch-size 1 is for --bench"),
    # A default that is typed is a wish too.
    (f"{SCORE} --calibration c --normalize layer", "option-without-use", "--method taylor or"),
    (f"{PRUNE} --calibration c", "option-without-use", "--recover reconstruct"),
    (f"{RUN} --macs 1", "option-invalid", "--macs 1: must be below 1"),
    (f"{RUN} --keep 1 --resamples 99", "option-invalid", "must be 100 or more"),
    (f"{RUN} --keep 1 --recover recontruct", "option-invalid", "did you mean 'reconstruct'?"),
    ("summarize out", "command-unknown", "`compress predict DIR`"),
    ("study hads", "command-unknown", "did you mean 'heads'?"),
    ("predict out --jsonl -o x.npy", "option-without-use", "--jsonl"),
    (f"{RUN} --keep 1 --lengths long", "option-invalid", "must be 'data' or a whole number"),
    (f"{RUN} --keep 1 --threads {HUGE}", "option-invalid", "--threads"),
    (f"bench a b --test t -b {LONG}", "option-invalid", "--batch-size"),
    ("study training --checkpoint m --test t -o out", "option-invalid", "--checkpoint"),
    ("study curve -m m --test t -o out --points 0,200", "option-invalid", "--points"),
    (f"{RUN} --keep 1 --method tayler", "option-invalid", "did you mean 'taylor'?"),
    (f"{RUN} --keep 1 --recover none+distill", "option-invalid", "--recover"),
    (f"{RUN} --keep 1 --method subset --train-weights all --gate-epochs 1", "too-few-epochs",
     "at least 2"),
    (f"{RUN} --keep 1 -c /dev/zero", "recipe-unreadable", "/dev/zero"),
    (f"{SCORE} --method magnitude --compare taylor", "calibration-missing", "--method taylor"),
    ("gate r.json", "rule-missing", "--max-metric-drop"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "problem", "detail"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_is_refused_first(words, problem, detail, tmp_path, monkeypatch):
    """Nothing is opened or written."""
    monkeypatch.chdir(tmp_path)
    scores = Scores({}, "random", "random", {}).to_json()
    Path("s").write_text(json.dumps({**scores, "weights": ""}), "utf-8")
    error = InputError if problem == "recipe-unreadable" else UsageError
    with raises(error, problem) as caught:
        invoke(*shlex.split(words))
    assert detail in str(caught.value)
    assert len(str(caught.value)) < 5000
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_odd_names_and_lost_directories_are_refused_first(capsys, tmp_path, monkeypatch):
    odd = os.fsdecode(b"a\xff/b")
    assert run(["run", "-m", "x", "--calibration", odd, "-o", "out", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["id"] == "argument-not-utf8"
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert run(["--version"]) == 3


MINIMAL = {"model": "a", "calibration": "c", "keep": "0.5"}


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


@pytest.mark.parametrize("sizes", ["1,4", "'1, 4, 1'", "['1', 4]"])
def test_flags_win_over_the_file_and_the_file_over_defaults(write, sizes):
    """Lists can be written as on the command line."""
    lines = ("model: a", "keep: 0.5", "calibration: f", "header: false", f"batch_size: {sizes}")
    file = write("\n".join(lines))
    made = make_recipe(file, calibration="c", seed=None)
    assert (made.data.calibration, made.seed, made.data.header) == ("c", 0, False)
    assert made.throughput.batch_size == [1, 4]
    assert make_recipe(file, header=True).data.header


def test_a_written_recipe_names_files_by_whole_paths(write, tmp_path, monkeypatch):
    """Files that are there; hub ids and what is no file stay as they were typed."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    for name in ("a,b.tsv", "src.en", "tgt.de", "more.txt"):
        Path(name).touch()
    distill = {"recover": "distill", "distill_text": "more.txt"}
    made = make_recipe(**MINIMAL | {"model": "acme/model", "calibration": "src.en,tgt.de"},
                       test="a,b.tsv", **distill)  # fmt: skip
    here = os.getcwd()
    file = write(made.to_yaml())
    monkeypatch.chdir("/")
    again = make_recipe(file)
    assert again.data.calibration == f"{here}/src.en,{here}/tgt.de"
    assert again.data.test == f"{here}/a,b.tsv"
    assert again.recovery[0].text == f"{here}/more.txt"
    assert (again.model.path, made.data.test) == ("acme/model", "a,b.tsv")
    # Where files lie does not make another run of it.
    assert made.options_by_file_names()["test"] == again.options_by_file_names()["test"]
    long = "x" * 5000
    assert make_recipe(**MINIMAL, test=long).options["test"] == long


@pytest.mark.parametrize(
    ("file", "flags", "budget"),
    [
        ({"keep": [0.5, 0.8]}, {"remove": ["12"]}, {"keep": [], "remove": ["12"]}),
        ({"penalty": 0.5}, {"max_drop": "0"}, {"max_drop": 0}),
        ({"macs": 0.5, "prune": "heads"}, {"speedup": 1.3}, {"speedup": 1.3, "prune": "heads"}),
        ({"speedup": 1.3, "at_batch": 4, "floor": 2}, {"macs": "0.5,0.3"}, {"macs": [0.5, 0.3]}),
    ],
)
def test_a_budget_flag_replaces_the_files_budget(write, file, flags, budget):
    """What both budgets have stays, and so do the rules of the gate."""
    rows = {"calibration": "rows.tsv", "test": "test.tsv"}
    text = yaml.safe_dump({"model": "a", **rows, "max_metric_drop": "bleu=1", **file})
    recipe = make_recipe(write(text), **flags)
    assert {name: getattr(recipe.budget, name) for name in budget} == budget
    assert recipe.gate.max_metric_drop == ["bleu=1"]


def test_another_choice_leaves_out_what_the_file_says_of_the_first(write):
    file = write(make_recipe(**MINIMAL, method="taylor", per="example", threads=1).to_yaml())
    again = make_recipe(file, method="fisher", bench=False, recover="none")
    assert (again.method.name, again.throughput, again.recovery) == ("fisher", None, [])


WRITTEN = [
    {"keep": ["cross=0.5"], "max_metric_drop": ["bleu=0.5"], "lengths": "32"},
    {"penalty": 0.1, "method": "hard-concrete", "train_weights": "all"},
    {"speedup": 1.5, "at_batch": 4, "recover": "distill+reconstruct", "distill_epochs": 3},
]


@pytest.mark.parametrize("options", WRITTEN)
def test_a_written_recipe_says_everything_and_is_read_the_same(write, options):
    decided = {"device": "cpu", "task": TASKS["translation"], "tokens": False}
    recipe = make_recipe(model="m", calibration="c", test="t", **options).resolved(**decided)
    assert make_recipe(write(recipe.to_yaml())).resolved(**decided) == recipe
    given = {name: value for name, value in recipe.options.items() if value not in (None, [])}
    assert given.keys() >= options.keys()


def test_what_the_device_and_the_task_decide():
    options = {**MINIMAL, "recover": "distill"}
    recipe = make_recipe(**options)
    launched = {"device": "cpu", "recovery": [recipe.recovery[0].with_precision("bf16")]}
    task = TASKS["translation"]
    written = recipe.model_copy(update=launched).resolved("cpu", task, tokens=True).options
    assert (written["device"], written["distill_precision"]) == ("cpu", "bf16")
    on_gpu = recipe.recovery[0].on_device("cuda").for_task(task)
    assert (on_gpu.precision, on_gpu.batch) == ("bf16", 32)
    learns = make_recipe(**options, distill_text="t").recovery[0]
    assert [learns.on_device(x).batch for x in ("cuda", "cpu")] == [512, None]
    said = make_recipe(**options, distill_precision="bf16", distill_batch=8).recovery[0]
    assert said.on_device("cpu") == said == said.for_task(task)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"macs": 0.5}, "all both both"),
        ({"speedup": 2}, "all both both"),
        ({"max_drop": 0.5, "test": "t"}, "all both both"),
        ({"macs": 0.5, "prune": "both"}, "both both both"),
        ({"macs": 0.5, "prune": "all"}, "all all all"),
        ({"macs": 0.5, "floor": "tokens=0.5"}, "all all all"),
        ({"macs": 0.5, "method": "taylor"}, "both both both"),
        ({"keep": 0.5}, "None None None"),
    ],
)
def test_tokens_go_by_default_where_they_can(options, where):
    """On a CPU, from models that do with fewer; not on a GPU, nor from other models."""
    recipe, task = make_recipe(model="m", calibration="c", **options), TASKS["classification"]
    cases = [("cpu", True), ("cuda", True), ("cpu", False)]
    found = [recipe.resolved(device, task, tokens=tokens).options for device, tokens in cases]
    assert " ".join(str(x.get("prune")) for x in found) == where


def test_options_in_python_are_named_like_their_flags():
    both = make_recipe(model=Path("a"), calibration=Path("c"), keep=0.5, precision="int8")
    assert both == make_recipe(model="a", calibration="c", keep=["0.5"], precision=["int8"])
    with raises(UsageError, "option-unknown") as caught:
        compressor.run(model="a", calibratoin="c", macs=0.5, output="never")
    assert "did you mean 'calibration'?" in str(caught.value)
    assert not Path("never").exists()


def test_trained_weights_are_not_repaired_by_default():
    """A learning rate goes to all that trains weights."""
    trained = {**MINIMAL, "method": "subset", "train_weights": "all"}
    assert make_recipe(**trained).recovery == []
    learned = make_recipe(**trained, learning_rate=0.5, recover="distill")
    assert (learned.method.learning_rate, learned.recovery[0].learning_rate) == (0.5, 0.5)


def test_the_gate_takes_its_rules_from_a_recipe(write):
    file = write(make_recipe(**MINIMAL, max_macs=0.5, verify=False).to_yaml())
    assert make_gate(file).gate.max_macs == 0.5
    assert make_gate(file).verify
    assert make_gate(file, max_macs=0.3).gate.max_macs == 0.3


RECIPES = [
    ("frobnicate: 3", "option-unknown", "--help"),
    ("distill-epochs: 3", "option-unknown", "did you mean 'distill_epochs'?"),
    (f"seed: {'a' * 100_000}", "option-invalid", "--seed"),
    ("precision: bf16", "precision-unknown", "bf16"),
    ("lengths: yes", "option-invalid", "--lengths yes"),
    ("batch_size: [yes]", "option-invalid", "--batch-size"),
    ("method: fisher\nper: token", "option-without-use", "--method taylor or relevance"),
    ("recovery: [{name: distill}]", "recipe-nested", "`macs: 0.5`"),
    ("seed: &a 1\nthreads: *a", "recipe-not-yaml", "`macs: 0.5`"),
]


@pytest.mark.parametrize(("text", "problem", "detail"), RECIPES)
def test_wrong_recipes_are_refused(text, problem, detail, write):
    base = "".join(f"{n}: {x}\n" for n, x in MINIMAL.items() if f"{n}:" not in text)
    with raises(UsageError, problem) as caught:
        make_recipe(write(f"{base}{text}\n"))
    assert detail in str(caught.value)
    assert len(str(caught.value)) < 5000
