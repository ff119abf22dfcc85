"""`compress study`: what it finds against models that are really pruned, and as a user meets it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch

from compressor.errors import InputError, UsageError
from compressor.evaluation import compare
from compressor.model.checkpoint import open_checkpoint
from compressor.model.saving import save_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.study import STUDIES, agreement, run_study
from compressor.study.output import PREFIX, SUFFIXES, render_text
from compressor.tasks import read_rows
from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.helpers.conllu import conllu
from tests.helpers.errors import raises
from tests.helpers.recipes import request
from tests.helpers.tiny import facts, uneven_mask

pytestmark = pytest.mark.slow

RESAMPLES = 200


@dataclass(frozen=True)
class Toy:
    """A toy checkpoint with data it knows."""

    model: Path
    calibration: Path
    test: Path
    task: str

    def answers(self, without: list[tuple[str, int]]) -> list[str]:
        """What the physically pruned model says to each test row alone, by transformers."""
        checkpoint = open_checkpoint(str(self.model))
        mask = Mask.full(checkpoint.layers).without(without)
        model = prune(checkpoint.model, checkpoint.layers, mask)
        found = []
        for text in read_rows(self.task, self.test).sources:
            inputs = checkpoint.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            if self.task == "translation":
                ids = model.generate(**inputs, num_beams=1, do_sample=False)[0]
                found.append(checkpoint.tokenizer.decode(ids, skip_special_tokens=True))
            else:
                found.append(f"LABEL_{int(model(**inputs).logits.argmax())}")
        return found

    def value(self, answers: list[str]) -> float:
        """BLEU or accuracy of answers to the test rows."""
        references = read_rows(self.task, self.test).targets
        if self.task == "translation":
            return sacrebleu.corpus_bleu(answers, [references]).score
        return 100 * float(np.mean([a == b for a, b in zip(answers, references, strict=True)]))


def short_answers(directory: Path) -> Path:
    """The checkpoint with translations of at most 7 tokens, so that tests are quick."""
    path = directory / "generation_config.json"
    if path.exists():
        settings = json.loads(path.read_text(encoding="utf-8")) | {"max_length": 8}
        path.write_text(json.dumps(settings), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def toys(tmp_path_factory) -> dict[str, Toy]:
    root = tmp_path_factory.mktemp("toys")
    made: dict[str, Toy] = {}
    builders: list[tuple[str, Callable, Callable]] = [
        ("translation", toy.translator, toy.pairs_file),
        ("classification", toy.classifier, toy.labels_file),
    ]
    for task, build, rows in builders:
        made[task] = Toy(
            short_answers(build(root / task)),
            rows(root / f"{task}-calibration.tsv", rows=16),
            rows(root / f"{task}-test.tsv", rows=12, seed=1),
            task,
        )
    return made


def run(name: str, output: Path, **given: Any) -> dict[str, Any]:
    """Run a study in this process; its data, after checking what is always so."""
    options = {"device": "cpu"}
    options |= {k: v if isinstance(v, list) else str(v) for k, v in given.items()}
    if "test" in given:
        options |= {"resamples": RESAMPLES}
    result = run_study(request(STUDIES[name], **options), output)
    written = {path.name for path in output.iterdir() if path.is_file()}
    assert {f"{PREFIX}{name}{suffix}" for suffix in SUFFIXES} <= written
    data = json.loads((output / f"{PREFIX}{name}.json").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(result.data))
    page = (output / f"{PREFIX}{name}.md").read_text(encoding="utf-8")
    assert page.startswith("# ")
    assert f"{PREFIX}{name}.png" in page
    assert all(sentence in render_text(result) for sentence in result.sentences)
    return data


@pytest.mark.parametrize("task", ["translation", "classification"])
def test_heads_is_what_physical_removal_of_each_costs(task: str, toys, tmp_path):
    model = toys[task]
    data = run("heads", tmp_path / "out", model=model.model, test=model.test)
    dense = model.answers([])
    assert data["dense"] == pytest.approx(model.value(dense))
    references = read_rows(task, model.test).targets
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
    rows = read_rows(task, model.calibration)
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


def test_a_repaired_curve_is_another_one(toys, tmp_path):
    model = toys["classification"]
    options = {"model": model.model, "test": model.test, "calibration": model.calibration}
    data = run("curve", tmp_path / "out", **options, recover="reconstruct", points="0,60")
    (points,) = data["lines"].values()
    assert points[1]["recovery"].startswith("reconstruct: ")
    assert data["recover"] == "reconstruct"


def test_calibrating_on_test_rows_is_told(toys, tmp_path):
    model = toys["classification"]
    rows = {"test": model.test, "calibration": model.test}
    data = run("curve", tmp_path / "out", model=model.model, points="0", **rows)
    assert data["shared_rows"] == 12
    page = (tmp_path / "out" / "study-curve.md").read_text(encoding="utf-8")
    assert "12 of 12 test rows are calibration rows too" in page


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


def test_halves_share_no_row(toys):
    rows = read_rows("translation", toys["translation"].test)
    first, second = (agreement.half(rows, which) for which in (0, 1))
    assert sorted(first.targets + second.targets) == sorted(rows.targets)
    assert (first.sources[1], second.sources[0]) == (rows.sources[2], rows.sources[1])
    assert first.sha256 != second.sha256


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


def test_a_wrong_checkpoint_is_an_error_before_anything_is_computed(toys, tmp_path):
    """And the command can then be corrected in the same directory."""
    model, other = toys["classification"], toys["translation"]
    empty = tmp_path / "empty"
    empty.mkdir()
    for wrong in (other.model, empty):
        with pytest.raises(InputError, match=re.escape(str(wrong))):
            run(
                "training", tmp_path / "out",
                checkpoint=[str(model.model), str(wrong), str(model.model)],
                test=model.test, calibration=model.calibration,
            )  # fmt: skip
        output = tmp_path / "out"  # a computed stage would leave a file
        assert not output.exists() or not list(output.iterdir())


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> Path:
    """Sentences of the words that the toys know; each word hangs on the one before it."""
    path = tmp_path_factory.mktemp("trees") / "trees.conllu"
    sentences = []
    for number in range(40):
        words = [f"w{3 + (number * 5 + 7 * place) % 57}" for place in range(3 + number % 4)]
        sentences.append(
            conllu(*(
                f"{place} {word} {place - 1} {'root' if place == 1 else 'obj'}"
                for place, word in enumerate(words, 1)
            ))
        )  # fmt: skip
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path


@pytest.mark.parametrize("task", ["translation", "classification"])
def test_roles_before_and_after_pruning(task: str, toys, trees, tmp_path):
    model = toys[task]
    checkpoint, pruned = open_checkpoint(str(model.model)), tmp_path / "pruned"
    kept = uneven_mask(checkpoint.layers)
    smaller = prune(checkpoint.model, checkpoint.layers, kept)
    save_checkpoint(checkpoint, smaller, facts(checkpoint.layers, kept), pruned)
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


def test_roles_without_text_or_without_pruning_are_errors(toys, trees, tmp_path):
    with raises(UsageError, "rows-missing"):
        run("roles", tmp_path / "none", model=toys["translation"].model)
    with raises(InputError, "checkpoint-not-pruned"):
        run(
            "roles", tmp_path / "dense", model=toys["translation"].model, conllu=trees,
            pruned=toys["translation"].model,
        )  # fmt: skip


def test_methods_without_rows_or_data_are_refused(toys, tmp_path):
    model = toys["classification"]
    for name, given, id in [
        ("curve", {"test": model.test}, "calibration-missing"),
        ("layers", {"test": model.test}, "calibration-missing"),
        (
            "curve",
            {"test": model.test, "calibration": model.calibration, "recover": "distill"},
            "name-unknown",
        ),
        (
            "agreement",
            {"calibration": model.test, "other": model.test, "method": "random"},
            "method-without-data",
        ),
    ]:
        with raises(UsageError, id):
            run(name, tmp_path / name, model=model.model, **given)
        output = tmp_path / name  # empty, so that the options can be corrected
        assert not output.exists() or not list(output.iterdir())


def test_a_study_from_the_shell(toys, tmp_path):
    """Done stages are not done again, nor with other options; one directory for two studies."""
    model, out = toys["classification"], tmp_path / "out"
    arguments = [
        "study", "heads", "-m", model.model, "--test", model.test, "-o", out, "--resamples", 200,
        "--device", "cpu",
    ]  # fmt: skip
    first = compress(*arguments)
    assert first.returncode == 0, first.stderr
    assert "Corrected for 12 tests" in first.stdout
    assert "removing each of 4 heads of encoder_self.2 …" in first.stderr
    again = compress(*arguments, "--json")
    assert again.stderr.count("done before") == 4
    data = json.loads(again.stdout)
    assert (data["ok"], data["study"], data["output"]) == (True, "heads", str(out))
    again = compress(*arguments[:-3], 300, "--device", "cpu")
    assert again.returncode == 2
    assert "200" in again.stderr
    assert "300" in again.stderr
    run("layers", out, model=model.model, test=model.test, method="magnitude")
    assert {path.stem for path in out.glob("*.md")} == {"study-heads", "study-layers"}


@pytest.mark.parametrize("damage", [lambda text: text[: len(text) // 2], lambda text: "[1]"])
def test_damaged_results_of_a_stage_are_computed_again(damage, toys, tmp_path):
    model, out = toys["classification"], tmp_path / "out"
    options = {"model": model.model, "test": model.test, "method": "magnitude"}
    first = run("layers", out, **options)
    state = out / ".compress" / f"{PREFIX}layers" / ".compress"
    stages = [path for path in state.glob("*.json") if path.name != "run.json"]
    assert stages
    for path in stages:
        path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert run("layers", out, **options) == first


def test_a_directory_with_other_things_is_left_alone(toys, tmp_path):
    model = toys["classification"]
    (tmp_path / "report.json").write_text("{}", encoding="utf-8")
    with raises(InputError, "output-not-empty"):
        run("heads", tmp_path, model=model.model, test=model.test)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
