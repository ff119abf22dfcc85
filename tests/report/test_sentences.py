"""The conclusion, its warnings and the next step: what they say, and when."""

from __future__ import annotations

import math
import shlex

import pytest

from compressor.options.requests import make_recipe
from compressor.report import facts, numbers, render, sentences
from compressor.report.baseline import compare
from compressor.report.build_view import build_view
from compressor.report.card import render_card
from compressor.report.rules import check
from compressor.report.schema import Report
from compressor.report.terminal import short_table, summary
from compressor.steps.results import Outcome, SpeedSearch
from tests.helpers.report_samples import (
    accuracy_report,
    changed,
    classifier_report,
    int8_report,
    mixed_report,
    rules,
    tokens_report,
    translator_report,
    with_dense_int8,
    with_timing,
)
from tests.helpers.scores import cost_table


def one_model(report: Report, name: str = "heads-50") -> Report:
    """The report of one model and its builds alone."""
    variants = [v for v in report.variants if v.family == name]
    return report.model_copy(update={"variants": variants, "gate": []})


def gated(report: Report, name: str, *, rule: str = "min-speedup 2", verdict: str = "failed"):
    """The report with one rule's outcome."""
    met = verdict == "passed"
    outcome = Outcome(rule=rule, variant=name, met=met, message="", verdict=verdict)
    return report.model_copy(update={"gate": [outcome]})


def test_speed_size_and_quality_with_what_the_intervals_allow():
    report = one_model(translator_report())
    for batch in (1, 8, 32):
        gain = {"speedup": 2.6, "speedup_interval": (2.51, 2.94)}
        report = with_timing(report, "heads-50", batch, **gain)
    report = with_timing(report, "heads-50", 64, speedup=3.1, speedup_interval=(3.06, 3.58))
    smaller = report.dense.onnx_bytes / report.variants[0].onnx_bytes
    start = (
        f"heads-50 keeps 72 of 144 heads (50%): 2.6 to 3.1 times as fast and {smaller:.1f} times "
        "smaller at a loss of 0.31 BLEU (difference [-0.62, +0.01])"
    )
    alone = "; dense int8 alone "
    assert build_view(report).conclusion == f"{start}{alone}was not measured."
    # Dense int8 is 2.3 times as fast as dense; heads-50 0.993, 1.04, 1.151 and 1.163 times.
    assert build_view(with_dense_int8(report)).conclusion == (
        f"{start}; over the fastest dense build here (int8): 0.4 to 0.5 times{alone}is 2.3 times "
        "as fast and 4.0 times smaller at a loss of 0.07 BLEU (difference [-0.28, +0.13])."
    )


def test_the_gain_over_the_fastest_dense_build_is_that_of_the_rates():
    """And is told of the model's fastest build that keeps the quality, which has its name."""
    report = one_model(with_dense_int8(int8_report(0.3)))
    dense = [v for v in with_dense_int8(int8_report(0.3)).variants if v.family == "dense"]
    report = report.model_copy(update={"variants": [*report.variants, *dense]})
    rates = {(x.variant, x.batch_size): x.sentences_per_second for x in report.throughput.rows}
    gains = [rates["heads-50-int8", n] / rates["dense-int8", n] for n in (1, 8, 32, 64)]
    times = f"{min(gains):.2f} to {max(gains):.2f} times, by heads-50-int8"
    text = build_view(report).conclusion
    assert f"; over the fastest dense build here (int8): {times}; dense int8 alone" in text
    # At one batch size the dense model in float32 is faster than in int8.
    slow = with_timing(report, "dense-int8", 1, sentences_per_second=1.0)
    which = "(fp32 at batch 1 and int8 at batch 8, 32 and 64)"
    assert which in build_view(slow).conclusion
    # A build that loses quality does not count.
    lossy = one_model(int8_report(0.001))
    lossy = lossy.model_copy(update={"variants": [*lossy.variants, *dense]})
    timed = {"throughput": report.throughput}
    assert "by heads-50-int8" not in build_view(lossy.model_copy(update=timed)).conclusion


def test_the_conclusion_says_which_shares_of_the_tokens_are_handed_on():
    report = one_model(tokens_report(), "fewer")
    start = (
        "fewer keeps 8 of 16 heads (50%) and 48 of 64 neurons (75%), hands on 100, 70 and 30% of a "
        "row's tokens from layer to layer, and has 52% of the multiply-adds: 1.1 times smaller"
    )
    assert build_view(report).conclusion.startswith(start)
    # A long stack is not listed.
    assert numbers.shares([10] * 12) == "100, " * 10 + "100 and 100%"
    assert numbers.shares([10] * 12 + [4]) == "100 to 40%"


def test_models_that_hand_on_fewer_tokens_are_compared_by_their_work():
    """Both have the same heads; the one with fewer tokens is the smallest that loses nothing."""
    report = tokens_report()
    same = [
        variant.model_copy(update={"comparisons": [], "kept_neurons": report.dense.kept_neurons})
        for variant in report.variants
    ]
    report = report.model_copy(update={"variants": same})
    assert facts.headline(report).name == "fewest"


def test_few_rows_are_said_to_be_few_wherever_a_difference_is_judged():
    """150 rows, of which 12 were lost and 8 won: Tango's interval reaches over 6 points."""
    few, many = accuracy_report(12, 8, 150), accuracy_report(12, 8, 1500)
    assert not build_view(many).few_rows
    view = build_view(few)
    low, high = view.headline.build.difference.interval
    assert high - low > 2
    assert view.few_rows == (
        f"150 test rows are few: the interval of the difference in accuracy is [{low:+.2f}, "
        f"{high:+.2f}], so a loss of {-low:.2f} is not ruled out.",
    )
    for text in (render(few, "markdown"), render(few, "comment"), render_card(few, "half")):
        assert "no significant difference (few rows)" in text
        assert "150 test rows are few" in text
    assert "few rows" not in render(many, "comment")
    for report, is_said in ((few, True), (many, False)):
        (outcome,), (change, *_) = compare(report, report)
        assert change.note.endswith("few rows") is is_said
        assert outcome.message.endswith("few rows") is is_said


def test_a_difference_has_one_interval_in_report_and_gate():
    report = accuracy_report(60, 10, 1000)
    (outcome,) = check(report, rules(["accuracy=1"]))
    low, high = (-end for end in reversed(outcome.interval))
    shown = f"[{low:+.2f}, {high:+.2f}]"
    bootstrap = report.variants[0].comparisons[0].interval
    assert (low, high) != pytest.approx(bootstrap, abs=5e-3)
    view = build_view(report)
    assert (view.headline.build.difference.interval) == pytest.approx((low, high))
    texts = [view.conclusion, short_table(view), render(report, "badge")]
    for text in [*texts, render(report, "markdown"), render_card(report, "half")]:
        assert shown in text
    (compared,) = summary(view)["variants"][0]["comparisons"].values()
    assert compared["interval"] == pytest.approx([low, high])


def test_an_interval_that_reaches_below_one_is_no_gain():
    report = one_model(translator_report())
    for batch in (1, 8, 32, 64):
        report = with_timing(report, "heads-50", batch, speedup=8.2, speedup_interval=(0.94, 17.3))
    text = build_view(report).conclusion
    assert ": with no measurable gain in speed at batch 1 (8.20 [0.94, 17.30]), 8 (8.20" in text
    assert "times as fast" not in text
    report = with_timing(report, "heads-50", 8, speedup=1.5, speedup_interval=(1.5, 1.5))
    report = with_timing(report, "heads-50", 32, speedup=math.nan, speedup_interval=None)
    report = with_timing(report, "heads-50", 64, speedup=0.9, speedup_interval=(0.8, 0.95))
    text = build_view(report).conclusion
    assert ": 1.5 times as fast at batch 8, with no measurable gain in speed at batch 1 (8" in text
    assert "slower at batch 64 (0.90 [0.80, 0.95]), without a usable speed-up at batch 32" in text


def test_the_smallest_without_loss_that_meets_the_gate_leads():
    report = translator_report().model_copy(update={"gate": []})
    assert facts.headline(report).name == "heads-50"
    lead = "heads-50, the smallest that is not significantly worse than dense, keeps 72 of"
    assert lead in build_view(report).paragraph
    failed = gated(report, "heads-50")
    assert facts.headline(failed).name == "heads-75"
    assert "not significantly worse than dense and meets the gate" in build_view(failed).paragraph
    assert build_view(failed).paragraph.endswith("Gate: 0 of 1 checks met.")
    # By multiply-adds where neurons were removed: heads-75 keeps more heads, but no neurons.
    first, second, _ = mixed_report().variants
    small = first.model_copy(update={"macs_share": 0.4})
    assert facts.headline(report.model_copy(update={"variants": [small, second]})) == small


def test_warnings_stand_wherever_the_result_is():
    report = translator_report()
    assert not build_view(report).warnings
    report = report.model_copy(update={"shared_rows": 30})
    for text in (render(report, "markdown"), render_card(report, "heads-50")):
        assert "30 of 1,000 test rows are calibration rows too" in text
    # 0.2 of 1.04 is less than a fifth, 0.22 is more.
    for high, wide in ((1.18, False), (1.2, True)):
        report = with_timing(report, "heads-50", 8, speedup=1.04, speedup_interval=(0.98, high))
        warning = "1 of 12 speed-ups is uncertain (interval over 20%); rerun on an idle machine."
        assert (warning in build_view(report).paragraph) is wide


@pytest.mark.parametrize(("share", "told"), [(0.2, True), (0.45, False), (0.75, True)])
def test_time_that_goes_elsewhere_than_multiply_adds_is_told(share, told):
    """At the batch size where it is furthest; not where units were chosen by time."""
    report = translator_report()
    for batch, nearer in ((1, 0.1), (64, 0.0)):
        towards = share + math.copysign(nearer, 0.5 - share)
        found = {"encoder_time": towards, "encoder_macs": 0.5}
        report = with_timing(report, "dense", batch, **found)
    text = (
        f"At batch 64 the dense model's encoder and decoder take {100 * share:.0f}% and "
        f"{100 - 100 * share:.0f}% of the time, for 50% and 50% of the multiply-adds"
    )
    assert (text in build_view(report).paragraph) is told
    search = SpeedSearch(wanted=2, costs=cost_table({}, {}), tries=[])
    by_time = report.model_copy(update={"search": search})
    assert "of the multiply-adds, by which" not in build_view(by_time).paragraph


def test_what_was_not_measured_is_said_and_the_next_step():
    report = classifier_report()
    assert build_view(report).paragraph == (
        "half keeps 8 of 16 heads (50%): 1.1 times smaller; quality not measured; speed not "
        "measured."
    )
    empty = report.model_copy(update={"variants": []})
    assert build_view(empty).paragraph == "The report holds no pruned variant."
    assert build_view(empty).next_step is None
    again, fine = "compress run -c recipe.yaml -o NEW", one_model(translator_report())
    lossy = fine.model_copy(update={"variants": translator_report().variants[2:]})
    trained = changed(lossy, "variants", 0, "recovery", to="reconstruct: …; distill: 3 epochs")
    for shown, advice, command in (
        (report, "Measure what it costs", f"{again} --test FILE"),
        (fine.model_copy(update={"throughput": None}), "Measure how fast", f"{again} --bench"),
        # Bounds of -0.31 are -0.62 and +0.01, of 1.163 times as fast 1.143 and 1.18.
        (fine, "Hold later runs to what this one reached",
         "compress gate report.json --max-metric-drop bleu=0.7 --min-speedup 1.1@64"),
        (gated(fine, "heads-50", verdict="passed"), "It meets the gate: use it.",
         "compress predict out/heads-50 FILE"),
        (gated(fine, "heads-50"), "It is not as fast or as small", f"{again} --macs 0.63"),
        (gated(fine, "heads-50", verdict="inconclusive"), "The timings do not decide it",
         f"{again} --bench-seconds 10"),
        (gated(fine, "heads-50", rule="max-metric-drop bleu=1", verdict="inconclusive"),
         "The test rows do not decide it", f"{again} --test FILE"),
        (lossy, "It loses quality: train it",
         f"{again} --recover reconstruct+distill --distill-text FILE"),
        # Its rows have parts that a line of text has not.
        (lossy.model_copy(update={"task": "question-answering"}), "It loses quality: train it",
         f"{again} --recover reconstruct+distill"),
        (trained, "It loses quality, though it was trained", f"{again} --macs 0.85"),
        # What meets the gate may lose something.
        (gated(lossy, "heads-25", verdict="passed"), "It meets the gate: use it.",
         "compress predict out/heads-25 FILE"),
        (with_dense_int8(fine), "It is not shown to be faster than dense int8 alone",
         "compress export -m MODEL --precision fp32,int8 --calibration FILE -o NEW"),
    ):  # fmt: skip
        step = build_view(shown).next_step
        assert (step.advice.startswith(advice), step.command) == (True, command)


def test_what_is_advised_is_a_recipes():
    lossy = translator_report().model_copy(update={"variants": translator_report().variants[2:]})
    words = shlex.split(build_view(lossy).next_step.command)
    names = [name.removeprefix("--").replace("-", "_") for name in words[6::2]]
    given = dict(zip(names, words[7::2], strict=True))
    assert len(make_recipe(model="m", calibration="c.tsv", macs="0.5", **given).recovery) == 2


def test_evaluation_says_how_long_sources_fare_and_how_many_lengths_differ():
    """In the sample BLEU falls twice as far there, and of every removed head one in 1,000."""
    report = translator_report()
    rows = "213 rows of more than 20 words"
    assert sentences.lengths_text(report.dense.quality) == [f"bleu 34.21 on {rows}"]
    assert sentences.lengths_text(report.variants[2].quality) == [
        f"bleu 28.20 on {rows}",
        "10.8% of answers have over 30% more or fewer words than the first one's",
    ]
    few = changed(report, "dense", "quality", "long_sources", "score", to=None)
    assert sentences.lengths_text(few.dense.quality) == [f"{rows}, too few for a score"]
    plain = changed(report, "dense", "quality", "long_sources", to=None)
    assert sentences.lengths_text(plain.dense.quality) == []
