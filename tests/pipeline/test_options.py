"""Sections and flags: what is declared once is parsed, checked and explained everywhere."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from compressor.errors import UsageError
from compressor.options.assemble import assemble
from compressor.options.declare import Section, flags_of, option
from tests.helpers.errors import raises


class Source(Section):
    path: str = option(flag="--input", short="-i", help="A file.")
    rows: int | None = option(None, ge=8, help="Use only the first N.")
    header: bool = option(True, help="It has one.")
    last: int | None = option(None, needs="rows", help="Not before this row.")


class Plain(Section):
    name: Literal["plain"] = "plain"


class Weighted(Section):
    name: Literal["weighted"] = "weighted"
    power: float = option(1.0, gt=0, help="Exponent.")
    kind: Literal["row", "column"] = option("row", help="row or column.")


class Fixed(Section):
    name: Literal["fixed"] = "fixed"
    count: list[str] = option(selects=True, help="How many.")
    floor: str = option("1", help="At least.")


class Measured(Section):
    name: Literal["measured"] = "measured"
    ratio: float = option(gt=1, selects=True, help="How much.")
    floor: str = option("1", help="At least.")


class Clean(Section):
    name: Literal["clean"] = "clean"


class Train(Section):
    name: Literal["train"] = "train"
    epochs: int = option(5, ge=1, flag="--train-epochs", help="How long.")


class Timing(Section):
    seconds: float = option(3.0, gt=0, help="How long.")


_NAMED = Field(discriminator="name")


class Request(Section):
    source: Source
    method: Annotated[Plain | Weighted, _NAMED] = option(Plain(), flag="--method", help="How.")
    budget: Annotated[Fixed | Measured, _NAMED]
    after: list[Annotated[Clean | Train, _NAMED]] = option(
        [{"name": "clean"}], flag="--after", help="What follows."
    )
    timing: Timing | None = option(Timing(), flag="--time", help="Measure, or not.")
    seed: int = option(0, ge=0, help="Of everything random.")


GIVEN = {"--input": "a", "--count": ["3"]}


def build(file: dict | None = None, **flags: object) -> Request:
    return assemble(Request, {f"--{name.replace('_', '-')}": v for name, v in flags.items()}, file)


def test_every_field_of_every_section_has_a_flag():
    flags = flags_of(Request)
    assert set(flags) == {
        "--input", "--rows", "--header", "--last", "--method", "--power", "--kind", "--count",
        "--floor", "--ratio", "--after", "--train-epochs", "--time", "--seconds", "--seed",
    }  # fmt: skip
    assert (flags["--input"].short, flags["--input"].kind) == ("-i", str)
    assert flags["--count"].is_list
    assert flags["--time"].kind is bool
    assert len(flags["--floor"].places) == 2
    assert flags["--power"].help == "Exponent. Default: 1."


def test_flags_win_over_the_file_and_the_file_over_defaults():
    file = {"source": {"path": "f", "rows": 9}, "budget": {"name": "fixed", "count": ["1"]}}
    found = build(file, input="a", seed=4, rows=None)
    assert (found.source.path, found.source.rows, found.seed) == ("a", 9, 4)
    assert found.timing == Timing()
    assert file["source"]["path"] == "f"


@pytest.mark.parametrize("value", [True, False])
def test_a_switch_works_both_ways(value):
    file = {"timing": None if value else {"seconds": 1.0}}
    assert (build(file, time=value, input="a", count=["3"]).timing is not None) is value


def test_a_flag_chooses_the_variant_that_has_it():
    assert build(input="a", ratio=1.5).budget == Measured(ratio=1.5)
    file = {"budget": {"name": "fixed", "count": ["3"], "floor": "2"}}
    assert build(file, input="a", ratio=1.5).budget == Measured(ratio=1.5, floor="2")
    assert build(file, input="a", floor="0").budget == Fixed(count=["3"], floor="0")


def test_another_method_keeps_what_it_has_of_the_files_options():
    file = {"method": {"name": "weighted", "power": 2.0}}
    assert build(file, method="weighted", **{"input": "a", "count": ["3"]}).method.power == 2.0
    assert build(file, method="plain", **{"input": "a", "count": ["3"]}).method == Plain()


def test_lists_of_sections_are_written_with_plus():
    assert build(**{"input": "a", "count": ["3"]}).after == [Clean()]
    assert build(input="a", count=["3"], after="none").after == []
    both = build(input="a", count=["3"], after="clean+train", train_epochs=2)
    assert both.after == [Clean(), Train(epochs=2)]
    file = {"after": [{"name": "train", "epochs": 9}]}
    assert build(file, input="a", count=["3"]).after == [Train(epochs=9)]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"ratio": 1.5, "count": ["3"]}, "options-exclude-each-other"),
        ({"count": ["3"], "power": 2.0}, "option-without-use"),
        ({"count": ["3"], "train_epochs": 2}, "option-without-use"),
        ({"count": ["3"], "time": False, "seconds": 1.0}, "option-without-use"),
        ({"count": ["3"], "last": 9}, "option-without-use"),
        ({"count": ["3"], "rows": 4}, "option-invalid"),
        ({"ratio": 1.0}, "option-invalid"),
        ({"count": ["3"], "method": "weigthed"}, "name-unknown"),
        ({"count": ["3"], "after": "trian"}, "name-unknown"),
        ({"count": ["3"], "after": "train+train"}, "name-twice"),
        ({"count": ["3"], "after": "none+train"}, "name-twice"),
        ({"count": ["3"], "method": "weighted", "kind": "rwo"}, "option-invalid"),
        ({}, "option-missing"),
    ],
)
def test_wrong_flags_are_refused(flags, problem):
    with raises(UsageError, problem):
        build(input="a", **flags)


def test_a_flag_without_use_says_what_it_is_for():
    with raises(UsageError, "option-without-use") as caught:
        build(input="a", count=["3"], power=2.0)
    assert "--power 2" in str(caught.value)
    assert "--method weighted" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "suggestion"),
    [
        ({"method": "weigthed"}, "'weighted'"),
        ({"after": "trian"}, "'train'"),
        ({"method": "weighted", "kind": "colunm"}, "'column'"),
    ],
)
def test_mistyped_names_are_corrected(flags, suggestion):
    with pytest.raises(UsageError) as caught:
        build(input="a", count=["3"], **flags)
    assert f"did you mean {suggestion}?" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "problem", "detail"),
    [
        ({"source": {"path": "a", "rwos": 9}}, "option-unknown", "'rows'"),
        ({"metohd": {"name": "plain"}}, "option-unknown", "'method'"),
        ({"seconds": 2.0}, "option-unknown", "timing.seconds"),
        ({"method": {"name": "plain", "power": 2.0}}, "option-unknown", "weighted"),
        ({"method": {"name": "heavy"}}, "name-unknown", "plain, weighted"),
        ({"method": "plain"}, "option-invalid", "method"),
        ({"seed": -1}, "option-invalid", "--seed"),
        ({"source": {"path": "a", "last": 3}}, "option-needs-another", "--rows"),
    ],
)
def test_wrong_files_are_refused(file, problem, detail):
    base = {"source": {"path": "a"}, "budget": {"name": "fixed", "count": ["3"]}}
    with raises(UsageError, problem) as caught:
        assemble(Request, {}, base | file, "recipe r.yaml")
    assert detail in str(caught.value)
    assert "r.yaml" in str(caught.value) or problem == "option-needs-another"


def test_requests_never_change():
    found = build(**{"input": "a", "count": ["3"]})
    with pytest.raises(ValueError, match="frozen"):
        found.seed = 3
