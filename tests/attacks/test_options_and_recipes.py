"""Absurd values of options and recipes: status 2, or 4 for files, before anything starts."""

from __future__ import annotations

import copy
import json
import os
import threading
import time
from pathlib import Path

import pytest
import yaml

from compressor.commands import invoke
from compressor.errors import UsageError
from compressor.pipeline.stream_lines import Lines
from compressor.request.recipe import build_recipe
from compressor.tasks.labels import Labels
from tests.helpers.errors import raises

HUGE = "99999999999999999999"
RUN = ["run", "-m", "m", "--test", "t.tsv", "--keep", "0.5", "-o", "out"]
BENCH = ["bench", "a", "b", "--test", "t.tsv", "-o", "out"]


@pytest.mark.parametrize(
    "words",
    [
        [*RUN, "--threads", "100000"],
        [*RUN, "--threads", HUGE],
        [*RUN, "--resamples", "1000000000"],
        [*RUN, "--bench-seconds", "inf"],
        [*RUN, "--bench-seconds", "nan"],
        [*RUN, "--bench-seconds", "1e9"],
        [*RUN, "--batch-size", "1,1"],
        [*RUN, "--num-beams", "100000"],
        [*RUN, "--recover", "distill", "--distill-text", "t", "--distill-beams", "5000"],
        [*RUN, "--target-length", HUGE],
        [*RUN, "--lengths", HUGE],
        [*RUN, "--steps", "1000000"],
        [*RUN, "--seed", HUGE],
        [*RUN, "--seed", "9" * 5000],
        [*RUN, "--keep", "9" * 5000],
        [*RUN, "--floor", "9" * 5000],
        [*RUN, "--recover", "distill", "--distill-epochs", HUGE],
        [*RUN, "--recover", "distill", "--distill-hidden", "inf"],
        [*BENCH, "-b", HUGE],
        [*BENCH, "-b", "9" * 5000],
        [*BENCH, "-b", "1,1"],
        [*BENCH, "-b", "0"],
        [*BENCH, "--threads", "100000"],
        ["translate", "a", "--threads", "100000"],
        ["translate", "a", "-b", HUGE],
        ["translate", "a", "--num-beams", HUGE],
        ["translate", "a", "--max-new-tokens", HUGE],
        ["translate", "a", "--chunk-lines", HUGE],
        ["translate", "a", "--batch-tokens", HUGE],
        ["classify", "a", "--top-k", HUGE],
    ],
)
def test_absurd_options_are_refused_before_anything_starts(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke(words) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert len(told) < 12_000
    assert not list(tmp_path.iterdir())


BASE = {
    "model": {"path": "m"},
    "data": {"calibration": "c.tsv", "test": "t.tsv"},
    "method": {"name": "taylor"},
    "budget": {"name": "counts", "keep": ["0.5"]},
    "recovery": [{"name": "distill"}],
    "export": {"precision": ["fp32"]},
    "evaluation": {"resamples": 100},
    "throughput": {"batch_size": [1]},
    "gate": {"max_metric_drop": ["bleu=1"], "min_speedup": ["1.1"]},
}
STRANGE = [
    5, -1, 1.5, float("inf"), float("nan"), True, [None], [5], [[]], [{}], {"name": 5},
    {"name": None}, {"name": [1]}, {5: 5}, {None: 1}, 10**40, [True], ["x"], "x", [["a"]],
    {"a": {"b": [1]}},
]  # fmt: skip
PLACES = [(section,) for section in BASE] + [
    (section, option) for section, values in BASE.items() if isinstance(values, dict)
    for option in values
]  # fmt: skip
# What stands in these places may be many things, or is looked at with the model.
FREE = {("model", "path"), ("data", "calibration"), ("data", "test"), ("budget", "keep")}
HARMLESS = {("throughput", "batch_size"): [5, [5]], ("gate", "min_speedup"): [5, 1.5, [5]]}


@pytest.mark.parametrize("flags", [{}, {"--recover": "distill"}, {"--macs": "0.5"}])
@pytest.mark.parametrize("place", [place for place in PLACES if place not in FREE], ids=".".join)
def test_values_of_other_types_in_a_recipe_are_refused(place, flags, tmp_path):
    file = tmp_path / "recipe.yaml"
    for value in [None, *STRANGE] if len(place) > 1 else STRANGE:
        if value in HARMLESS.get(place, []) and not isinstance(value, bool):
            continue
        recipe = copy.deepcopy(BASE)
        section = recipe if len(place) == 1 else recipe[place[0]]
        section[place[-1]] = value
        file.write_text(yaml.safe_dump(recipe), "utf-8")
        replaced = ("--recover" in flags and place[0] == "recovery") or (
            "--macs" in flags and place[0] == "budget"
        )
        try:
            found = build_recipe(flags, file)
        except UsageError:
            continue
        else:
            assert replaced or place[0] == "gate", (value, found)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("seed: " + "9" * 5000, "recipe-not-yaml"),
        ("[" * 5000, "recipe-too-deep"),
        ("[" * 100_000, "recipe-too-deep"),
        ("{a: " * 60_000, "recipe-too-deep"),
        ("- " * 100_000, "recipe-too-deep"),
        ("a: &a [1]\nb: *a\n", "recipe-not-yaml"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "recipe-not-yaml"),
        ("seed: !!python/object/apply:os.getcwd []", "recipe-not-yaml"),
        ("5", "recipe-not-yaml"),
        ("- a", "recipe-not-yaml"),
        ("\x00", "recipe-not-yaml"),
        ('model: {path: "a\\udcff"}', "recipe-not-yaml"),
    ],
)
def test_a_recipe_that_is_none_is_told(text, id, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(text, "utf-8")
    began = time.monotonic()
    with raises(UsageError, id) as caught:
        build_recipe({"--model": "m", "--keep": ["0.5"], "--test": "t"}, file)
    assert time.monotonic() - began < 5
    assert str(file) in str(caught.value)


def test_a_recipe_that_has_a_repair_twice_is_refused(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("recovery: [{name: reconstruct}, {name: reconstruct}]", "utf-8")
    with raises(UsageError, "recovery-twice"):
        build_recipe({"--model": "m", "--keep": ["0.5"], "--test": "t"}, file)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "-m", "m", "--test", "t.tsv", "--keep", "0.5", "-o", "out", "-c", "PIPE"],
        ["report", "PIPE", "-o", "out"],
        ["gate", "PIPE", "--max-metric-drop", "bleu=1"],
        ["prune", "-m", "m", "--scores", "PIPE", "--keep", "0.5", "-o", "out"],
    ],
)
def test_a_pipe_without_a_writer_ends_with_status_4(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("compressor.storage.input_files.WRITER_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    os.mkfifo("PIPE")
    began = time.monotonic()
    assert invoke(words) == 4
    assert time.monotonic() - began < 20
    assert "nobody writes" in capsys.readouterr().err


def test_a_pipe_with_a_writer_is_read(tmp_path):
    pipe = tmp_path / "lines"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("one\ntwo\n", "utf-8"))
    writer.start()
    assert list(Lines([pipe])) == ["one", "two"]
    writer.join()


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_devices_are_no_recipes(device, capsys):
    assert invoke([*RUN, "-c", device]) == 4
    assert device in capsys.readouterr().err


def test_a_label_of_thousands_of_digits_is_told(tmp_path):
    from compressor.errors import InputError

    with raises(InputError, "label-unknown") as caught:
        Labels(["bad", "good"]).name_of("1" * 5000, "rows.tsv:2")
    assert "rows.tsv:2" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": ' + "9" * 5000 + "}", "NaN", "5"])
def test_a_line_of_json_that_is_no_row_is_told_by_its_number(line, tmp_path):
    from compressor.errors import InputError
    from compressor.tasks import TASKS

    file = tmp_path / "rows.jsonl"
    good = json.dumps({"text": "a", "label": "b"})
    Path(file).write_text(f"{good}\n{line}\n", "utf-8")
    with pytest.raises(InputError) as caught:
        TASKS["classification"].read_rows(str(file), labels=["a", "b"], minimum=2)
    assert f"{file}:2" in str(caught.value)
