"""Recipes: flags over file over defaults, and nothing unknown passes."""

from __future__ import annotations

import pytest
import yaml

from compressor.errors import InputError, UsageError
from compressor.pipeline.recipe import Recipe, build_recipe, parse_lengths


def write(tmp_path, text: str):
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    file = write(tmp_path, "model: a\nkeep: 0.5\nseed: 3\nbatch_size: [2, 8]\nfloor: 2\n")
    recipe = build_recipe({"seed": 4, "model": None, "keep": None}, file)
    assert (recipe.model, recipe.keep, recipe.seed) == ("a", ["0.5"], 4)
    assert (recipe.batch_size, recipe.floor, recipe.steps) == ([2, 8], "2", 1)


@pytest.mark.parametrize("text", ["1,4", "'1, 4'", "[1, 4]", "['1', 4]"])
def test_batch_sizes_can_be_written_as_on_the_command_line(tmp_path, text):
    assert build_recipe({}, write(tmp_path, f"model: a\nbatch_size: {text}\n")).batch_size == [1, 4]
    assert build_recipe({}, write(tmp_path, "model: a\nbatch_size: 4\n")).batch_size == [4]


def test_a_flag_can_switch_a_files_value_off(tmp_path):
    file = write(tmp_path, "model: a\nbench: true\n")
    assert build_recipe({"bench": False}, file).bench is False


def test_a_budget_flag_replaces_the_files_budget(tmp_path):
    file = write(tmp_path, "model: a\nkeep: [0.5, 0.8]\n")
    recipe = build_recipe({"remove": ["12"]}, file)
    assert (recipe.keep, recipe.remove) == ([], ["12"])


@pytest.mark.parametrize(
    ("file", "flags", "left"),
    [
        ("penalty: 0.5", {"keep": ["40"]}, {"keep": ["40"]}),
        ("penalty: 0.5", {"max_drop": ["0.3"]}, {"max_drop": ["0.3"]}),
        ("keep: 0.5\nmax_drop: bleu=1", {"penalty": 0.1}, {"penalty": 0.1, "max_drop": ["bleu=1"]}),
        ("max_drop: [0.3, bleu=1]", {"penalty": 0.1}, {"penalty": 0.1, "max_drop": ["bleu=1"]}),
        ("speedup: 1.3", {"penalty": 0.1}, {"penalty": 0.1}),
    ],
)
def test_a_penalty_is_a_budget_too(tmp_path, file, flags, left):
    """One sort of budget on the command line replaces another in the file; rules stay."""
    recipe = build_recipe(flags, write(tmp_path, f"model: a\n{file}\n"))
    assert recipe == Recipe.model_validate({"model": "a"} | left)


@pytest.mark.parametrize(
    "flags", [{"batch_size": [1]}, {"lengths": 32}, {"bench_seconds": 1.0}, {"threads": 1}]
)
def test_options_of_throughput_do_not_go_with_no_bench(tmp_path, flags):
    (name,) = flags
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is for throughput"):
        build_recipe({"model": "a", "bench": False} | flags)
    file = write(tmp_path, Recipe(model="a", **flags).to_yaml())
    assert not build_recipe({"bench": False}, file).bench  # a file has all options


def test_an_empty_recipe_says_nothing(tmp_path):
    assert build_recipe({"model": "a"}, write(tmp_path, "# to come\n")) == Recipe(model="a")


def test_writing_and_reading_gives_the_same_recipe(tmp_path):
    recipe = Recipe(model="m", keep=["cross=0.5"], max_drop=["bleu=0.5"], lengths=32)
    file = write(tmp_path, recipe.to_yaml())
    assert build_recipe({}, file) == recipe
    assert set(yaml.safe_load(recipe.to_yaml())) == set(Recipe.model_fields)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("model: a\nkepe: 0.5\n", UsageError, "unknown option 'kepe'"),
        ("model: a\nsteps: 0\n", UsageError, "--steps 0"),
        ("model: a\nmethod: [x]\n", UsageError, "--method"),
        ("model: a\nseed: -1\n", UsageError, "--seed -1"),
        ("model: a\nseed: 4294967296\n", UsageError, "--seed 4294967296"),
        ("model: a\nbatch_size: [0]\n", UsageError, "positive"),
        ("model: a\nbatch_size: 1;4\n", UsageError, "--batch-size"),
        ("model: a\ntest_rows: 4\n", UsageError, "--test-rows 4: .* equal to 8"),
        ("keep: 0.5\n", UsageError, "give --model"),
        ("- a\n", UsageError, "option: value"),
        ("model: [\n", UsageError, "is not YAML: .*; write lines of the form `option: value`"),
    ],
)
def test_bad_recipes(text, error, message, tmp_path):
    with pytest.raises(error, match=message):
        build_recipe({}, write(tmp_path, text))


@pytest.mark.parametrize(("trained", "recover"), [("none", "reconstruct"), ("all", "none")])
def test_trained_weights_are_not_repaired_by_default(trained, recover):
    given = {"model": "m", "method": "subset", "train_weights": trained}
    assert build_recipe(given).recover == recover
    assert build_recipe(given | {"recover": "distill"}).recover == "distill"


def test_missing_recipe(tmp_path):
    with pytest.raises(InputError, match="cannot read recipe"):
        build_recipe({}, tmp_path / "none.yaml")


def test_lengths():
    assert parse_lengths("data") == "data"
    assert parse_lengths("32") == 32
    assert parse_lengths(None) is None
    for bad in ("0", "-3", "long"):
        with pytest.raises(UsageError, match="--lengths"):
            parse_lengths(bad)
