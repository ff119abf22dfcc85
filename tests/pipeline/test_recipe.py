"""Recipes: flags over file over defaults, and nothing unknown passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from compressor.errors import InputError, UsageError
from compressor.request.recipe import PruneRequest, Recipe, ScoreRequest, make_recipe
from tests.helpers.errors import raises
from tests.helpers.recipes import recipe, request

MINIMAL = "model: {path: a}\nbudget: {name: counts, keep: 0.5}\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", ["1,4", "'1, 4'", "[1, 4]", "['1', 4]"])
def test_batch_sizes_can_be_written_as_on_the_command_line(tmp_path, text):
    found = recipe(write(tmp_path, MINIMAL + f"throughput:\n  batch_size: {text}\n"))
    assert found.throughput.batch_size == [1, 4]
    found = recipe(write(tmp_path, MINIMAL + "throughput: {batch_size: 4}\n"))
    assert found.throughput.batch_size == [4]


@pytest.mark.parametrize(
    ("file", "flags", "budget", "rules"),
    [
        ("budget: {name: counts, keep: [0.5, 0.8]}", {"remove": ["12"]}, ("counts", ["12"]), []),
        ("budget: {name: penalty, penalty: 0.5}", {"remove": ["40"]}, ("counts", ["40"]), []),
        ("budget: {name: penalty, penalty: 0.5}", {"max_drop": "0.3"}, ("max-drop", 0.3), []),
        (
            "budget: {name: counts, keep: 0.5}\ngate: {max_metric_drop: bleu=1}",
            {"penalty": 0.1},
            ("penalty", 0.1),
            ["bleu=1"],
        ),
        (
            "budget: {name: max-drop, max_drop: 0.3}\ngate: {max_metric_drop: bleu=1}",
            {"max_metric_drop": ["bleu=2"]},
            ("max-drop", 0.3),
            ["bleu=2"],
        ),
        (
            "budget: {name: counts, remove: 3}\ngate: {max_metric_drop: bleu=1}",
            {"max_drop": "0.3", "max_metric_drop": ["chrf=2"]},
            ("max-drop", 0.3),
            ["chrf=2"],
        ),
        ("budget: {name: speedup, speedup: 1.3}", {"penalty": 0.1}, ("penalty", 0.1), []),
        ("budget: {name: counts, remove: 3}", {"speedup": 1.3}, ("speedup", 1.3), []),
    ],
)
def test_a_budget_flag_replaces_the_files_budget_and_leaves_its_rules(
    tmp_path, file, flags, budget, rules
):
    found = recipe(write(tmp_path, f"model: {{path: a}}\n{file}\n"), **flags)
    name, value = budget
    field = {"counts": "remove"}.get(name, name.replace("-", "_"))
    assert (found.budget.name, getattr(found.budget, field)) == (name, value)
    assert found.gate.max_metric_drop == rules


def test_a_budget_without_a_number_of_units_is_refused(tmp_path):
    with raises(UsageError, "budget-missing"):
        recipe(write(tmp_path, "model: {path: a}\nbudget: {name: counts}\n"))
    with raises(UsageError, "option-missing") as caught:
        recipe(model="a")
    assert "--keep" in str(caught.value)


@pytest.mark.parametrize("drop", ["-0.1", "nan", "inf"])
def test_a_drop_is_a_number_from_zero_up(drop):
    with raises(UsageError, "option-invalid"):
        recipe(model="a", max_drop=drop)


def test_a_value_of_any_length_is_told_in_a_message_that_can_be_read(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"seed: {'a' * 100_000}\nmodel: {{path: a}}\n", encoding="utf-8")
    with raises(UsageError, "option-invalid") as caught:
        recipe(path, calibration="c", keep=["0.5"])
    told = str(caught.value)
    assert len(told) < 5000
    assert str(path) in told
    assert "aaa … aaa" in told
    assert "should be a valid integer" in told


def test_options_in_python_are_named_like_their_flags():
    both = make_recipe(model="a", calibration="c", keep="heads=0.5,neurons=0.5", precision="int8")
    assert both == make_recipe(
        model="a", calibration="c", keep=["heads=0.5,neurons=0.5"], precision=["int8"]
    )
    with raises(UsageError, "option-unknown") as caught:
        make_recipe(model="a", calibratoin="c")
    assert "--calibration" in str(caught.value)


def test_a_run_has_one_budget():
    with raises(UsageError, "options-exclude-each-other"):
        recipe(model="a", keep=["0.5"], speedup=1.3)
    with raises(UsageError, "option-without-use"):
        recipe(model="a", keep=["0.5"], at_batch=8)


@pytest.mark.parametrize(
    "flags", [{"batch_size": "1"}, {"lengths": "32"}, {"bench_seconds": 1.0}, {"threads": 1}]
)
def test_options_of_throughput_do_not_go_with_no_bench(tmp_path, flags):
    with raises(UsageError, "option-without-use"):
        recipe(model="a", keep=["1"], bench=False, **flags)
    file = write(tmp_path, recipe(model="a", keep=["1"], **flags).to_yaml())
    assert recipe(file, bench=False).throughput is None  # a file has all options


def test_an_empty_recipe_says_nothing(tmp_path):
    given = {"model": "a", "keep": ["1"]}
    assert recipe(write(tmp_path, "# to come\n"), **given) == recipe(**given)


@pytest.mark.parametrize(
    "options",
    [
        {"keep": ["cross=0.5"], "max_metric_drop": ["bleu=0.5"], "lengths": "32"},
        {"keep": ["1"], "method": "taylor", "per": "example", "recover": "none", "bench": False},
        {"penalty": 0.1, "method": "hard-concrete", "train_weights": "all"},
        {"speedup": 1.5, "at_batch": 4, "recover": "reconstruct+distill", "distill_epochs": 3},
        {"max_drop": "0.3", "precision": ["fp32,int8"]},
    ],
)
def test_writing_and_reading_gives_the_same_recipe(tmp_path, options):
    written = recipe(model="m", **options)
    file = write(tmp_path, written.to_yaml())
    assert recipe(file) == written
    assert set(yaml.safe_load(written.to_yaml())) == set(Recipe.model_fields)


@pytest.mark.parametrize(
    ("text", "problem", "detail"),
    [
        ("model: {path: a}\nbudgte: {name: counts}\n", "option-unknown", "'budget'"),
        (MINIMAL + "evaluation: {num_baems: 3}\n", "option-unknown", "'num_beams'"),
        (
            "model: {path: a}\nbudget: {name: counts, keep: 1, steps: 0}\n",
            "option-invalid",
            "--steps",
        ),
        (MINIMAL + "method: {name: x}\n", "name-unknown", "second-order"),
        (MINIMAL + "method: {name: tayler}\n", "name-unknown", "did you mean 'taylor'?"),
        (MINIMAL + "method: {name: fisher, per: token}\n", "option-unknown", "taylor"),
        (MINIMAL + "recovery: [{name: distil}]\n", "name-unknown", "did you mean 'distill'?"),
        (MINIMAL + "seed: -1\n", "option-invalid", "--seed"),
        (MINIMAL + "seed: 4294967296\n", "option-invalid", "--seed"),
        (MINIMAL + "throughput: {batch_size: [0]}\n", "option-invalid", "--batch-size"),
        (MINIMAL + "throughput: {batch_size: 1;4}\n", "option-invalid", "--batch-size"),
        (MINIMAL + "throughput: {seconds: .inf}\n", "option-invalid", "--bench-seconds"),
        (MINIMAL + "data: {test: t.tsv, test_rows: 4}\n", "option-invalid", "--test-rows"),
        (MINIMAL + "data: {test_rows: 9}\n", "option-needs-another", "--test"),
        ("budget: {name: counts, keep: 0.5}\n", "option-missing", "model"),
        ("- a\n", "recipe-not-yaml", "sections"),
        ("model: [\n", "recipe-not-yaml", "sections"),
    ],
)
def test_bad_recipes(text, problem, detail, tmp_path):
    with raises(UsageError, problem) as caught:
        recipe(write(tmp_path, text))
    assert detail in str(caught.value)


@pytest.mark.parametrize(("trained", "repairs"), [("none", ["reconstruct"]), ("all", [])])
def test_trained_weights_are_not_repaired_by_default(trained, repairs):
    given = {"model": "m", "keep": ["1"], "method": "subset", "train_weights": trained}
    assert [step.name for step in recipe(**given).recovery] == repairs
    assert [step.name for step in recipe(**given, recover="distill").recovery] == ["distill"]


def test_a_learning_rate_goes_to_all_that_trains_weights():
    given = {"model": "m", "keep": ["1"], "learning_rate": 0.5, "recover": "distill"}
    assert recipe(**given).recovery[0].learning_rate == 0.5
    learned = recipe(**given, method="subset", train_weights="all")
    assert (learned.method.learning_rate, learned.recovery[0].learning_rate) == (0.5, 0.5)
    assert recipe(**given, method="subset").method.learning_rate is None
    with raises(UsageError, "option-without-use"):
        recipe(model="m", keep=["1"], learning_rate=0.5)
    with raises(UsageError, "too-few-epochs"):
        recipe(**given, method="subset", train_weights="all", gate_epochs=1)


def test_missing_recipe(tmp_path):
    with raises(InputError, "recipe-unreadable"):
        recipe(tmp_path / "none.yaml")


def test_source_lengths_are_data_or_a_number_of_tokens():
    for text, value in (("data", "data"), ("32", 32)):
        assert recipe(model="m", keep=["1"], lengths=text).throughput.lengths == value
    for bad in ("0", "-3", "long"):
        with raises(UsageError, "option-invalid"):
            recipe(model="m", keep=["1"], lengths=bad)


def test_single_steps_take_only_what_they_use():
    assert request(ScoreRequest, model="m").method.name == "second-order"
    assert request(PruneRequest, model="m", keep=["1"]).recovery == []
    with raises(UsageError, "name-unknown"):
        request(ScoreRequest, model="m", method="subset")
