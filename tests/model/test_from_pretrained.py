"""transformers alone opens a pruned checkpoint, in a process that cannot import this package."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import compressor
from compressor.errors import InputError
from compressor.model import modeling_pruned
from compressor.model.checkpoint import open_checkpoint
from compressor.model.modeling_pruned import pruned_class
from compressor.storage.input_files import read_json
from tests.helpers import toy
from tests.helpers.damaged_checkpoints import weights
from tests.helpers.errors import raises
from tests.helpers.tiny import TRANSLATORS, ragged_batch, tiny_model, word_tokenizer

READER = Path(__file__).parents[1] / "helpers" / "without_compress.py"
# Other architectures are opened by transformers in test_relatives.py and test_depth.py.
CASES = ("marian", "bert")
FC1 = "model.encoder.layers.0.fc1.bias"


def save_pruned(name: str, directory: Path) -> Path:
    return toy.pruned(toy.checkpoint(directory.with_name("dense"), name), directory)


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> tuple[Path, Path]:
    """Checkpoints of the cases, and what transformers made of them."""
    source, results = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("results")
    for name in CASES:
        made = save_pruned(name, tmp_path_factory.mktemp("made") / "pruned")
        torch.save(ragged_batch(tiny_model(name)), made / "batch.pt")
        made.rename(source / name)
    subprocess.run(
        [sys.executable, "-I", READER, source, results],
        check=True,
        cwd=results,
        env=os.environ | {"HF_HOME": str(tmp_path_factory.mktemp("hub")), "HF_HUB_OFFLINE": "1"},
    )
    return source, results


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_transformers_answers_as_this_package(name: str, opened):
    directory, results = (root / name for root in opened)
    found = torch.load(results.with_suffix(".pt"))
    model, batch = compressor.load(directory), torch.load(directory / "batch.pt")
    expected = model(**batch).logits
    assert torch.equal(found["logits"], expected)
    assert not torch.allclose(found["trained"], expected, atol=1e-3)
    assert torch.equal(found["trained again"], found["trained"])
    assert found["class"] == type(model).__name__
    if name in TRANSLATORS:
        source = {key: batch[key] for key in ("input_ids", "attention_mask")}
        for beams in (1, 3):
            rows = model.generate(**source, max_new_tokens=7, num_beams=beams)
            assert torch.equal(found[f"{beams} beams"], rows)
        return
    assert found["pipeline class"] == found["class"]
    tokens = word_tokenizer()("w9 w8 w7", return_tensors="pt", return_token_type_ids=False)
    probabilities = model(**tokens).logits.softmax(-1)[0].tolist()
    answers = {answer["label"]: answer["score"] for answer in found["pipeline"]}
    assert [answers[x] for x in model.config.id2label.values()] == pytest.approx(
        probabilities, abs=1e-5
    )


@pytest.mark.slow
def test_a_trained_model_is_exported_after_its_record_is_copied(opened):
    source, results = opened
    trained = results / "bert" / "trained"
    word_tokenizer().save_pretrained(trained)
    with raises(InputError, "units-file-missing"):
        compressor.load(trained)
    (trained / "units.json").write_bytes((source / "bert" / "units.json").read_bytes())
    batch = torch.load(source / "bert" / "batch.pt")
    with torch.no_grad():
        logits = compressor.load(trained)(**batch).logits
    assert torch.equal(logits, torch.load(results / "bert.pt")["trained again"])


@pytest.mark.parametrize("name", ["marian", "m2m_100", "t5"])
def test_transformers_does_not_miss_computed_weights(name: str, tmp_path):
    """Tables of positions are in no file."""
    _, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        save_pruned(name, tmp_path / name), trust_remote_code=True, output_loading_info=True
    )
    assert not any(info.values())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda w: w.pop(FC1), f"lacks 1 weights, first {FC1}"),
        (lambda w: w.update(extra=torch.ones(1)), "has unexpected 1 weights, first extra"),
        (lambda w: w.update({FC1: torch.ones(3)}), f"misfits 1 weights, first {FC1}"),
    ],
)
def test_weights_that_do_not_fit_are_an_error(change, complaint: str, tmp_path):
    directory = save_pruned("marian", tmp_path / "pruned")
    weights(change)(directory)
    with pytest.raises(ValueError, match=complaint):
        pruned_class("MarianMTModel").from_pretrained(directory, ignore_mismatched_sizes=True)
    with raises(InputError, "weights-do-not-fit") as caught:
        compressor.load(directory)
    assert complaint.rpartition(" ")[2] in str(caught.value)


@torch.no_grad()
def test_what_this_package_loaded_is_saved_whole(tmp_path):
    """Without having run the file that lies beside the weights."""
    directory = save_pruned("electra", tmp_path / "pruned")
    (directory / "modeling_pruned.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    open_checkpoint(str(directory), trust_remote_code=True)
    loaded = compressor.load(directory)
    loaded.save_pretrained(tmp_path / "again")
    config = read_json(tmp_path / "again" / "config.json")
    assert config["kept_units"] == read_json(directory / "config.json")["kept_units"]
    assert (tmp_path / "again" / "modeling_pruned.py").exists()
    again = type(loaded).from_pretrained(tmp_path / "again")
    batch = ragged_batch(loaded)
    assert torch.equal(again(**batch).logits, loaded(**batch).logits)


def test_an_earlier_transformers_is_an_error(monkeypatch):
    # transformers replaces its own module when its first class is looked up.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.6")
    with pytest.raises(ImportError, match=r"need transformers 5, and transformers 4\.57\.6"):
        runpy.run_path(modeling_pruned.__file__)
