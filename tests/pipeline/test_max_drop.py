"""`--max-drop 1`: what is delivered is within the limit on rows that the search did not see.

Exporting a graph takes seconds, so most tests make up what models would answer; a classifier and a
translator do everything for real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU
from scipy.stats import norm

from compressor.errors import InputError, UsageError
from compressor.options.recipe import Recipe
from compressor.report.schema import load_report
from compressor.runtime import Translator
from compressor.selection import judge as judging
from compressor.tasks import TASKS, Rows, split_rows
from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.helpers.errors import raises
from tests.helpers.runs import Progress, finished_steps, recipe_for
from tests.helpers.runs import chosen_by_run as choose

pytestmark = pytest.mark.slow


def drop_recipe(model: Path, tmp_path: Path, *, rows: int = 24, **options) -> Recipe:
    test = toy.labels_file(tmp_path / "rows.tsv", rows=rows, seed=1)
    values = {
        "keep": [], "test": str(test), "method": "magnitude", "prune": "heads", "floor": "1",
        "bench": False,
    }  # fmt: skip
    return recipe_for(model, tmp_path, **values | options)


class Models:
    """Stands in for models that are built and run; the dense one has every row right.

    Args:
        wrong: share of rows that a model with so many heads has wrong, of the rows that are held
            out (True) or searched on.
    """

    def __init__(self, wrong: Callable[[int, bool], float], monkeypatch) -> None:
        self.wrong = wrong
        self.seen: list[Rows] = []
        self.built: list[int] = []
        monkeypatch.setattr(judging, "export_saved", self.export)
        monkeypatch.setattr(judging, "answers", self.answers)
        monkeypatch.setattr(judging, "answer_rows", lambda dense, rows, *rest: rows.targets)

    def export(self, saved, scored, *, directory, opened, costs) -> None:
        assert (directory / "model.safetensors").is_file()
        self.built.append(saved.recovered.mask.count("heads"))

    def answers(self, directory, rows, device, num_beams, progress) -> list[str]:
        held_out = rows is not self.seen[0] if self.seen else False
        self.seen.append(rows)
        count = round(self.wrong(self.built[-1], held_out) * len(rows.targets))
        other = {"LABEL_0": "LABEL_1"}
        return [
            other.get(label, "LABEL_0") if number < count else label
            for number, label in enumerate(rows.targets)
        ]


@pytest.fixture
def classifier(checkpoints) -> Path:
    """Of 12 heads."""
    return checkpoints["bert"]


def test_the_search_builds_few_models_and_a_stopped_one_goes_on(classifier, tmp_path, monkeypatch):
    recipe, out = drop_recipe(classifier, tmp_path, max_drop="30"), tmp_path / "out"
    models = Models(lambda kept, held_out: float(kept < 8), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        choose(recipe, out, Progress("trying 6 of 12 heads"))
    assert finished_steps(out) == {"score": 1, "try_cut": 2}
    choice = choose(recipe, out)
    assert models.built == [3, 8, 6, 7]
    assert choice.mask.count("heads") == 8
    judged = {probe.kept: probe.accepted for probe in choice.search.probes}
    assert judged == {3: False, 8: True, 6: False, 7: False}
    assert all(probe.comparison.metric == "accuracy" for probe in choice.search.probes)
    assert [(look.kept, look.accepted) for look in choice.search.looks] == [(8, True)]
    assert choice.search.proven
    assert "4 models built and run" in choice.text
    with raises(UsageError, "output-of-another-run") as caught:
        choose(drop_recipe(classifier, tmp_path, max_drop="10"), out)
    assert "max_drop=30.0, now it is 10.0" in str(caught.value)
    # Rules for the gate are not part of what was run.
    more = drop_recipe(classifier, tmp_path, max_drop="30", max_metric_drop=["accuracy=1"])
    assert choose(more, out).mask == choice.mask


def test_candidates_tell_the_tokens_that_they_hand_on(classifier, tmp_path, monkeypatch):
    """Of three layers, of which the last hands on nothing; nothing is lost, so all go that may."""
    Models(lambda kept, held_out: 0.0, monkeypatch)
    tokens = {"prune": "tokens", "floor": "tokens=0.5", "method": "second-order"}
    choice = choose(drop_recipe(classifier, tmp_path, max_drop="30", **tokens), tmp_path / "out")
    (probe,), (look,) = choice.search.probes, choice.search.looks
    assert probe.handed_on == look.handed_on == list(choice.mask.handed_on()) == [5, 5]
    assert probe.kept == 12


def test_rows_that_prove_nothing_let_the_measured_drop_decide(classifier, tmp_path, monkeypatch):
    """Every head that goes costs a point. Of 300 rows, 150 cannot show a drop to be below 3.

    A search that accepts what the rows do not show to be worse would deliver a larger drop here:
    even with 5 points lost, the interval reaches up to -2.
    """
    Models(lambda kept, held_out: (12 - kept) / 100, monkeypatch)
    progress = Progress()
    recipe = drop_recipe(classifier, tmp_path, rows=300, max_drop="3")
    search = choose(recipe, tmp_path / "out", progress).search
    assert (search.rows.rows, search.held_out, search.proven) == (150, 150, False)
    (look,) = search.looks
    assert look.kept == 9  # four of 150 wrong, 2.67 %; with 8 heads six are, 4 %
    assert look.comparison.difference == pytest.approx(-100 * 4 / 150)
    assert look.bound < -3
    refused = next(probe for probe in search.probes if probe.kept == 8)
    assert refused.comparison.interval[1] >= -3
    # The normal approximation with the spread of a row at a loss of 3 %.
    needed = norm.isf(0.025) ** 2 * 0.03 * 0.97 / (0.03 - 4 / 150) ** 2
    assert look.rows_needed == pytest.approx(needed, rel=0.01)
    assert any("9 of 12 heads" in text and "not proven" in text for text in progress.messages)
    (warning,) = (text for text in progress.messages if text.startswith("warning: 300 test rows"))
    assert "about 21,000 are needed for this model" in warning  # both parts, rounded up
    assert 20_000 < 2 * needed < 21_000


def test_held_out_rows_refuse_what_only_the_searched_ones_bore(classifier, tmp_path, monkeypatch):
    """The search goes down to 7 heads; on the held-out rows, models below 9 lose everything."""
    models = Models(lambda kept, held_out: float(kept < (9 if held_out else 7)), monkeypatch)
    recipe, out = drop_recipe(classifier, tmp_path, max_drop="40"), tmp_path / "out"
    progress = Progress()
    choice = choose(recipe, out, progress)
    assert models.built == [3, 8, 6, 7, 10]  # 3 to 7 are the search, 10 is half of the way from 8
    assert [(look.kept, look.accepted) for look in choice.search.looks] == [
        (7, False), (8, False), (10, True),
    ]  # fmt: skip
    assert [look.confidence for look in choice.search.looks] == [0.975, 0.9875, 0.99375]
    assert choice.mask.count("heads") == 10
    assert any("on the held-out rows: 7 of 12 heads" in text for text in progress.messages)


def test_a_translator_into_chinese_is_searched_through_the_shell(tmp_path):
    """Its second encoder layer adds nothing and may go; all else is needed for the sentences.

    With sacreBLEU's tokenizer for Chinese, that is: the usual one would give 0 to every model.
    """
    chinese = toy.chinese_translator(tmp_path / "marian")
    rows, out = tmp_path / "rows.tsv", tmp_path / "out"
    done = compress(
        "run", "-m", chinese, "-o", out, "--calibration", rows, "--test", rows, "--resamples", 100,
        "--no-bench", "--recover", "none", "--max-drop", 0.5, "--drop-proof", "measured",
        "--multiple", "heads=4", "--prune", "heads", "--floor", 0, "--max-metric-drop", "bleu=100",
        "--device", "cpu", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gate_met"] is True
    assert "sacreBLEU's tokenizer zh, since the references' letters are 100%" in done.stderr
    report = load_report(out / "report.json")
    search, (variant,) = report.search, report.variants
    assert "searching on 16 of the 32 test rows" in done.stderr
    assert {name: len(kept) for name, kept in variant.kept.items()} == {
        "encoder_self.0": 4, "encoder_self.1": 0, "decoder_self.0": 4, "cross.0": 4,
    }  # fmt: skip
    # The artifact, built anew, is as its look said on the held-out rows.
    searched, held_out = split_rows(TASKS["translation"].read_rows(rows), 0)
    assert (search.rows.sha256, report.test.sha256) == (searched.sha256, held_out.sha256)
    look = next(seen for seen in search.looks if seen.position == search.delivered)
    assert variant.comparisons[0] == look.comparison
    answers = Translator(out).translate(held_out.sources)
    theirs = BLEU(tokenize="zh").corpus_score(answers, [held_out.targets])
    assert variant.quality.metrics["bleu"] == pytest.approx(theirs.score)
    assert theirs.score == pytest.approx(100)
    assert "tok:zh" in variant.quality.signatures["bleu"]


def test_what_the_metric_cannot_see_is_no_budget(classifier, tmp_path, monkeypatch):
    """A dense model that gives every text the same label; nothing is built."""
    models = Models(lambda kept, held_out: 0.0, monkeypatch)
    same = lambda dense, rows, *rest: ["LABEL_0"] * len(rows.targets)  # noqa: E731
    monkeypatch.setattr(judging, "answer_rows", same)
    with raises(InputError, "metric-at-floor"):
        choose(drop_recipe(classifier, tmp_path, max_drop="3"), tmp_path / "out")
    assert models.built == []
