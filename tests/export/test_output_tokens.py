"""A decoder scores the tokens a target text can have, and answers as PyTorch does among these.

With --target-text these are the tokens of a text, and what anything can be spelled with.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.export import export_model
from compressor.export.graphs import BATCH, export_graph
from compressor.export.precisions import add_precision, require_within
from compressor.export.target_text import CHUNK, count_texts, tokens_of_text
from compressor.export.task_graphs import Network
from compressor.export.vocabulary import best_tokens, output_tokens
from compressor.model.checkpoint import open_checkpoint
from compressor.model.pruning_record import read_pruning_record
from compressor.model.surgery import prune
from compressor.pipeline.inputs import encode, make_check_batches
from compressor.pipeline.run import run
from compressor.pipeline.unit_costs import unit_costs
from compressor.report.schema import load_report
from compressor.runtime import Translator
from compressor.runtime.artifact import Generation
from compressor.runtime.vocabulary import OutputTokens, count_output_tokens
from compressor.tasks import TASKS
from compressor.tasks.texts import TARGET, TextFile
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.recipes import recipe
from tests.helpers.tiny import uneven_mask

pytestmark = pytest.mark.slow

FEW = ["w3 w4 w5", "", "  w7 w4.", "w11"]


def target_texts(count: int) -> list[str]:
    """Also with characters that neither language has, and with some only the source has."""
    rng = random.Random(1)
    letters = "v0123456789 .undwäß漢🙂\u00a0"
    return ["".join(rng.choices(letters, k=rng.randrange(1, 30))) for _ in range(count)]


def test_whatever_a_target_text_is_cut_into_can_be_generated(tmp_path):
    """By a translator between two languages, pruned unevenly and exported in two precisions."""
    checkpoint = open_checkpoint(str(toy.marian_with_pieces(tmp_path / "dense", own_target=True)))
    out = tmp_path / "out"
    mask = uneven_mask(checkpoint.layers)
    model = prune(checkpoint.model, checkpoint.layers, mask)
    task = TASKS["translation"]
    rows = TASKS["translation"].read_rows(toy.pairs_file(tmp_path / "rows.tsv"), minimum=1)
    examples = task.encode(rows, checkpoint.tokenizer, 32)
    probe = make_check_batches(rows, examples, model, task)
    network = Network(checkpoint, model, mask, output_tokens(checkpoint))
    checks = export_model(network, probe.batches, probe.texts, out)
    inputs = [batch.inputs() for batch in probe.batches]
    require_within(add_precision(model, inputs, out, "int8"), "int8")

    kept = set(output_tokens(checkpoint))
    seen = set()
    for text in target_texts(800):
        seen |= set(checkpoint.tokenizer(text_target=text)["input_ids"])
    assert seen <= kept
    vocabulary = checkpoint.tokenizer.get_vocab()
    left_out = {piece for piece, number in vocabulary.items() if number not in kept}
    assert len(left_out) >= 20
    assert len(kept) % 16 == 0
    assert all("w" in piece and len(piece) > 1 for piece in left_out)  # "w" itself is unknown there
    assert count_output_tokens(out) == len(kept) == len(vocabulary) - len(left_out)
    assert f"scores {len(kept)} of {len(vocabulary)} tokens" in checks[1].detail
    # The graph's one table, which is tied, has rows of these tokens alone.
    graph = onnx.load(out / "onnx" / "decoder.onnx").graph
    tables = [i for i in graph.initializer if len(i.dims) == 2 and i.dims[0] >= len(kept)]
    (table,) = map(onnx.numpy_helper.to_array, tables)
    np.testing.assert_array_equal(table, model.lm_head.weight.detach().numpy()[sorted(kept)])


def test_one_vocabulary_for_both_languages_stays_whole(tmp_path):
    checkpoint = open_checkpoint(str(toy.marian_with_pieces(tmp_path / "one")))
    assert output_tokens(checkpoint) is None
    words = open_checkpoint(str(toy.translator(tmp_path / "bart", "bart")))
    assert output_tokens(words) is None


def test_settings_with_ids_become_settings_with_indices():
    tokens = OutputTokens([0, 3, 4, 9])
    settings = Generation(
        decoder_start_token_id=9, eos_token_id=[0, 4], max_length=5, forced_bos_token_id=3,
        forced_eos_token_id=[0], suppress_tokens=[9, 5],
    )  # fmt: skip
    actual = tokens.settings(settings)
    assert (actual.decoder_start_token_id, actual.forced_bos_token_id) == (3, 1)
    assert (actual.eos_token_id, actual.forced_eos_token_id) == ([0, 2], [0])
    assert actual.suppress_tokens == [3]  # token 5 is never said anyway
    assert tokens.rows([[1, 2], []]) == [[3, 4], []]
    with raises(InputError, "token-not-in-output"):
        tokens.indices(np.array([[3, 5]]))
    with raises(InputError, "token-not-in-output"):
        tokens.settings(replace(settings, forced_bos_token_id=7))


class Best(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return best_tokens(logits)


@pytest.mark.parametrize("tokens", [6000, 97])
def test_the_largest_logit_is_the_first_of_equals(tokens, tmp_path):
    """In PyTorch, and in a graph where blocks are long enough to save anything."""
    rng = np.random.default_rng(tokens)
    logits = rng.integers(-5, 5, (40, tokens)).astype(np.float32)  # many are equal
    logits[0] = -np.inf
    logits[1] = -3e38
    expected = logits.argmax(axis=1)
    np.testing.assert_array_equal(best_tokens(torch.from_numpy(logits)).numpy(), expected)
    path = tmp_path / "best.onnx"
    example = (torch.zeros(2, tokens),)
    export_graph(Best(), example, ["logits"], ["best"], {"logits": {0: BATCH}}, path)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert ("ReduceMax" in kinds) == (tokens == 6000)
    (actual,) = onnxruntime.InferenceSession(path).run(None, {"logits": logits})
    np.testing.assert_array_equal(actual, expected)


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
    left_out = sorted(set(range(network.lm_head.out_features)) - set(kept))
    plain = network.generate(**batch, num_beams=2)
    network.final_logits_bias[:, left_out] = -torch.inf
    expected = network.generate(**batch, num_beams=2)
    assert set(plain.flatten().tolist()) & set(left_out)  # these random weights would use others
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
