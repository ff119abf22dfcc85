"""What `compress study` reports, against models that are really pruned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch

from compressor import commands
from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.study.options import STUDIES
from compressor.study.run import PREFIX, run_study
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.metrics import compare
from tests.helpers.runs import request

pytestmark = pytest.mark.slow
both_tasks = pytest.mark.parametrize("task", ["translation", "classification"])
RESAMPLES = 200


@dataclass(frozen=True)
class Toy:
    """A toy checkpoint with data it knows."""

    task: str
    model: Path
    calibration: Path
    test: Path

    def answers(self, without: list[tuple[str, int]]) -> list[str]:
        """The physically pruned model's answer to each test row alone, by transformers."""
        checkpoint = open_checkpoint(str(self.model))
        mask = Mask.full(checkpoint.layers).without(without)
        model = prune(checkpoint.model, checkpoint.layers, mask)
        answers = []
        for text in TASKS[self.task].read_rows(self.test).sources:
            inputs = checkpoint.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            if self.task == "translation":
                ids = model.generate(**inputs, num_beams=1, do_sample=False)[0]
                answers.append(checkpoint.tokenizer.decode(ids, skip_special_tokens=True))
            else:
                answers.append(f"LABEL_{int(model(**inputs).logits.argmax())}")
        return answers

    def value(self, answers: list[str]) -> float:
        """BLEU or accuracy of answers to the test rows."""
        references = TASKS[self.task].read_rows(self.test).targets
        if self.task == "translation":
            return sacrebleu.corpus_bleu(answers, [references]).score
        return 100 * float(np.mean([a == b for a, b in zip(answers, references, strict=True)]))


def run(name: str, output: Path, **given: Any) -> dict[str, Any]:
    """Run a study in this process; its data, after checking what is always so."""
    options = {k: v if isinstance(v, list) else str(v) for k, v in given.items()}
    if "test" in given:
        options |= {"resamples": RESAMPLES}
    result = run_study(request(STUDIES[name], device="cpu", **options), output)
    data = json.loads((output / f"{PREFIX}{name}.json").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(result.data))
    page = (output / f"{PREFIX}{name}.md").read_text(encoding="utf-8")
    assert page.startswith("# ")
    assert f"{PREFIX}{name}.png" in page
    assert all((output / f"{PREFIX}{name}.{suffix}").stat().st_size for suffix in ("png", "svg"))
    return data


@pytest.fixture(scope="module")
def toys(once) -> dict[str, Toy]:
    """A toy for each task; tests only read them."""

    def make(root: Path) -> None:
        toy.classifier(root / "classification")
        toy.first_layers(toy.translator(root / "two-layers"), root / "translation")
        # Translations of at most 7 tokens, so that tests are quick.
        path = root / "translation" / "generation_config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) | {"max_length": 8}
        path.write_text(json.dumps(settings), encoding="utf-8")
        for task, rows in (("classification", toy.labels_file), ("translation", toy.pairs_file)):
            rows(root / f"{task}-calibration.tsv", rows=10)
            rows(root / f"{task}-test.tsv", rows=8, seed=1)

    root = once("study-toys", make)
    files = ("{}", "{}-calibration.tsv", "{}-test.tsv")
    tasks = ("classification", "translation")
    return {task: Toy(task, *(root / file.format(task) for file in files)) for task in tasks}


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> Path:
    """Sentences of the words that the toys know; each word hangs on the one before it."""
    path = tmp_path_factory.mktemp("trees") / "trees.conllu"
    line = "{0}\tw{1}\t_\t_\t_\t_\t{2}\tobj\t_\t_\n"
    sentences = [
        "".join(line.format(x, 3 + (5 * n + 7 * x - 7) % 57, x - 1) for x in range(1, 4 + n % 4))
        for n in range(40)
    ]
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path


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
            (expected, *_) = compare(task, dense, answers, references, RESAMPLES, seed=0)
            assert one["interval"] == pytest.approx(list(expected.interval))
            assert one["p"] == expected.p_value
    tests = [one for heads in data["layers"].values() for one in heads]
    assert data["tests"] == len(tests) == sum(data["heads"].values())
    excluding = [one for one in tests if not one["interval"][0] <= 0 <= one["interval"][1]]
    assert data["significant"] == sum(one["p"] < 0.05 for one in excluding)


@both_tasks
def test_layers_keeps_the_head_with_the_lowest_loss(task: str, toys, tmp_path):
    """Losses of physically pruned models on the calibration rows, by their own loss."""
    model = toys[task]
    files = {"model": model.model, "test": model.test, "calibration": model.calibration}
    data = run("layers", tmp_path / "out", **files)
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


@both_tasks
def test_curve_goes_from_all_heads_to_none(task: str, toys, tmp_path):
    model = toys[task]
    files = {"model": model.model, "test": model.test, "calibration": model.test}
    data = run("curve", tmp_path / "out", **files, points="0,50,100")
    kinds = ["encoder_self", "decoder_self", "cross", "heads"]
    assert list(data["lines"]) == (kinds if task == "translation" else kinds[:1])
    heads = [(name, head) for name, count in data["heads"].items() for head in range(count)]
    for kind, points in data["lines"].items():
        of = [key for key in heads if kind == "heads" or key[0].startswith(kind)]
        assert [point["removed"] for point in points] == [0, len(of) // 2, len(of)]
        assert (points[0]["difference"], points[0]["interval"]) == (0.0, [0.0, 0.0])
        assert points[-1]["value"] == pytest.approx(model.value(model.answers(of)))
    assert data["shared_rows"] == 8


def test_a_curve_is_repaired_at_every_point(toys, tmp_path):
    model = toys["classification"]
    options = {"model": model.model, "test": model.test, "recover": "reconstruct"}
    data = run("curve", tmp_path / "out", **options, calibration=model.calibration, points="0,60")
    (points,) = data["lines"].values()
    assert points[1]["recovery"].startswith("reconstruct: ")


def test_agreement_compares_data_sets_and_their_halves(toys, tmp_path):
    model = toys["translation"]
    rows = {"calibration": model.calibration, "other": model.calibration}
    data = run("agreement", tmp_path / "out", model=model.model, **rows)
    whole, *halves = data["pairs"].values()
    assert whole["correlations"][0]["spearman"] == pytest.approx(1)
    assert all(row["shared"] == row["units"] for row in whole["lowest"])
    assert [half["correlations"][0]["spearman"] < 1 for half in halves] == [True, True]


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
    assert last["spearman"] == pytest.approx(1)
    assert last["shared"] == last["top"] == 3  # a quarter of 12
    assert -1 <= first["spearman"] < 1
    everything = [(name, h) for name, count in data["heads"].items() for h in range(count)]
    assert last["points"][1]["value"] == pytest.approx(model.value(model.answers(everything)))
    wrong = [str(toys["translation"].model), str(model.model)]
    with raises(InputError, "checkpoints-differ"):
        run("training", tmp_path / "no", checkpoint=wrong, **rows)
    assert not (tmp_path / "no").exists()  # so that the options can be corrected


def test_roles_before_and_after_pruning(toys, trees, tmp_path):
    model = toys["translation"]
    pruned = toy.pruned(model.model, tmp_path / "pruned")
    kept = open_checkpoint(str(pruned)).mask
    files = {"model": model.model, "conllu": trees, "pruned": pruned}
    alone = run("roles", tmp_path / "alone", **files)  # without rows for the decoder
    assert all(name.startswith("encoder_self") for name in alone["positions"])
    data = run("roles", tmp_path / "out", calibration=model.calibration, **files)
    watched = [name for name in data["heads"] if not name.startswith("cross")]
    assert list(data["heads_roles"]) == watched
    assert data["left_out"] == 0
    forward, back = data["relations"]
    assert (forward["relation"], forward["offset"], forward["baseline"]) == ("obj", -1, 1.0)
    assert (back["offset"], back["arcs"]) == (1, forward["arcs"])
    assert data["pruned"]["kept"] == {name: kept.kept(name) for name in watched}
    for name in watched:
        assert len(data["pruned"]["heads_roles"].get(name, [])) == len(kept.kept(name))


@pytest.mark.parametrize(
    ("name", "rows", "more", "id"),
    [
        ("curve", ["test"], {}, "calibration-missing"),
        ("layers", ["test"], {}, "calibration-missing"),
        ("agreement", ["calibration", "other"], {"method": "random"}, "method-without-data"),
        ("roles", [], {}, "rows-missing"),
    ],
)
def test_studies_without_the_rows_that_they_look_at(name, rows, more, id, toys, tmp_path):
    given = dict.fromkeys(rows, toys["classification"].test)
    with raises(UsageError, id):
        run(name, tmp_path / name, model=toys["classification"].model, **given, **more)
    assert not (tmp_path / name).exists()


def test_a_study_by_its_command(toys, tmp_path, capsys):
    """One directory for two studies, whose results are not written over; the second by scores."""
    model, out = toys["classification"], tmp_path / "out"
    words = f"study heads -m {model.model} --test {model.test} -o {out} --device cpu --json"
    assert commands.invoke(words.split()) == 0
    assert json.loads(capsys.readouterr().out)["study"] == "heads"
    with raises(InputError, "output-not-empty"):
        run("heads", out, model=model.model, test=model.test)
    (out / "study-heads.json").unlink()  # as after a kill: the file that is written last
    run("heads", out, model=model.model, test=model.test)
    data = run("layers", out, model=model.model, test=model.test, method="magnitude")
    checkpoint = open_checkpoint(str(model.model))
    for layer, one in zip(checkpoint.attention, data["layers"], strict=True):
        weight = checkpoint.model.get_submodule(layer.output).weight.detach().numpy()
        norms = np.linalg.norm(weight.reshape(len(weight), layer.units, -1), axis=(0, 2))
        assert one["head"] == int(norms.argmax())
    assert {path.stem for path in out.glob("*.md")} == {"study-heads", "study-layers"}


def test_every_study_is_described():
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    for name in STUDIES:
        assert f"## {name}" in page
        assert f"compress study {name}" in page
