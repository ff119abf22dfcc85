"""`--layout ctranslate2`: plain CTranslate2 gives PyTorch's translations of uneven models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ctranslate2
import pytest
import torch
from transformers import AutoTokenizer, MarianMTModel, MarianTokenizer

from compressor.commands import invoke
from compressor.errors import InputError, VerificationError
from compressor.export.ctranslate2 import verify_translator, write_translator
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import vary
from tests.helpers.tiny import nothing_left_mask, uneven_mask

pytestmark = pytest.mark.slow
MODELS = ("marian", "bart", "mbart", "m2m_100", "t5", "umt5")
# Bias of the end token, with which rows end at different places; of models without such a bias,
# what its weights are multiplied by.
ENDS = {"marian": 6.0, "bart": 6.0, "mbart": 1.0, "m2m_100": 4, "t5": 3, "umt5": 2}
MASKS = {"uneven": uneven_mask, "nothing left": nothing_left_mask}
# What a machine that only serves runs: no package of this project, no PyTorch.
PLAIN = """
import json, sys
import ctranslate2
directory, rows = sys.argv[1], json.loads(sys.argv[2])
translator = ctranslate2.Translator(directory, compute_type="float32", intra_threads=1)
lengths = {"min_decoding_length": 0, "max_decoding_length": int(sys.argv[3])}
actual = translator.translate_batch(rows, beam_size=1, **lengths)
assert not {"compressor", "torch", "transformers"} & set(sys.modules)
print(json.dumps([result.hypotheses[0] for result in actual]))
"""


def export(name: str, mask: str, directory: Path) -> tuple[Checkpoint, Path]:
    """A pruned checkpoint whose outputs end at different places, and what is written of it."""
    dense = toy.checkpoint(directory / "dense", name)
    checkpoint = open_checkpoint(str(toy.pruned(dense, directory / "pruned", MASKS[mask])))
    vary(checkpoint.model, ENDS[name])
    network = Network(checkpoint, checkpoint.model, checkpoint.mask)
    write_translator(network, directory / "out", "fp32")
    return checkpoint, directory / "out"


@torch.no_grad()
def generated(checkpoint: Checkpoint, texts: list[str], tokens: int) -> tuple[list, list]:
    """Source tokens, and the tokens that `generate` gives for them, without the end."""
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    batch = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    rows = model.generate(**batch, num_beams=1, do_sample=False, max_length=tokens + 1)[:, 1:]
    end = model.generation_config.eos_token_id
    sources = [
        tokenizer.convert_ids_to_tokens(ids[mask.bool()].tolist())
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    answers = [row[: row.index(end)] if end in row else row for row in rows.tolist()]
    return sources, [tokenizer.convert_ids_to_tokens(row) for row in answers]


@pytest.mark.parametrize(
    ("name", "mask"),
    [*((name, "uneven") for name in MODELS), ("marian", "nothing left"), ("t5", "nothing left")],
)
def test_greedy_translations_are_pytorchs(tmp_path: Path, name: str, mask: str):
    """Of 40 texts of several lengths; once in a process that has nothing but CTranslate2."""
    checkpoint, directory = export(name, mask, tmp_path)
    tokens = 18
    sources, wanted = generated(checkpoint, toy.sentences(40), tokens)
    if (name, mask) == ("marian", "uneven"):
        command = [sys.executable, "-c", PLAIN, str(directory), json.dumps(sources), str(tokens)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        answers = json.loads(done.stdout)
    else:
        translator = ctranslate2.Translator(str(directory), compute_type="float32")
        lengths = {"min_decoding_length": 0, "max_decoding_length": tokens}
        found = translator.translate_batch(sources, beam_size=1, **lengths)
        answers = [result.hypotheses[0] for result in found]
    # Where no end comes, `generate` may force one in the last place.
    assert [row[: tokens - 1] for row in answers] == [row[: tokens - 1] for row in wanted]
    if mask == "uneven":
        assert len({len(row) for row in wanted}) > 1, "the test needs outputs of several lengths"


def test_the_program_finds_a_wrong_weight(tmp_path: Path):
    checkpoint, out = export("marian", "uneven", tmp_path)
    network = Network(checkpoint, checkpoint.model, checkpoint.mask)
    texts = checkpoint.tokenizer(toy.sentences(12), return_tensors="pt", padding=True)
    verify_translator(network, out, [texts])
    layer = next(x for x in checkpoint.layers if checkpoint.mask.kept(x.name))
    weight = checkpoint.model.get_submodule(layer.output).weight
    with torch.no_grad():
        weight.mul_(-3)
    with raises(VerificationError, "ctranslate2-translation-differs"):
        verify_translator(network, out, [texts])


def test_an_activation_that_ctranslate2_lacks_is_an_error(tmp_path: Path):
    dense = toy.checkpoint(tmp_path / "dense", "marian")
    settings = json.loads((dense / "config.json").read_text("utf-8"))
    settings["activation_function"] = "mish"
    (dense / "config.json").write_text(json.dumps(settings), "utf-8")
    checkpoint = open_checkpoint(str(dense))
    with raises(InputError, "architecture-not-for-ctranslate2") as caught:
        write_translator(Network(checkpoint, checkpoint.model, checkpoint.mask), tmp_path, "fp32")
    assert "the activation mish, which" in str(caught.value)


def test_the_command_stores_the_precision_that_is_asked_for(tmp_path: Path, capsys):
    pruned = toy.pruned(toy.translator(tmp_path / "dense"), tmp_path / "pruned")
    command = ["export", "-m", str(pruned), "--layout", "ctranslate2", "-o"]
    out, whole = tmp_path / "int8", tmp_path / "fp32"
    assert invoke([*command, str(whole)]) == 0
    assert invoke([*command, str(out), "--precision", "int8"]) == 0
    assert "CTranslate2 generates as PyTorch" in capsys.readouterr().out
    sizes = [(path / "model.bin").stat().st_size for path in (out, whole)]
    assert sizes[0] < 0.6 * sizes[1]
    assert ctranslate2.Translator(str(out)).compute_type.startswith("int8")
    assert (out / "tokenizer_config.json").exists()
    assert (out / "generation_config.json").exists()


@torch.no_grad()
@pytest.mark.parametrize("target", [60, 72, 36])
def test_both_vocabularies_of_a_marian_model_are_written(tmp_path: Path, target: int):
    """Texts through CTranslate2, by the names of its pieces, are transformers' translations."""
    dense = toy.marian_with_two_vocabularies(tmp_path / "dense", target=target)
    out = tmp_path / "out"
    command = ["export", "-m", str(dense), "--layout", "ctranslate2", "-o", str(out)]
    assert invoke(command) == 0
    tokenizer = MarianTokenizer.from_pretrained(dense)
    model = MarianMTModel.from_pretrained(dense)
    texts = toy.sentences(20)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    rows = model.generate(**batch, num_beams=1, do_sample=False, max_length=20)
    wanted = tokenizer.batch_decode(rows, skip_special_tokens=True)
    translator = ctranslate2.Translator(str(out), compute_type="float32")
    opened = AutoTokenizer.from_pretrained(out)
    pieces = [[*opened.tokenize(text), "</s>"] for text in texts]
    actual = translator.translate_batch(pieces, beam_size=1, max_decoding_length=19)
    assert [opened.convert_tokens_to_string(x.hypotheses[0]) for x in actual] == wanted
    assert len(set(wanted)) > 1
