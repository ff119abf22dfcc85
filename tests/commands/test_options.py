"""Options that are wrong, or without an effect, are refused before anything is opened."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from compressor.errors import InputError, UsageError
from compressor.model.sublayers import Scores
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises

HUGE, LONG = "99999999999999999999", "9" * 5000
RUN = "run -m m --calibration c --test t -o out"
SCORE = "score -m m -o out"
PRUNE = "prune -m m --scores s -o out --keep 1"
STUDY = "-m m -o out --test t"
# The command line, the error's id, and a piece of the message.
REFUSED = [
    ("run -o out --keep 0.5", "option-missing", "--model"),
    (RUN, "option-missing", "--keep"),
    ("study agreement -m m --calibration c -o out", "option-missing", "--other"),
    (f"{RUN} --keep 1 --speedup 1.3", "options-exclude-each-other", "--keep and --speedup"),
    (f"{RUN} --keep 1 --at-batch 8", "option-without-use", "--speedup"),
    (f"{RUN} --keep 1 --method subset --per token", "option-without-use", "taylor or relevance"),
    (f"{RUN} --keep 1 --recover distill --distill-beams 5", "option-without-use", "--distill-text"),
    (f"{RUN} --keep 1 --no-bench -b 1", "option-without-use", "--batch-size 1 is for --bench"),
    (f"{SCORE} --method magnitude --text-column a", "option-without-use", "--text-column a"),
    # A default that is typed is a wish too.
    (f"{SCORE} --calibration c --normalize layer", "option-without-use", "--method taylor or"),
    (f"{SCORE} --method random --compare random", "option-without-use", "itself"),
    (f"{PRUNE} --calibration-rows 9", "option-without-use", "--calibration"),
    (f"{PRUNE} --calibration c", "option-without-use", "--recover reconstruct"),
    ("gate r.json --max-size-mb 5 --inconclusive pass", "option-without-use", "--inconclusive"),
    (f"study curve {STUDY} --ablate loss", "option-without-use", "--ablate"),
    (f"{RUN} --macs 1", "option-invalid", "--macs"),
    (f"{RUN} --max-drop nan", "option-invalid", "--max-drop"),
    (f"{RUN} --keep {LONG}", "option-invalid", "--keep"),
    (f"{RUN} --keep 1 --method subset --estimator x", "option-invalid", "gumbel"),
    (f"{RUN} --keep 1 --lengths long", "option-invalid", "'data' or Input should be a valid int"),
    (f"{RUN} --keep 1 --lengths {HUGE}", "option-invalid", "--lengths"),
    (f"{RUN} --keep 1 --threads 100000", "option-invalid", "--threads"),
    (f"{RUN} --keep 1 --seed 4294967296", "option-invalid", "--seed"),
    (f"bench a b --test t -b {LONG}", "option-invalid", "--batch-size"),
    ("study training --checkpoint m --test t -o out", "option-invalid", "--checkpoint"),
    (f"study curve {STUDY} --points 0,200", "option-invalid", "--points"),
    ("study roles -m m -o out --from-word sum", "option-invalid", "--from-word"),
    ("bench a b --test t -b 1,1", "batch-size-twice", "--batch-size"),
    (f"{RUN} --keep 1 --method tayler", "name-unknown", "did you mean 'taylor'?"),
    (f"{SCORE} --method random --compare subset", "name-unknown", "taylor"),
    (f"{RUN} --keep 1 --recover none+distill", "name-twice", "--recover"),
    (
        f"{RUN} --keep 1 --method subset --train-weights all --gate-epochs 1",
        "too-few-epochs", "at least 2",
    ),
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


@pytest.mark.parametrize(
    "words",
    [
        "classify x lines.txt ODD",
        "run -m x --calibration a.tsv --calibration ODD -o out",
    ],
)
def test_names_that_are_not_utf8_are_refused_before_anything_is_opened(words):
    odd = os.fsdecode(b"a\xff/b")
    with raises(InputError, "argument-not-utf8") as caught:
        invoke(*words.replace("ODD", odd).split())
    assert r"a\xff/b is not UTF-8" in str(caught.value)
