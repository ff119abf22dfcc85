"""--source-text: encoders keep the tokens of a text, and what anything can be spelled with."""

from __future__ import annotations

import json
import random
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from compressor.errors import UsageError
from compressor.export.source_text import cut_file, cut_vocabulary, short_tokens
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.sublayers import Mask
from compressor.pipeline.run import export_checkpoint, run
from compressor.report.schema import load_report
from compressor.request.recipe import ExportRequest
from compressor.runtime import Classifier
from compressor.tasks import TASKS
from compressor.tasks.texts import SOURCE, TextFile
from compressor.throughput import bench
from compressor.throughput.plan import Subject
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.piece_tokenizers import CORPUS, WORDS, trained
from tests.helpers.recipes import recipe, request
from tests.helpers.tiny import LABELS, facts, tiny_model

COVERED = [" ".join(WORDS[i : i + 4]) for i in range(0, 60, 4)]
OTHERS = [" ".join(random.Random(i).sample(WORDS, 3)) for i in range(12)]


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


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


def unknown_pieces(checkpoint: Checkpoint, texts: list[str]) -> int:
    unknown = checkpoint.tokenizer.unk_token_id
    return sum(ids.count(unknown) for ids in checkpoint.tokenizer(texts)["input_ids"])


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
def test_texts_that_it_covers_have_the_same_tokens_and_logits(name: str, tmp_path):
    """WordPiece, BPE of bytes, and Unigram; in memory, saved, and opened by transformers alone."""
    dense = open_checkpoint(str(saved(tmp_path / "dense", name)))
    smaller = cut_vocabulary(dense, TextFile(written(tmp_path / "text", COVERED), SOURCE))
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
        torch.testing.assert_close(logits(model, own, COVERED), expected, rtol=0, atol=1e-6)
        assert own.get_vocab() == smaller.tokenizer.get_vocab()
    # A pair has its special tokens too, and a batch its padding.
    pair, same = (x.tokenizer(COVERED[:2], COVERED[2:4], padding=True) for x in (dense, smaller))
    names = [x.tokenizer.convert_ids_to_tokens(y["input_ids"][1]) for x, y in
             ((dense, pair), (smaller, same))]  # fmt: skip
    assert names[0] == names[1]

    changed = [x for x in OTHERS if tokenizer.tokenize(x) != dense.tokenizer.tokenize(x)]
    assert len(changed) > 3
    assert unknown_pieces(smaller, changed) == 0
    for text in changed:
        decoded = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
        assert decoded.replace(" ", "") == text.replace(" ", "")


def test_pairs_with_marks_of_words_are_cut(tmp_path):
    """BPE that marks a word's end and what continues one, which no class of ours has."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="@@",
                                   end_of_word_suffix="</w>"))  # fmt: skip
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    made = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], show_progress=False,
        continuing_subword_prefix="@@", end_of_word_suffix="</w>",
    )  # fmt: skip
    backend.train_from_iterator(CORPUS, made)
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    seen = {i for text in COVERED for i in whole(text)["input_ids"]}
    kept = sorted({0, *seen, *short_tokens(whole, seen)})
    assert len(kept) < len(whole)
    backend.save(str(tmp_path / "tokenizer.json"))
    cut_file(tmp_path / "tokenizer.json", kept)
    smaller = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [smaller.encode(x).tokens for x in COVERED] == [whole.tokenize(x) for x in COVERED]
    assert all(0 not in smaller.encode(x).ids for x in OTHERS)


def test_a_run_delivers_fewer_rows_and_compares_with_all(tmp_path, capsys):
    model = toy.first_layers(saved(tmp_path / "whole", "bert"), tmp_path / "dense")
    text, out = written(tmp_path / "text", COVERED), tmp_path / "out"
    rng = random.Random(2)
    for name in ("rows", "test"):
        lines = [f"{x}\tLABEL_{rng.randrange(LABELS)}" for x in COVERED + OTHERS]
        written(tmp_path / f"{name}.tsv", ["text\tlabel", *lines])
    flags = {
        "model": str(model), "calibration": str(tmp_path / "rows.tsv"),
        "test": str(tmp_path / "test.tsv"), "precision": "fp32,int8", "source_text": str(text),
        "keep": ["heads=0.5,neurons=0.5"], "bench": False, "resamples": 100, "device": "cpu",
    }  # fmt: skip
    run(recipe(**flags), out)
    report = load_report(out / "report.json")
    opened = open_checkpoint(str(out))
    kept = len(opened.tokenizer)
    rows = {x.name: x.embedding_rows for x in (report.dense, *report.variants)}
    whole = len(trained("bert")) + 3
    assert rows == {name: whole if name.startswith("dense") else kept for name in rows}
    assert report.dense.embedding_bytes == 4 * 32 * whole
    assert (report.source_text.rows, report.source_text.files) == (15, [text.name])
    page = (out / "report.md").read_text(encoding="utf-8")
    assert f"dense {whole} (0.039 MB); keep-heads-0.5-neurons-0.5 {kept} (0.0" in page
    units = json.loads((out / "units.json").read_text(encoding="utf-8"))
    assert units["model"] == model.name

    texts = COVERED + OTHERS
    expected = logits(opened.model, opened.tokenizer, texts).numpy()
    actual = Classifier(out, precision="fp32").logits(texts)
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())
    capsys.readouterr()
    invoke("verify", out)
    # Each is timed, on the same rows, in its own tokens; others would be out of range.
    subjects = [Subject("dense", out / ".compress/dense", {}), Subject("cut", out, {})]
    rows = TASKS["classification"].read_rows(tmp_path / "test.tsv")
    with mock.patch.object(bench, "measure", side_effect=runs_once) as measured:
        bench.benchmark(subjects, rows=rows, batch_sizes=[2], memory=False)
    assert measured.called
    with raises(UsageError, "output-of-another-run"):
        written(text, COVERED[:3])
        run(recipe(**flags), out)


def runs_once(subjects, workloads, **_):
    """Stands in for the timing: what every model does with every batch, and made-up seconds."""
    for load in workloads:
        for batch in load.batches:
            for compute in subjects.values():
                compute(batch)
    (load,) = workloads
    return {(name, 2): [0.1] * 5 * len(load.batches) for name in subjects}


def test_a_checkpoint_is_exported_with_fewer_tokens(tmp_path):
    text = written(tmp_path / "text", COVERED)
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
