"""`compress run --candidates`: a table counted in the dense model's answers, and what uses it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from compressor.errors import UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.run import run
from compressor.pipeline.verification import verify_directory
from compressor.runtime import Translator
from compressor.selection import judge as judging
from compressor.steps.results import Throughput
from compressor.throughput import timer
from tests.helpers import toy
from tests.helpers.candidates import table_by_a_loop
from tests.helpers.command_line import compress
from tests.helpers.errors import raises
from tests.helpers.files import packed
from tests.helpers.runs import check_manifest, recipe_for
from tests.helpers.scores import timing

K, FREQUENT = 2, 10
LINES = toy.sentences(70, 5)


@pytest.fixture(scope="module")
def made(once) -> Path:
    """In `out` what the shell makes of a translator of many words with candidates, in int8, too."""

    def make(folder: Path) -> None:
        dense = toy.first_layers(toy.many_words(folder / "whole-marian"), folder / "marian")
        rows, text = toy.pairs_file(folder / "rows.tsv"), folder / "text.txt"
        text.write_text("\n".join(LINES) + "\n", encoding="utf-8")
        done = compress(
            "run", "--model", dense, "--calibration", rows, "--test", rows, "-o", folder / "out",
            "--keep", "0.5", "--recover", "distill", "--distill-text", text,
            "--distill-epochs", "1", "--candidates", K, "--precision", "fp32,int8",
            "--batch-size", "4", "--bench-seconds", "0.02", "--threads", "1",
            "--resamples", "100", "--device", "cpu", "--floor", "0",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    return once("pipeline-candidates", make)


@pytest.mark.slow
def test_the_table_is_counted_in_translations(made):
    """Of 70 lines each 20th is held out."""
    out = made / "out"
    tokenizer = open_checkpoint(str(made / "marian")).tokenizer
    answers = (out / ".compress/translations.txt").read_text("utf-8").splitlines()
    pairs = [pair for n, pair in enumerate(zip(LINES, answers, strict=True)) if n % 20 != 19]
    sources, targets = (tokenizer(list(texts)).input_ids for texts in zip(*pairs, strict=True))
    table = np.load(out / "onnx/candidates.npy", allow_pickle=False)
    np.testing.assert_array_equal(table, table_by_a_loop(sources, targets, 1200, K))
    assert table.dtype == np.int32


@pytest.mark.slow
def test_a_run_writes_checks_measures_and_reports_candidates(made):
    out = made / "out"
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    dense, *pruned = report["dense"], *report["variants"]
    assert dense["candidates"] is None
    named = {model["name"]: model for model in pruned}
    for name in ("keep-0.5", "keep-0.5-int8"):
        facts = named[name]["candidates"]
        assert (facts["per_token"], facts["frequent"]) == (K, FREQUENT)
        assert (facts["pairs"], facts["rows"]) == (67, 3)
        assert 0 <= facts["missed_by_batch"] <= facts["missed_by_row"] < 1
        assert facts["per_row"] == 64
        checks = {check["name"]: check for check in named[name]["checks"]}
        precision = name.removeprefix("keep-0.5-") if name != "keep-0.5" else "fp32"
        assert (
            "64 to 64 candidates" in checks[f"{precision} candidates score as all tokens"]["detail"]
        )
    checks = {check["name"]: check for check in named["keep-0.5"]["checks"]}
    assert "greedy tokens of" in checks["ONNX generates candidates as PyTorch"]["detail"]
    text = (out / "report.md").read_text(encoding="utf-8")
    assert (
        "2 a source token and the 10 most frequent ones, by 67 answers of the dense model; of the"
        in text
    )
    check_manifest(out)
    verified = verify_directory(out)
    assert {"ONNX generates candidates as PyTorch", "ONNX generates as PyTorch"} <= {
        check.name for check in verified.checks
    }
    translator = Translator(out)
    assert translator._graph.candidates is not None
    assert Translator(out / ".compress/dense")._graph.candidates is None


class _Looked(Exception):
    """What is measured was seen."""


SPEEDUP = {"speedup": 1.2, "at_batch": 4, "prune": "neurons", "multiple": "32"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "few"),
    [(SPEEDUP, "candidates"), (SPEEDUP, "target text"), ({"max_drop": "100"}, "candidates")],
)
def test_searches_measure_what_is_delivered(made, tmp_path, monkeypatch, budget, few):
    """The dense model, and those by which units are weighed, score all tokens."""
    all_tokens: dict[str, bool] = {}  # by the name of what is measured

    def look(directory: Path, name: str = "tried") -> None:
        translator = Translator(directory)
        if few == "candidates":
            all_tokens[name] = translator._graph.candidates is None
        else:
            all_tokens[name] = translator._graph.scored == 1200

    def time(subjects, **settings):
        for subject in subjects:
            look(subject.directory, subject.name)
        if "choice-1" in all_tokens:
            raise _Looked
        rows = [timing(1.1, subject.name) for subject in subjects]
        facts = {"provider": "none", "device": "cpu", "precision": "fp32", "threads": 1}
        return Throughput(**facts, lengths="made up", rows=rows)

    def answer(directory, *arguments):
        look(directory)
        raise _Looked

    monkeypatch.setattr(timer, "benchmark", time)
    monkeypatch.setattr(judging, "answers", answer)
    text = str(made / "text.txt")
    options = {"recover": "distill", "distill_text": text, "distill_steps": 1, "candidates": K}
    if few == "target text":
        options = {"target_text": text}
    recipe = recipe_for(made / "marian", tmp_path, keep=[], **budget, **options)
    with pytest.raises(_Looked):
        run(recipe, tmp_path / "out")
    last = "choice-1" if budget is SPEEDUP else "tried"
    assert all_tokens.pop(last) is False
    assert all(all_tokens.values())
    assert len(all_tokens) == (3 if budget is SPEEDUP else 0)


@pytest.mark.parametrize("recover", ["reconstruct", "distill"])
def test_candidates_need_a_text(tmp_path, recover):
    with raises(UsageError, "candidates-without-text") as caught:
        recipe_for(Path("marian"), tmp_path, candidates=K, recover=recover)
    assert "--distill-text FILE" in str(caught.value)


def test_so_many_candidates_that_all_tokens_are_scored_are_refused(checkpoints, tmp_path):
    """A toy model has 60 tokens."""
    text = {"recover": "distill", "distill_text": str(packed(tmp_path / "text.txt", "w3\n"))}
    recipe = recipe_for(checkpoints["marian"], tmp_path, candidates=3, **text)
    with raises(UsageError, "candidates-too-many") as caught:
        run(recipe, tmp_path / "out")
    assert "the 15 most frequent tokens" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_classifiers_have_no_candidates(checkpoints, tmp_path):
    text = packed(tmp_path / "text.txt", "w3 w4\n")
    recipe = recipe_for(
        checkpoints["bert"], tmp_path, candidates=K, recover="distill", distill_text=str(text)
    )
    with raises(UsageError, "option-without-use") as caught:
        run(recipe, tmp_path / "out")
    assert "--candidates 2 is for" in str(caught.value)
