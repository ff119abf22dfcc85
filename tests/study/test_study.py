"""What `compress study` reports, against models that are really pruned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from compressor import commands
from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.study.agreement import half
from compressor.study.options import STUDIES
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.metrics import compare
from tests.helpers.studies import RESAMPLES, run

pytestmark = pytest.mark.slow
both_tasks = pytest.mark.parametrize("task", ["translation", "classification"])


@both_tasks
def test_heads_is_what_physical_removal_of_each_costs(task: str, toys, tmp_path):
    model = toys[task]
    data = run("heads", tmp_path / "out", model=model.model, test=model.test)
    dense = model.answers([])
    assert data["dense"] == pytest.approx(model.value(dense))
    references = TASKS[task].read_rows(model.test).targets
    for name, heads in data["layers"].items():
        for one in heads[:1]:
            answers = model.answers([(name, one["head"])])
            assert one["value"] == pytest.approx(model.value(answers))
            compared = compare(task, dense, answers, references, RESAMPLES, seed=0)
            expected = next(x for x in compared if x.metric == data["metric"])
            assert one["interval"] == pytest.approx(list(expected.interval))
            assert one["p"] == expected.p_value
    tests = [one for heads in data["layers"].values() for one in heads]
    assert data["tests"] == len(tests) == sum(data["heads"].values())
    assert data["expected_by_chance"] == pytest.approx(0.05 * len(tests))
    excluding = [one for one in tests if not one["interval"][0] <= 0 <= one["interval"][1]]
    assert data["significant"] == sum(one["p"] < 0.05 for one in excluding)
    assert data["significant_holm"] <= data["significant_bh"] <= data["significant"]


@both_tasks
def test_layers_keeps_the_head_with_the_lowest_loss(task: str, toys, tmp_path):
    """Losses of physically pruned models on the calibration rows, by their own loss."""
    model = toys[task]
    data = run(
        "layers", tmp_path / "out",
        model=model.model, test=model.test, calibration=model.calibration,
    )  # fmt: skip
    checkpoint = open_checkpoint(str(model.model))
    full = Mask.full(checkpoint.layers)
    rows = TASKS[task].read_rows(model.calibration)
    one = data["layers"][-1]
    losses = []
    for head in range(one["heads"]):
        others = [(one["layer"], other) for other in range(one["heads"]) if other != head]
        pruned = prune(checkpoint.model, checkpoint.layers, full.without(others))
        total = 0.0
        for text, answer in zip(rows.sources, rows.targets, strict=True):
            inputs = checkpoint.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            if task == "translation":
                labels = checkpoint.tokenizer(text_target=answer, return_tensors="pt")["input_ids"]
            else:
                labels = torch.tensor([int(answer.removeprefix("LABEL_"))])
            with torch.no_grad():
                total += float(pruned(**inputs, labels=labels).loss) * labels.numel()
        losses.append(total)
    assert one["head"] == int(np.argmin(losses))
    others = [(one["layer"], h) for h in range(one["heads"]) if h != one["head"]]
    assert one["value"] == pytest.approx(model.value(model.answers(others)))


def test_layers_can_keep_the_head_with_the_highest_score(toys, tmp_path):
    model = toys["classification"]
    data = run("layers", tmp_path / "out", model=model.model, test=model.test, method="magnitude")
    checkpoint = open_checkpoint(str(model.model))
    for layer, one in zip(checkpoint.attention, data["layers"], strict=True):
        weight = checkpoint.model.get_submodule(layer.output).weight.detach().numpy()
        norms = np.linalg.norm(weight.reshape(len(weight), layer.units, -1), axis=(0, 2))
        assert one["head"] == int(norms.argmax())
    assert data["chosen_by"].startswith("highest score: magnitude|")


@both_tasks
def test_curve_goes_from_all_heads_to_none(task: str, toys, tmp_path):
    model = toys[task]
    data = run(
        "curve", tmp_path / "out",
        model=model.model, test=model.test, calibration=model.test, points="0,50,100",
    )  # fmt: skip
    kinds = ["encoder_self", "decoder_self", "cross", "heads"]
    assert list(data["lines"]) == (kinds if task == "translation" else kinds[:1])
    heads = [(name, head) for name, count in data["heads"].items() for head in range(count)]
    for kind, points in data["lines"].items():
        of = [key for key in heads if kind == "heads" or key[0].startswith(kind)]
        assert [point["removed"] for point in points] == [0, len(of) // 2, len(of)]
        assert (points[0]["difference"], points[0]["interval"]) == (0.0, [0.0, 0.0])
        assert points[-1]["value"] == pytest.approx(model.value(model.answers(of)))
    page = (tmp_path / "out" / "study-curve.md").read_text(encoding="utf-8")
    assert data["shared_rows"] == 12
    assert "12 of 12 test rows are calibration rows too" in page


def test_a_curve_is_repaired_at_every_point(toys, tmp_path):
    model = toys["classification"]
    options = {"model": model.model, "test": model.test, "recover": "reconstruct"}
    data = run("curve", tmp_path / "out", **options, calibration=model.calibration, points="0,60")
    (points,) = data["lines"].values()
    assert points[1]["recovery"].startswith("reconstruct: ")
    assert data["recover"] == "reconstruct"
    with raises(UsageError, "calibration-missing"):
        run("curve", tmp_path / "none", **options, method="random")


def test_agreement_compares_data_sets_and_their_halves(toys, tmp_path):
    model = toys["translation"]
    data = run(
        "agreement", tmp_path / "out",
        model=model.model, calibration=model.calibration, other=model.calibration,
    )  # fmt: skip
    whole, *halves = data["pairs"]
    assert whole == "the two data sets"
    assert halves == ["two halves of the first", "two halves of the other"]
    assert all(0 < row["p"] <= 1 for x in data["pairs"].values() for row in x["correlations"])
    assert data["pairs"][whole]["correlations"][0]["spearman"] == pytest.approx(1)
    assert all(row["shared"] == row["units"] for row in data["pairs"][whole]["lowest"])
    assert data["pairs"][halves[0]]["correlations"][0]["spearman"] < 1
    rows = TASKS["translation"].read_rows(model.test)
    first, second = (half(rows, which) for which in (0, 1))
    assert sorted(first.targets + second.targets) == sorted(rows.targets)
    assert (first.sources[1], second.sources[0]) == (rows.sources[2], rows.sources[1])


def test_training_follows_the_ranking_to_the_last_checkpoint(toys, tmp_path):
    model = toys["classification"]
    early = tmp_path / "step-1"
    checkpoint = open_checkpoint(str(model.model))
    torch.manual_seed(1)
    for parameter in checkpoint.model.parameters():
        parameter.data += 0.3 * parameter.std() * torch.randn_like(parameter)
    checkpoint.model.save_pretrained(early)
    checkpoint.tokenizer.save_pretrained(early)
    rows = {"test": model.test, "calibration": model.calibration, "points": "0,100"}
    data = run("training", tmp_path / "out", checkpoint=[str(early), str(model.model)], **rows)
    first, last = data["checkpoints"]
    assert (first["name"], last["name"]) == ("step-1", model.model.name)
    assert last["spearman"] == pytest.approx(1)
    assert last["shared"] == last["top"] == 3  # a quarter of 12
    assert -1 <= first["spearman"] < 1
    everything = [(name, h) for name, count in data["heads"].items() for h in range(count)]
    assert last["points"][0]["value"] == pytest.approx(model.value(model.answers([])))
    assert last["points"][1]["value"] == pytest.approx(model.value(model.answers(everything)))
    wrong = toys["translation"].model
    with pytest.raises(InputError, match=re.escape(str(wrong))):
        run("training", tmp_path / "no", checkpoint=[str(wrong), str(model.model)], **rows)
    assert not (tmp_path / "no").exists()  # so that the options can be corrected


@both_tasks
def test_roles_before_and_after_pruning(task: str, toys, trees, tmp_path):
    model = toys[task]
    pruned = toy.pruned(model.model, tmp_path / "pruned")
    kept = open_checkpoint(str(pruned)).mask
    data = run(
        "roles", tmp_path / "out",
        model=model.model, calibration=model.calibration, conllu=trees, pruned=pruned,
    )  # fmt: skip
    watched = [name for name in data["heads"] if not name.startswith("cross")]
    assert list(data["heads_roles"]) == watched
    assert data["left_out"] == 0
    forward, back = data["relations"]
    assert (forward["relation"], forward["offset"], forward["baseline"]) == ("obj", -1, 1.0)
    assert (back["offset"], back["arcs"]) == (1, forward["arcs"])
    assert data["pruned"]["kept"] == {name: kept.kept(name) for name in watched}
    for name in watched:
        assert len(data["pruned"]["heads_roles"].get(name, [])) == len(kept.kept(name))
    for row in data["pruned"]["survival"]:
        if row["role"] in ("any", "none"):
            assert row["kept_of_all"] == kept.count(row["kind"])
        assert row["kept"] <= row["heads"]


def test_roles_of_the_encoder_alone_without_rows(toys, trees, tmp_path):
    rare, model = tmp_path / "rare.conllu", toys["translation"].model
    first = trees.read_text(encoding="utf-8").split("\n\n")[:6]
    rare.write_text("\n".join(first), encoding="utf-8")
    data = run("roles", tmp_path / "few", model=model, conllu=rare)
    assert all(name.startswith("encoder_self") for name in data["positions"])
    assert data["relations"] == []
    assert 0 < data["too_rare"]["obj"] < 100
    page = (tmp_path / "few" / "study-roles.md").read_text(encoding="utf-8")
    assert f"below 100 arcs, and left out: obj ({data['too_rare']['obj']})" in page
    with raises(InputError, "checkpoint-not-pruned"):
        run("roles", tmp_path / "dense", model=model, conllu=trees, pruned=model)


@pytest.mark.parametrize(
    ("name", "rows", "id"),
    [
        ("curve", {"test"}, "calibration-missing"),
        ("layers", {"test"}, "calibration-missing"),
        ("agreement", {"calibration", "other"}, "method-without-data"),
        ("roles", set(), "rows-missing"),
    ],
)
def test_studies_without_the_rows_that_they_look_at_are_errors(name, rows, id, toys, tmp_path):
    given = dict.fromkeys(rows, toys["classification"].test)
    method = {"method": "random"} if name == "agreement" else {}
    with raises(UsageError, id):
        run(name, tmp_path / name, model=toys["classification"].model, **given, **method)
    assert not (tmp_path / name).exists()


def test_a_study_by_its_command(toys, tmp_path, capsys):
    """One directory for two studies, whose results are not written over."""
    model, out = toys["classification"], tmp_path / "out"
    command = [
        "study", "heads", "-m", model.model, "--test", model.test, "-o", out, "--resamples", 200,
        "--device", "cpu", "--json",
    ]  # fmt: skip
    assert commands.invoke([str(x) for x in command]) == 0
    shown = capsys.readouterr()
    assert "removing each of 12 heads alone …" in shown.err
    data = json.loads(shown.out)
    assert (data["ok"], data["study"], data["output"]) == (True, "heads", str(out))
    with raises(InputError, "output-not-empty") as caught:
        run("heads", out, model=model.model, test=model.test)
    assert "holds study-heads.json already" in str(caught.value)
    (out / "study-heads.json").unlink()  # as after a kill: the file that is written last
    run("heads", out, model=model.model, test=model.test)
    run("layers", out, model=model.model, test=model.test, method="magnitude")
    assert {path.stem for path in out.glob("*.md")} == {"study-heads", "study-layers"}
    (out / "report.json").write_text("{}", encoding="utf-8")
    with raises(InputError, "output-not-empty"):
        run("curve", out, model=model.model, test=model.test, method="magnitude")


def test_every_study_is_described():
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    for name in STUDIES:
        assert f"## {name}" in page
        assert f"compress study {name}" in page
