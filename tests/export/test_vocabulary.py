"""Parts of a vocabulary: the tokens that a decoder scores, and those that an encoder keeps.

A decoder scores the tokens that a target text can have, and answers as PyTorch does among these.
With --target-text and --source-text these are the tokens of a text, and what anything can be
spelled with.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.export import cut_vocabulary
from compressor.export.graphs import BATCH, export_graph
from compressor.export.precisions import add_precision, require_within
from compressor.export.task_graphs import Network, export_model
from compressor.export.vocabulary import CHUNK, best_tokens, output_tokens, tokens_of_text
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.options.requests import ExportRequest
from compressor.pipeline.run import run
from compressor.pipeline.single import export_checkpoint
from compressor.report.schema import load_report
from compressor.runtime import Classifier, Translator
from compressor.runtime.generation import OutputTokens
from compressor.runtime.opening import count_output_tokens
from compressor.tasks import TASKS
from compressor.tasks.opened import make_check_batches
from compressor.tasks.texts import SOURCE, TARGET, TextFile
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.exports import no_exports
from tests.helpers.heads import WORDS, tiny_head, trained
from tests.helpers.runs import Progress, recipe, request
from tests.helpers.tiny import LABELS, facts, tiny_model, uneven_mask
from tests.helpers.vocabulary import cut_and_checked

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
    probe = make_check_batches(examples, model, task)
    network = Network(checkpoint, model, mask, output_tokens(checkpoint))
    checks = export_model(network, probe, rows.sources, out)
    inputs = [batch.inputs() for batch in probe]
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


def test_tokens_that_a_decoder_does_not_score_are_refused():
    with raises(InputError, "token-not-in-output"):
        OutputTokens([0, 3, 4, 9]).indices(np.array([[3, 5]]))


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
    kept, lossless = set(output_tokens(checkpoint, seen={0})), output_tokens(checkpoint)
    ids = checkpoint.tokenizer.get_vocab()
    letters = set("".join(piece for piece in ids if not piece.startswith(("<", "unused"))))
    alone = {ids[letter] for letter in letters if letter in ids}
    assert len(alone) > 10
    if own_target:
        assert kept < set(lossless)
        alone &= set(lossless)
    else:  # one vocabulary for both languages stays whole
        assert lossless is None
    assert alone <= kept


def test_tokens_are_those_of_all_lines(tmp_path):
    """Across chunks; empty lines do not count."""
    tokenizer = open_checkpoint(str(toy.marian_with_pieces(tmp_path / "dense"))).tokenizer
    lines = ["w3"] * CHUNK + ["", "w4 w5"] + ["w3"] * CHUNK + ["w59"]
    told: list[int] = []
    file = TextFile(text_file(tmp_path / "text", lines), TARGET)
    seen = tokens_of_text(file, tokenizer, told.append)
    assert file.count() == 2 * CHUNK + 2
    assert told == [CHUNK, 2 * CHUNK, 2 * CHUNK + 2]
    assert seen == {i for t in ("w3", "w4 w5", "w59") for i in tokenizer(text_target=t).input_ids}


def test_a_run_restricts_what_it_delivers_and_not_what_it_compares_with(tmp_path):
    model, text = toy.marian_with_pieces(tmp_path / "dense"), text_file(tmp_path / "text")
    flags = {
        "model": str(model), "calibration": str(toy.pairs_file(tmp_path / "rows.tsv")),
        "keep": ["0.5"], "target_text": str(text), "bench": False,
    }  # fmt: skip
    out = tmp_path / "out"
    with no_exports():
        report = run(recipe(**flags), out)
    kept = count_output_tokens(out)
    assert kept < 60
    assert (report.dense.output_tokens, report.variants[0].output_tokens) == (60, kept)
    assert count_output_tokens(out / ".compress/dense") == 60
    assert (report.target_text.rows, report.target_text.files) == (3, [text.name])
    assert f"dense 60; keep-0.5 {kept}" in (out / "report.md").read_text(encoding="utf-8")


def test_a_target_text_with_every_token_restricts_nothing(tmp_path):
    model = toy.first_layers(toy.translator(tmp_path / "whole"), tmp_path / "dense")
    text = text_file(tmp_path / "text", toy.WORDS)
    rows = str(toy.pairs_file(tmp_path / "rows.tsv"))
    given = {"model": str(model), "calibration": rows, "keep": ["0.5"], "bench": False}
    with no_exports():
        report = run(recipe(**given, target_text=str(text)), tmp_path / "out")
    assert report.variants[0].output_tokens == report.dense.output_tokens
    assert report.target_text.rows == len(toy.WORDS)


COVERED = [" ".join(WORDS[i : i + 4]) for i in range(0, 60, 4)]
OTHERS = [" ".join(random.Random(i).sample(WORDS, 3)) for i in range(12)]


def saved(directory: Path, name: str) -> Path:
    """A tiny classifier with a trained tokenizer."""
    model, tokenizer = tiny_model(name), trained(name)
    model.resize_token_embeddings(len(tokenizer) + 3)  # some rows without a token
    torch.manual_seed(0)
    model.get_input_embeddings().weight.data.normal_(0, 0.2)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def logits(model: torch.nn.Module, tokenizer, texts: list[str]) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(**tokenizer(x, return_tensors="pt")).logits for x in texts])


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
def test_texts_that_it_covers_have_the_same_tokens_and_logits(name: str, tmp_path):
    """WordPiece, BPE of bytes, and Unigram; in memory, saved, and opened by transformers alone."""
    dense = open_checkpoint(str(saved(tmp_path / "dense", name)))
    file = TextFile(text_file(tmp_path / "text", COVERED), SOURCE)
    smaller = cut_and_checked(dense, file).checkpoint
    rows = smaller.model.get_input_embeddings().num_embeddings
    assert len(smaller.tokenizer) == rows == smaller.model.config.vocab_size < len(dense.tokenizer)
    assert dense.model.config.vocab_size == len(dense.tokenizer) + 3
    mask = Mask.full(dense.layers)
    save_checkpoint(smaller, smaller.model, facts(dense.layers, mask), tmp_path / "out")
    again = open_checkpoint(str(tmp_path / "out"), verify=False)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = logits(dense.model, dense.tokenizer, COVERED)
    for model, own in (
        (smaller.model, smaller.tokenizer), (again.model, again.tokenizer), (plain, tokenizer),
    ):  # fmt: skip
        for text in COVERED:
            assert own.tokenize(text) == dense.tokenizer.tokenize(text)
        # Products may differ in their last bit with where the weights lie in memory.
        torch.testing.assert_close(logits(model, own, COVERED), expected, rtol=0, atol=3e-6)
        assert own.get_vocab() == smaller.tokenizer.get_vocab()

    changed = [x for x in OTHERS if tokenizer.tokenize(x) != dense.tokenizer.tokenize(x)]
    assert len(changed) > 3
    unknown = smaller.tokenizer.unk_token_id
    assert not any(unknown in ids for ids in smaller.tokenizer(changed)["input_ids"])
    for text in changed:
        decoded = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
        assert decoded.replace(" ", "") == text.replace(" ", "")


def test_words_of_a_tagger_have_the_same_tokens_one_by_one(tmp_path):
    """Of bytes without a space in front of each, which a text has."""
    tokenizer = trained("roberta")
    model = tiny_head("roberta", "token-classification")
    model.resize_token_embeddings(len(tokenizer))
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(tmp_path / "dense")
    tokenizer.save_pretrained(tmp_path / "dense")
    dense = open_checkpoint(str(tmp_path / "dense"))
    file = TextFile(text_file(tmp_path / "text", COVERED), SOURCE)
    smaller = cut_and_checked(dense, file).checkpoint
    assert len(smaller.tokenizer) < len(dense.tokenizer)
    for text in COVERED:
        given, joined, cut = (
            x.convert_ids_to_tokens(x(words, is_split_into_words=words != text)["input_ids"])
            for x, words in (
                (dense.tokenizer, text.split()), (dense.tokenizer, text),
                (smaller.tokenizer, text.split()),
            )
        )  # fmt: skip
        assert cut == given
        assert given != joined or len(text.split()) < 2


def flags_with_source_text(folder: Path, **others: Any) -> dict[str, Any]:
    """Options of a short run of a toy classifier, whose rows have words that its text lacks."""
    rng = random.Random(2)
    for name in ("rows", "test"):
        lines = [f"{x}\tLABEL_{rng.randrange(LABELS)}" for x in COVERED + OTHERS]
        text_file(folder / f"{name}.tsv", ["text\tlabel", *lines])
    return {
        "model": str(toy.first_layers(saved(folder / "whole", "bert"), folder / "dense")),
        "calibration": str(folder / "rows.tsv"), "test": str(folder / "test.tsv"),
        "source_text": str(text_file(folder / "text", COVERED)), "resamples": 100, "device": "cpu",
        "keep": ["heads=0.5,neurons=0.5"],
    } | others  # fmt: skip


def test_a_stopped_run_does_not_read_its_texts_again(tmp_path, monkeypatch):
    flags, stopping = flags_with_source_text(tmp_path, bench=False), Progress("exporting the dense")
    with pytest.raises(KeyboardInterrupt):
        run(recipe(**flags), tmp_path / "out", progress=stopping)
    assert stopping.messages.index("checking the smaller vocabulary …") > 0
    monkeypatch.setattr(cut_vocabulary.ServedTexts, "chunks", None)
    again = Progress()
    report = run(recipe(**flags), tmp_path / "out", progress=again)
    for title in ("cutting text into tokens", "checking the smaller vocabulary"):
        assert f"{title}: done before" in again.messages
    assert report.variants[0].embedding_rows < report.dense.embedding_rows


def test_a_run_delivers_fewer_rows_and_compares_with_all(tmp_path, capsys):
    timed = {"batch_size": "4", "bench_seconds": 0.05, "threads": 1}
    flags = flags_with_source_text(tmp_path, precision="fp32,int8", **timed)
    text, out = Path(flags["source_text"]), tmp_path / "out"
    run(recipe(**flags), out)
    report = load_report(out / "report.json")
    opened = open_checkpoint(str(out))
    kept = len(opened.tokenizer)
    rows = {x.name: x.embedding_rows for x in (report.dense, *report.variants)}
    whole = len(trained("bert")) + 3
    assert rows == {name: whole if name.startswith("dense") else kept for name in rows}
    assert report.dense.embedding_bytes == 4 * 32 * whole
    # Each is timed in its own tokens; others would be out of range.
    assert {row.variant for row in report.throughput.rows} == {*rows}
    assert (report.source_text.rows, report.source_text.files) == (15, [text.name])
    texts = COVERED + OTHERS
    expected = logits(opened.model, opened.tokenizer, texts).numpy()
    actual = Classifier(out, precision="fp32").logits(texts)
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())
    capsys.readouterr()
    invoke("verify", out)
    with raises(UsageError, "output-of-another-run"):
        text_file(text, COVERED[:3])
        run(recipe(**flags), out)


def test_a_checkpoint_is_exported_with_fewer_tokens(tmp_path):
    text = text_file(tmp_path / "text", COVERED)
    model = toy.first_layers(saved(tmp_path / "whole", "bert"), tmp_path / "dense")
    options = {"model": str(model), "source_text": str(text)}
    wanted = request(ExportRequest, **options)
    with raises(UsageError, "options-exclude-each-other"):
        export_checkpoint(wanted, model)
    export_checkpoint(wanted, tmp_path / "out")
    dense = open_checkpoint(str(model))
    expected = logits(dense.model, dense.tokenizer, COVERED).numpy()
    actual = Classifier(tmp_path / "out").logits(COVERED)
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())
    # The checkpoint of these graphs lies beside them, for transformers alone.
    kinds = transformers.AutoModelForSequenceClassification, transformers.AutoTokenizer
    plain, tokenizer = (kind.from_pretrained(tmp_path / "out") for kind in kinds)
    np.testing.assert_allclose(logits(plain, tokenizer, COVERED).numpy(), expected, atol=3e-6)
    assert len(tokenizer) < len(dense.tokenizer)
    assert not (tmp_path / "out" / "units.json").exists()
