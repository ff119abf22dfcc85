"""What `compress study` finds, against models that are really pruned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compressor.evaluation import compare
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import prune
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.studies import RESAMPLES, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("task", ["translation", "classification"])
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
            found = compare(task, dense, answers, references, RESAMPLES, seed=0)
            expected = next(x for x in found if x.metric == data["metric"])
            assert one["interval"] == pytest.approx(list(expected.interval))
            assert one["p"] == expected.p_value
    tests = [one for heads in data["layers"].values() for one in heads]
    assert data["tests"] == len(tests) == sum(data["heads"].values())
    assert data["expected_by_chance"] == pytest.approx(0.05 * len(tests))
    excluding = [one for one in tests if not one["interval"][0] <= 0 <= one["interval"][1]]
    assert data["significant"] == sum(one["p"] < 0.05 for one in excluding)
    assert data["significant_holm"] <= data["significant_bh"] <= data["significant"]


@pytest.mark.parametrize("task", ["translation", "classification"])
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


@pytest.mark.parametrize("task", ["translation", "classification"])
def test_curve_goes_from_all_heads_to_none(task: str, toys, tmp_path):
    model = toys[task]
    data = run(
        "curve", tmp_path / "out",
        model=model.model, test=model.test, calibration=model.calibration, points="0,50,100",
    )  # fmt: skip
    kinds = ["encoder_self", "decoder_self", "cross", "heads"]
    assert list(data["lines"]) == (kinds if task == "translation" else kinds[:1])
    heads = [(name, head) for name, count in data["heads"].items() for head in range(count)]
    for kind, points in data["lines"].items():
        of = [key for key in heads if kind == "heads" or key[0].startswith(kind)]
        assert [point["removed"] for point in points] == [0, len(of) // 2, len(of)]
        assert points[0]["difference"] == 0.0
        assert points[0]["interval"] == [0.0, 0.0]
        assert points[-1]["value"] == pytest.approx(model.value(model.answers(of)))


def test_agreement_compares_data_sets_and_their_halves(toys, tmp_path):
    model = toys["translation"]
    data = run(
        "agreement", tmp_path / "out",
        model=model.model, calibration=model.calibration, other=model.test,
    )  # fmt: skip
    assert list(data["pairs"]) == [
        "the two data sets", "two halves of the first", "two halves of the other",
    ]  # fmt: skip
    for pair in data["pairs"].values():
        assert pair["correlations"][0]["kind"] == "all"
        assert all(0 < row["p"] <= 1 for row in pair["correlations"] + pair["lowest"])
    same = run(
        "agreement", tmp_path / "same",
        model=model.model, calibration=model.calibration, other=model.calibration,
    )["pairs"]["the two data sets"]  # fmt: skip
    assert same["correlations"][0]["spearman"] == pytest.approx(1)
    assert all(row["shared"] == row["units"] for row in same["lowest"])


def test_training_follows_the_ranking_to_the_last_checkpoint(toys, tmp_path):
    model = toys["classification"]
    early = tmp_path / "step-1"
    checkpoint = open_checkpoint(str(model.model))
    torch.manual_seed(1)
    for parameter in checkpoint.model.parameters():
        parameter.data += 0.3 * parameter.std() * torch.randn_like(parameter)
    checkpoint.model.save_pretrained(early)
    checkpoint.tokenizer.save_pretrained(early)
    data = run(
        "training", tmp_path / "out", checkpoint=[str(early), str(model.model)],
        test=model.test, calibration=model.calibration, points="0,100",
    )  # fmt: skip
    first, last = data["checkpoints"]
    assert (first["name"], last["name"]) == ("step-1", model.model.name)
    assert last["spearman"] == pytest.approx(1)
    assert last["shared"] == last["top"] == 3  # a quarter of 12
    assert -1 <= first["spearman"] < 1
    everything = [(name, h) for name, count in data["heads"].items() for h in range(count)]
    assert last["points"][0]["value"] == pytest.approx(model.value(model.answers([])))
    assert last["points"][1]["value"] == pytest.approx(model.value(model.answers(everything)))


def without_first_units(layers: list[Sublayer]) -> Mask:
    return Mask.full(layers).without((layer.name, 0) for layer in layers)


@pytest.mark.parametrize("task", ["translation", "classification"])
def test_roles_before_and_after_pruning(task: str, toys, trees, tmp_path):
    model = toys[task]
    pruned = toy.pruned(model.model, tmp_path / "pruned", without_first_units)
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
        roles_after = data["pruned"]["heads_roles"].get(name, [])
        assert len(roles_after) == len(kept.kept(name))
    for row in data["pruned"]["survival"]:
        if row["role"] in ("any", "none"):
            assert row["kept_of_all"] == kept.count(row["kind"])
        assert row["kept"] <= row["heads"]


def test_roles_of_the_encoder_alone_without_rows(toys, trees, tmp_path):
    data = run("roles", tmp_path / "out", model=toys["translation"].model, conllu=trees)
    assert all(name.startswith("encoder_self") for name in data["positions"])
    rare = tmp_path / "rare.conllu"
    rare.write_text(
        "\n".join(trees.read_text(encoding="utf-8").split("\n\n")[:6]), encoding="utf-8"
    )
    few = run("roles", tmp_path / "few", model=toys["translation"].model, conllu=rare)
    assert few["relations"] == []
    assert 0 < few["too_rare"]["obj"] < 100
    page = (tmp_path / "few" / "study-roles.md").read_text(encoding="utf-8")
    assert f"below 100 arcs, and left out: obj ({few['too_rare']['obj']})" in page
    assert not any("syntactic" in found for heads in few["heads_roles"].values() for found in heads)
