"""Every setting of `generate` of transformers: the same tokens, or refused by name."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import MarianConfig, MarianMTModel

from compressor.errors import CompressWarning, InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.generation import (
    GENERATION_FILE,
    HARMLESS,
    NEUTRAL,
    SUPPORTED,
    generate,
    generation_settings,
    require_beams,
    save_generation,
)
from compressor.runtime.beam_search import beam_search
from compressor.runtime.generation import Generation
from compressor.runtime.search import greedy
from tests.helpers.damaged_checkpoints import configure
from tests.helpers.decoders import TorchDecoder
from tests.helpers.errors import raises
from tests.helpers.tiny import word_tokenizer

VOCABULARY, PAD, END = 61, 60, 0
LIMIT = 14


def tiny_model() -> MarianMTModel:
    """Weights that give varied outputs, which end early.

    The output layer is its own, since with shared embeddings a random model repeats its input.
    """
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, max_position_embeddings=48, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=PAD, forced_eos_token_id=None, scale_embedding=True,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = MarianMTModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed_positions" not in name:
                parameter.normal_(0, 0.3)
        model.lm_head.weight.normal_(0, 0.4)
        model.final_logits_bias[0, END] = 2.2
    return model


def sources(lengths: Sequence[int]) -> dict[str, torch.Tensor]:
    """A batch of random rows, padded on the right."""
    rng = np.random.default_rng(1)
    ids = np.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        ids[row, : length - 1] = rng.integers(2, PAD, length - 1)
        ids[row, length - 1] = END
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(ids != PAD).long()}


# Settings that change nothing are tried together.
ANSWERED: list[dict] = [
    {"decoder_start_token_id": 7, "bos_token_id": 4},
    {"pad_token_id": 5},
    {"eos_token_id": 9, "max_length": 7},
    {"eos_token_id": [END, 13, 27], "length_penalty": 2.0},
    {"forced_bos_token_id": 7, "forced_eos_token_id": END},
    {"forced_eos_token_id": [13, 27], "suppress_tokens": [27], "early_stopping": "never"},
    {"suppress_tokens": [11, 12, 30], "bad_words_ids": [[PAD], [END], [8]]},
    {"suppress_tokens": [], "length_penalty": 0, "num_beams": 4},
    {"no_repeat_ngram_size": 3, "min_length": 6, "forced_bos_token_id": 9,
     "forced_eos_token_id": END, "suppress_tokens": [11, 12]},
    {"early_stopping": True, "length_penalty": 1.6, "num_beams": 5},
    {"early_stopping": "never", "length_penalty": 1.8, "num_beams": 5},
    {"max_new_tokens": 6, "min_length": 3, "early_stopping": False},
    {"min_length": 8, "no_repeat_ngram_size": 2, "length_penalty": -0.7},
    {"min_new_tokens": 7, "min_length": 11, "early_stopping": True, "no_repeat_ngram_size": 0},
    {"renormalize_logits": True, "suppress_tokens": [11, 12, 30]},
    {"temperature": 0.3, "top_k": 3, "top_p": 0.2, "min_p": 0.2, "top_h": 0.2, "typical_p": 0.2,
     "epsilon_cutoff": 0.2, "eta_cutoff": 0.2, "num_assistant_tokens": 3, "assistant_lookbehind": 3,
     "target_lookbehind": 3, "num_assistant_tokens_schedule": "heuristic",
     "speculation_type": "dflash", "assistant_confidence_threshold": 0.4,
     "assistant_ensemble_weight": 0.5, "max_matching_ngram_size": 3, "max_cache_len": 50,
     "return_dict_in_generate": True, "output_scores": True, "output_logits": True,
     "output_attentions": True, "output_hidden_states": True, "use_cache": False,
     "disable_compile": True, "cache_config": {"backend": "quanto"},
     "continuous_batching_config": {}, "remove_invalid_values": True,
     "transformers_version": "4.0.0", "_from_model_config": False, "_commit_hash": "0123"},
    {"cache_implementation": "static", "forced_bos_token_id": 9, "no_repeat_ngram_size": 2,
     "num_beams": 4, "min_new_tokens": 4, "max_new_tokens": 9, "suppress_tokens": [4, 5]},
    {name: values[0] for name, values in NEUTRAL.items() if values},
]  # fmt: skip
REFUSED: dict[str, Sequence] = {
    **dict.fromkeys(NEUTRAL, ("other",)),
    # No value of these kinds, or none of this model.
    "decoder_start_token_id": [61, -1, "</s>", 1.0, [7]],
    "eos_token_id": [[], [[2]], 61, True],
    "suppress_tokens": [5, [61]],
    "bad_words_ids": [[], [[]], [5], [[61]], [[3, 4]]],
    "num_beams": [0, 2.0, True, 10**9],
    "max_length": [1, 10**12],
    "length_penalty": ["x", float("nan"), True],
    "early_stopping": ["often", 1],
}
# Rules about the same tokens, whose order decides. END is the end token, and the others are not.
RULES: dict[str, dict] = {
    "bad words": {"bad_words_ids": [[7], [13], [END], [25]]},
    "words once": {"no_repeat_ngram_size": 1},
    "least length": {"min_length": LIMIT + 9},
    "least new tokens": {"min_new_tokens": 6, "min_length": 2},
    "forced first": {"forced_bos_token_id": 7},
    "forced first, an end": {"forced_bos_token_id": END},
    "forced last": {"forced_eos_token_id": 13},
    "forced last, an end": {"forced_eos_token_id": END},
    "two forced last": {"forced_eos_token_id": [25, 7]},
    "suppressed": {"suppress_tokens": [25, 30]},
    "ordinary start": {"decoder_start_token_id": 7},
    "two ends": {"eos_token_id": [END, 25]},
    "normalized": {"renormalize_logits": True},
}


@pytest.fixture(scope="module")
def dense(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("generation")
    tiny_model().save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    values = {"decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": END}
    values |= {"max_length": LIMIT, "bad_words_ids": [[PAD]]}
    (directory / GENERATION_FILE).write_text(json.dumps(values), "utf-8")
    return directory


@pytest.fixture
def copy(dense, tmp_path) -> Path:
    return Path(shutil.copytree(dense, tmp_path / "model"))


def cut(row: list[int], ends: list[int]) -> list[int]:
    """A row of `generate` without the start token and what is behind the end."""
    stop = next((i for i, token in enumerate(row[1:], 1) if token in ends), len(row))
    return row[1 : stop + 1]


def require_same_answers(directory: Path) -> None:
    """The runtime's search and this package's own calls give the tokens of transformers."""
    theirs = MarianMTModel.from_pretrained(directory)
    ours = open_checkpoint(str(directory)).model
    # So many rows that a sentence that ended does not leave the batch at once.
    batch = sources([3, 9, 6, 2, 9, 4, 7, 1, 5, 8, 3, 6])
    beams = max(3, theirs.generation_config.num_beams or 1)
    for answers in require_same_tokens(theirs, ours, batch, (1, beams)):
        assert len({tuple(row) for row in answers}) > 1


@torch.no_grad()
def require_same_tokens(
    theirs: MarianMTModel, ours: Any, batch: dict[str, torch.Tensor], widths: Sequence[int]
) -> list[list[list[int]]]:
    """Rows of tokens for each number of beams."""
    settings = Generation(**generation_settings(ours))
    generated = []
    for beams in widths:
        found = theirs.generate(**batch, num_beams=beams)
        rows = found if isinstance(found, torch.Tensor) else found.sequences
        assert torch.equal(generate(ours, batch, num_beams=beams), rows)
        wanted = [cut(row, settings.eos_token_id) for row in rows.tolist()]
        search = greedy if beams == 1 else beam_search
        options = settings.with_options(beams, None)
        answers = search(TorchDecoder(ours, batch), len(rows), options)
        pad = theirs.generation_config.pad_token_id
        if pad not in settings.eos_token_id:  # beam search pads what an early stop of others ends
            wanted = [row[: row.index(pad)] if pad in row else row for row in wanted]
            answers = [row[: row.index(pad)] if pad in row else row for row in answers]
        assert answers == wanted
        generated.append(wanted)
    return generated


def test_every_setting_is_known_and_tried():
    """A setting that is new in transformers fails here, and not a user."""
    known = {*SUPPORTED, *HARMLESS, *NEUTRAL}
    assert len(known) == len(SUPPORTED) + len(HARMLESS) + len(NEUTRAL)
    assert set(vars(transformers.GenerationConfig())) <= known
    assert {*SUPPORTED, *HARMLESS} <= set().union(*ANSWERED)


def test_every_setting_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text("utf-8")
    names = {*SUPPORTED, *HARMLESS, *NEUTRAL}
    assert {x for x in names if not x.startswith("_") and f"`{x}`" not in page} == set()


@pytest.mark.parametrize("values", ANSWERED, ids=lambda values: next(iter(values)))
def test_a_setting_is_followed_or_changes_nothing(values, copy):
    configure(GENERATION_FILE, **values)(copy)
    require_same_answers(copy)


@pytest.mark.slow
def test_rules_apply_in_the_order_of_transformers():
    """In pairs, with one beam and with three."""
    model = tiny_model().eval()
    plain = model.generation_config
    plain.update(max_length=8, pad_token_id=PAD, eos_token_id=END, bad_words_ids=[[PAD]])
    batch, found = sources([3, 9, 6, 2]), set()
    for first, second in itertools.combinations(RULES, 2):
        rules = RULES[first] | RULES[second]
        model.generation_config = deepcopy(plain)
        model.generation_config.update(**rules)
        ends = rules.get("forced_eos_token_id")
        tie = isinstance(ends, list) and not {*ends} & {*rules.get("suppress_tokens", ())}
        found.add(str(require_same_tokens(model, model, batch, (1,) if tie else (1, 3))))
    assert len(found) > 40, "rules need to change what is generated"


def test_two_forced_ends_are_for_greedy_search_alone(copy):
    """`torch.topk` returns equal values in any order."""
    configure(GENERATION_FILE, forced_eos_token_id=[25, 7])(copy)
    model: Any = open_checkpoint(str(copy)).model
    batch = sources([3, 9, 6, 2])
    answers = require_same_tokens(MarianMTModel.from_pretrained(copy), model, batch, (1,))
    assert 7 in {row[-1] for row in answers[0]}
    with raises(UsageError, "forced-ends-tie"):
        Generation(**generation_settings(model)).with_options(2, None)
    with raises(UsageError, "forced-ends-tie"):
        require_beams(model.generation_config, "--num-beams", 2)
    configure(GENERATION_FILE, num_beams=2)(copy)
    require_refusal(copy, GENERATION_FILE, "forced_eos_token_id")


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_is_refused_by_name(name, copy):
    for value in REFUSED[name]:
        configure(GENERATION_FILE, **{name: value})(copy)
        require_refusal(copy, GENERATION_FILE, name)


def test_a_setting_in_the_model_s_configuration_is_refused_by_name(copy):
    """Older checkpoints keep them there."""
    (copy / GENERATION_FILE).unlink()
    configure("config.json", stop_strings=["."])(copy)
    require_refusal(copy, "config.json", "stop_strings")


def require_refusal(directory: Path, *named: str) -> None:
    with raises(InputError, "setting-unsupported") as caught:
        open_checkpoint(str(directory))
    assert all(word in str(caught.value) for word in named)


def test_settings_come_from_where_transformers_takes_them(copy):
    # Old settings in `config.json` do not count beside a file of their own.
    configure("config.json", num_beams=2, length_penalty=3.0, do_sample=True)(copy)
    require_same_answers(copy)
    (copy / GENERATION_FILE).unlink()
    more = {"num_beams": 3, "length_penalty": 0.5, "no_repeat_ngram_size": 2, "do_sample": False}
    configure("config.json", max_length=LIMIT, bad_words_ids=[[PAD]], **more)(copy)
    require_same_answers(copy)


def test_a_setting_that_only_a_later_transformers_has_is_refused(copy, monkeypatch):
    monkeypatch.setattr(transformers.GenerationConfig, "sample_better", None, raising=False)
    configure(GENERATION_FILE, sample_better=True)(copy)
    require_refusal(copy, "sample_better")
    configure(GENERATION_FILE, sample_better=None, forced_bos_token_id=7, suppress_tokens=[7])(copy)
    with raises(InputError, "generation-config-malformed"):  # these do not go together
        open_checkpoint(str(copy))


def test_names_that_transformers_ignores_are_warned_of(copy):
    configure(GENERATION_FILE, num_beam=5)(copy)
    with pytest.warns(CompressWarning, match=r"sets num_beam, .*did you mean 'num_beams'"):
        open_checkpoint(str(copy))
    require_same_answers(copy)


def test_what_has_no_effect_is_saved(copy, tmp_path):
    """For those who call `generate`; `save_pretrained` of transformers refuses it."""
    values = {"output_scores": True, "temperature": 0.5, "top_k": 3, "early_stopping": True}
    configure(GENERATION_FILE, **values, decoder_start_token_id=None, bos_token_id=0)(copy)
    save_generation(open_checkpoint(str(copy)).model.generation_config, tmp_path)
    written = json.loads((tmp_path / GENERATION_FILE).read_text("utf-8"))
    assert written.items() >= {**values, "decoder_start_token_id": 0}.items()
