"""Values that transformers 5 changes while it loads `config.json`: the file's own are followed.

Right is what the file's value means in transformers 4 (and T5X): the output layer alone for models
whose `tie_word_embeddings` is false. Other values than the file's are refused by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn

import compressor
from compressor.commands import invoke
from compressor.errors import InputError
from compressor.export.vocabulary import OutputLayer
from compressor.model.architectures import ARCHITECTURES
from compressor.model.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from compressor.model.stored_configuration import follow_stored
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.runtime import Translator
from tests.helpers.damaged_checkpoints import configure, weights
from tests.helpers.errors import raises
from tests.helpers.tiny import (
    BUILDERS,
    RELATIVES,
    facts,
    ragged_batch,
    tiny_model,
    uneven_mask,
    word_tokenizer,
)

TIES = "tie_word_embeddings"
FAMILY = ("t5", "mt5", "umt5")
VARIANT, SETTING = "architecture-variant-unsupported", "setting-unsupported"


def saved(name: str, directory: Path, layers: int | None = None, **values: Any) -> Path:
    """A checkpoint; T5 and its relatives with an output layer of their own."""
    model: Any = tiny_model(name)
    if layers is not None:  # of each stack
        model.config.num_layers = model.config.num_decoder_layers = layers
        for stack in (model.encoder, model.decoder):
            stack.block = stack.block[:layers]
    if name in FAMILY:
        torch.manual_seed(1)
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) / 2)
    model.save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    path = directory / "config.json"
    stored = json.loads(path.read_text("utf-8"))
    stored.pop("scale_decoder_outputs", None)  # of transformers 5 alone
    path.write_text(json.dumps(stored | values), "utf-8")
    return directory


def unscaled(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output layer's logits of a decoder's last hidden states."""
    encoded = model.get_encoder()(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    hidden = model.get_decoder()(
        input_ids=batch["decoder_input_ids"],
        encoder_hidden_states=encoded,
        encoder_attention_mask=batch["attention_mask"],
    ).last_hidden_state
    return model.lm_head(hidden)


def pruned_to(directory: Path, dense: Checkpoint, mask: Mask) -> nn.Module:
    model = prune(dense.model, dense.layers, mask)
    save_checkpoint(dense, model, facts(dense.layers, mask), directory)
    return model


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("cut", [uneven_mask, Mask.full], ids=["pruned", "nothing removed"])
def test_logits_are_not_scaled_where_the_file_says_so(name: str, cut: Any, tmp_path: Path) -> None:
    dense = open_checkpoint(str(saved(name, tmp_path / "m", tie_word_embeddings=False)))
    batch, out = ragged_batch(dense.model), tmp_path / "out"
    assert unscaled(dense.model, batch).abs().max() > 1
    torch.testing.assert_close(dense.model(**batch).logits, unscaled(dense.model, batch))
    small: Any = pruned_to(out, dense, cut(dense.layers))
    wanted = unscaled(small, batch)
    assert OutputLayer(small, None).scale == 1  # of graphs, and of CTranslate2's models
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(out, trust_remote_code=True).eval()
    theirs.save_pretrained(tmp_path / "again")  # as after further training
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "again", trust_remote_code=True
    )
    for model in (small, compressor.load(out), theirs, again.eval()):
        torch.testing.assert_close(model(**batch).logits, wanted, rtol=0, atol=1e-5)
    # transformers alone reads UMT5's files otherwise, which is said.
    assert [TIES in note for note in dense.notes] == [True] * (name == "umt5")


@pytest.mark.slow
@torch.no_grad()
def test_beams_of_an_export_are_those_of_unscaled_logits(tmp_path: Path, capsys: Any) -> None:
    """Scaled by the width, log-probabilities would be nearly uniform: other beams win."""
    source, texts = saved("umt5", tmp_path / "m", 1), ["w5 w9 w30", "w7", "w41 w12 w8 w8 w50"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(source).eval()

    def beams() -> list[str]:
        tokens = model.generate(**batch, num_beams=4, max_length=12, do_sample=False)
        return tokenizer.batch_decode(tokens, skip_special_tokens=True)

    scaled = beams()
    model.config.tie_word_embeddings = False
    wanted = beams()
    assert wanted != scaled
    configure(tie_word_embeddings=False)(source)
    configure("generation_config.json", max_length=12, num_beams=4)(source)
    assert invoke(["export", "-m", str(source), "-o", str(tmp_path / "out")]) == 0
    assert f"{TIES} false in config.json" in capsys.readouterr().err
    assert Translator(tmp_path / "out").translate(texts) == wanted


@pytest.mark.parametrize(
    ("name", "values", "id"),
    [
        # transformers would tie the output layer, of which the file says that it is not tied.
        *((name, {TIES: False, "without": "lm_head.weight"}, "weights-do-not-fit")
          for name in FAMILY),
        # transformers 4 ties them then, whatever is stored.
        ("t5", {TIES: True, "transformers_version": "4.57.6"}, "weights-tied-differ"),
        ("umt5", {TIES: True, "transformers_version": "4.57.6"}, "weights-tied-differ"),
        ("mt5", {TIES: True, "transformers_version": "4.57.6"}, SETTING),
        ("t5", {TIES: None}, SETTING),
        ("umt5", {TIES: None}, SETTING),
        ("t5", {TIES: False, "scale_decoder_outputs": True}, SETTING),
        ("t5", {"tie_encoder_decoder": True}, VARIANT),
        # Two names for the same, with two values.
        ("bart", {"encoder_attention_heads": 4, "num_attention_heads": 2}, SETTING),
        ("t5", {"num_layers": 4, "num_hidden_layers": 3}, SETTING),
        ("distilbert", {"n_heads": 4, "num_attention_heads": 2}, SETTING),
        ("modernbert", {"local_attention": 4, "sliding_window": 6}, SETTING),
        # transformers 4 adds no positions then.
        ("bert", {"position_embedding_type": None}, VARIANT),
        ("xlm-roberta", {"position_embedding_type": None}, VARIANT),
    ],
    ids=str,
)  # fmt: skip
def test_what_would_be_computed_otherwise_is_refused(
    name: str, values: dict[str, Any], id: str, tmp_path: Path
) -> None:
    missing = values.pop("without", None)
    directory = saved(name, tmp_path)
    if missing is None:
        open_checkpoint(str(directory))
    else:
        weights(lambda found: found.pop(missing))(directory)
    configure(**values)(directory)
    with raises(InputError, id):
        open_checkpoint(str(directory))


@torch.no_grad()
@pytest.mark.parametrize("name", ["bart", "marian", "m2m_100"])
def test_a_small_copy_has_the_layers_that_it_says(name: str, tmp_path: Path) -> None:
    """`num_hidden_layers` may be left from the large model; transformers 4 does not read it."""
    directory = saved(name, tmp_path)
    before = open_checkpoint(str(directory)).model
    configure(num_hidden_layers=12)(directory)
    after, batch = open_checkpoint(str(directory)).model, ragged_batch(before)
    torch.testing.assert_close(after(**batch).logits, before(**batch).logits)


@pytest.mark.parametrize("name", ["bart", "t5", "pegasus"])
def test_tokens_that_no_file_names_are_those_of_the_class(name: str, tmp_path: Path) -> None:
    """As transformers 4 has them where there is no generation_config.json."""
    directory, names = saved(name, tmp_path), ("pad", "bos", "eos", "decoder_start", "forced_eos")
    settings = [f"{x}_token_id" for x in names]
    (directory / "generation_config.json").unlink()
    values = json.loads((directory / "config.json").read_text("utf-8"))
    left = {x: v for x, v in values.items() if x not in settings} | {"decoder_start_token_id": 7}
    (directory / "config.json").write_text(json.dumps(left), "utf-8")
    usual: Any = transformers.CONFIG_MAPPING[name]()
    expected = {x: getattr(usual, x, None) for x in settings} | {"decoder_start_token_id": 7}
    found: Any = open_checkpoint(str(directory)).model.generation_config
    assert {x: getattr(found, x) for x in settings} == expected
    configure(eos_token_id=5, forced_eos_token_id=None)(directory)
    found = open_checkpoint(str(directory)).model.generation_config
    assert (found.eos_token_id, found.forced_eos_token_id) == (5, None)


@pytest.mark.parametrize("name", BUILDERS | RELATIVES)
def test_every_setting_is_loaded_as_it_is_stored(name: str) -> None:
    """Or it is noted, to be set behind the weights, or refused: whatever a later version does."""
    entry, path = ARCHITECTURES[name], Path("config.json")
    base: dict[str, Any] = json.loads(tiny_model(name).config.to_json_string(use_diff=False))
    for setting, value in base.items():
        changed = {bool: not value, int: 3, float: 0.25, str: "relu"}.get(type(value))
        if changed is None or setting in ("dtype", "model_type", "transformers_version"):
            continue
        values = base | {setting: changed}
        try:
            config = transformers.CONFIG_MAPPING[name].from_dict(values)
        except (StrictDataclassError, ValueError, TypeError):
            continue  # transformers refuses it
        try:
            follow_stored(config, values, entry, path)
        except InputError as error:
            found = str(error)
        else:
            found = ""
        if found:
            assert setting in found
            continue
        noted = getattr(config, "stored_values", {})
        assert noted.get(setting, getattr(config, setting, changed)) == changed, setting
