"""--target-text: decoders score what occurs in a text, or what anything can be spelled with."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from compressor.errors import InputError, UsageError
from compressor.export.target_text import CHUNK, count_texts, tokens_of_text
from compressor.export.vocabulary import output_tokens
from compressor.model.checkpoint import open_checkpoint
from compressor.model.pruning_record import read_pruning_record
from compressor.pipeline.inputs import encode
from compressor.pipeline.run import export_checkpoint, run
from compressor.pipeline.unit_costs import unit_costs
from compressor.report.schema import load_report
from compressor.request.recipe import ExportRequest
from compressor.runtime import Translator
from compressor.runtime.vocabulary import count_output_tokens
from compressor.tasks import TASKS
from compressor.tasks.texts import TARGET, TextFile
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.recipes import recipe, request

pytestmark = pytest.mark.slow

FEW = ["w3 w4 w5", "", "  w7 w4.", "w11"]


def text_file(path: Path, lines: list[str] = FEW) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@torch.no_grad()
def test_it_translates_with_these_tokens_alone(tmp_path, capsys):
    """Token for token as `generate` of PyTorch when the other tokens are given no probability."""
    whole = toy.marian_with_pieces(tmp_path / "whole", own_target=True)
    model = toy.first_layers(whole, tmp_path / "dense")
    lines = [line.replace("w", "v") for line in FEW]
    text, out = text_file(tmp_path / "text", lines), tmp_path / "out"
    invoke("export", "-m", model, "--target-text", text, "-o", out)
    told = capsys.readouterr().out
    checkpoint = open_checkpoint(str(model))
    kept = json.loads((out / "onnx/output_tokens.json").read_text(encoding="utf-8"))
    said = {i for line in lines for i in checkpoint.tokenizer(text_target=line.strip()).input_ids}
    vocabulary = checkpoint.tokenizer.get_vocab()
    assert said < set(kept) < set(vocabulary.values())
    assert set(checkpoint.tokenizer.all_special_ids) <= set(kept)
    assert f"the decoder scores {len(kept)} of {len(vocabulary)} tokens" in told

    network, translator = checkpoint.model, Translator(out, threads=1)
    texts = [toy.sentence(random.Random(seed)) for seed in range(12)]
    batch = checkpoint.tokenizer(texts, return_tensors="pt", padding=True)
    gone = sorted(set(range(network.lm_head.out_features)) - set(kept))
    plain = network.generate(**batch, num_beams=2)
    network.final_logits_bias[:, gone] = -torch.inf
    expected = network.generate(**batch, num_beams=2)
    assert set(plain.flatten().tolist()) & set(gone)  # these random weights would use others
    rows = translator.generate({k: v.numpy() for k, v in batch.items()}, num_beams=2)
    assert rows == [ids[1 : 1 + len(row)] for row, ids in zip(rows, expected.tolist(), strict=True)]
    assert {token for row in rows for token in row} <= set(kept)


@pytest.mark.parametrize("own_target", [False, True])
def test_any_text_can_still_be_spelled(own_target, tmp_path):
    """Each character that the target's model knows is a token by itself."""
    directory = toy.marian_with_pieces(tmp_path / "dense", own_target=own_target)
    checkpoint = open_checkpoint(str(directory))
    kept = set(output_tokens(checkpoint, seen={0}))
    ids = checkpoint.tokenizer.get_vocab()
    letters = set("".join(piece for piece in ids if not piece.startswith(("<", "unused"))))
    alone = {ids[letter] for letter in letters if letter in ids}
    assert len(alone) > 10
    if own_target:
        lossless = set(output_tokens(checkpoint))
        assert kept < lossless
        alone &= lossless
    assert alone <= kept


def test_tokens_are_those_of_all_lines(tmp_path):
    """Across chunks; empty lines do not count."""
    tokenizer = open_checkpoint(str(toy.marian_with_pieces(tmp_path / "dense"))).tokenizer
    lines = ["w3"] * CHUNK + ["", "w4 w5"] + ["w3"] * CHUNK + ["w59"]
    told: list[int] = []
    file = TextFile(text_file(tmp_path / "text", lines), TARGET)
    seen = tokens_of_text(file, tokenizer, told.append)
    assert count_texts(file) == 2 * CHUNK + 2
    assert told == [CHUNK, 2 * CHUNK, 2 * CHUNK + 2]
    assert seen == {i for t in ("w3", "w4 w5", "w59") for i in tokenizer(text_target=t).input_ids}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n \n", "target-text-empty"),
        (b"\xff\xfe\n", "file-not-utf8"),
        (None, "file-missing"),
    ],
)
def test_what_is_no_text_is_refused(content, problem, tmp_path):
    model = toy.translator(tmp_path / "bart", "bart")
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    flags = {"model": str(model), "target_text": str(path)}
    with raises(InputError, problem):
        export_checkpoint(request(ExportRequest, **flags), tmp_path / "out")
    flags |= {"calibration": str(toy.pairs_file(tmp_path / "rows.tsv")), "keep": ["0.5"]}
    with raises(InputError, problem):
        run(recipe(**flags), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_where_it_can_do_nothing_it_is_refused(tmp_path):
    text, rows = text_file(tmp_path / "text"), toy.labels_file(tmp_path / "rows.tsv")
    classifier, out = toy.classifier(tmp_path / "bert"), tmp_path / "out"
    base = {"model": str(classifier), "target_text": str(text)}
    with raises(UsageError, "option-without-use"):
        run(recipe(**base, calibration=str(rows), keep=["0.5"]), out)
    with raises(UsageError, "options-exclude-each-other"):
        export_checkpoint(request(ExportRequest, **base, layout="optimum"), out)
    with raises(UsageError, "options-exclude-each-other"):
        run(recipe(**base, calibration=str(rows), speedup=1.2), out)
    assert not out.exists()


@pytest.mark.slow
def test_a_run_restricts_what_it_delivers_and_not_what_it_compares_with(tmp_path):
    whole, text = toy.marian_with_pieces(tmp_path / "whole"), text_file(tmp_path / "text")
    model = toy.first_layers(whole, tmp_path / "dense")
    flags = {
        "model": str(model), "calibration": str(toy.pairs_file(tmp_path / "rows.tsv")),
        "test": str(toy.pairs_file(tmp_path / "test.tsv", seed=1)), "keep": ["0.5"],
        "target_text": str(text), "bench": False, "resamples": 100,
    }  # fmt: skip
    out = tmp_path / "out"
    report = run(recipe(**flags), out)
    kept = count_output_tokens(out)
    assert kept < 60
    assert (report.dense.output_tokens, report.variants[0].output_tokens) == (60, kept)
    assert count_output_tokens(out / ".compress/dense") == 60
    checkpoint, task = open_checkpoint(str(model)), TASKS["translation"]
    examples = encode(TASKS["translation"].read_rows(flags["calibration"]), checkpoint, task)
    mask = read_pruning_record(out).mask
    share = unit_costs(checkpoint, task, examples).share(mask, tokens=kept)
    assert report.variants[0].macs_share == pytest.approx(share, rel=1e-9)
    assert (report.target_text.rows, report.target_text.files) == (3, [text.name])
    assert load_report(out / "report.json") == report
    for name in ("report.md", "report.html", "README.md"):
        page = (out / name).read_text(encoding="utf-8")
        assert f"dense 60; keep-0.5 {kept}" in page, name
    text_file(text, ["w9"])
    with raises(UsageError, "output-of-another-run"):
        run(recipe(**flags), out)
