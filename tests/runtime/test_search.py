"""The runtime's search against transformers' own `generate`, token for token.

Both drive the same tiny random Marian model through PyTorch; the expected ids come from
`model.generate(do_sample=False)`.
"""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from compressor.runtime.artifact import Generation
from compressor.runtime.search import Decoder, beam_search, greedy
from tests.helpers.torch_decoder import TorchDecoder

VOCABULARY, PAD, END = 61, 60, 0
LIMIT = 14


@cache
def tiny_model(seed: int, end_bias: float) -> MarianMTModel:
    """Weights that give varied outputs; `end_bias` moves how early sentences end.

    The output layer is its own, since with shared embeddings a random model repeats its input.
    """
    torch.manual_seed(seed)
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, max_position_embeddings=48, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=PAD, forced_eos_token_id=None, scale_embedding=True,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed_positions" not in name:
                parameter.normal_(0, 0.3)
        model.lm_head.weight.normal_(0, 0.4)
        model.final_logits_bias[0, END] = end_bias
    return model


def sources(lengths: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """A batch of random rows, padded on the right."""
    rng = np.random.default_rng(seed)
    ids = np.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        ids[row, : length - 1] = rng.integers(2, PAD, length - 1)
        ids[row, length - 1] = END
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(ids != PAD).long()}


def expected(model: MarianMTModel, batch: dict[str, torch.Tensor], **options) -> list[list[int]]:
    """What `generate` gives, without the start token and what follows the end token."""
    options = {"max_length": LIMIT, "num_beams": 1, **options}
    with torch.no_grad():
        rows = model.generate(**batch, do_sample=False, **options).tolist()
    limit = options.get("max_new_tokens") or options["max_length"] - 1
    cut = []
    for row in rows:
        tokens = row[1 : 1 + limit]
        cut.append(tokens[: tokens.index(END) + 1] if END in tokens else tokens)
    # Beam search pads rows that end by an early stop of others; a pad is never a real token here.
    return [row[: row.index(PAD)] if PAD in row else row for row in cut]


def search(decoder: Decoder, rows: int, **options) -> list[list[int]]:
    """The runtime's answer for the options of `generate`."""
    banned = [word[0] for word in options.pop("bad_words_ids", [])]
    suppressed = sorted({*banned, *options.pop("suppress_tokens", [])})
    settings = Generation(
        decoder_start_token_id=PAD,
        suppress_tokens=suppressed,
        **{"eos_token_id": [END], "max_length": LIMIT, **options},
    )
    run = greedy if settings.num_beams == 1 else beam_search
    return run(decoder, rows, settings)


NO_PAD = {"bad_words_ids": [[PAD]]}
# As `generate` takes them; each is run greedily and with 2 and 5 beams.
OPTIONS: list[dict] = [
    {},
    {"max_new_tokens": 3},
    {"max_new_tokens": 1},
    {"min_length": 8},
    {"forced_bos_token_id": 7, "forced_eos_token_id": END},
    {"suppress_tokens": [PAD, 5, 6, 7, 20, 21]},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 1},
    {
        "no_repeat_ngram_size": 3, "min_length": 6, "forced_bos_token_id": 9,
        "forced_eos_token_id": END, "suppress_tokens": [11, 12],
    },
]  # fmt: skip
BEAM_OPTIONS: list[dict] = [
    {"length_penalty": 2.0},
    {"length_penalty": 0.3},
    {"length_penalty": 0.0},
    {"length_penalty": -0.7},
    {"early_stopping": True},
    {"early_stopping": True, "length_penalty": 1.6},
    {"early_stopping": "never"},
    {"early_stopping": "never", "length_penalty": 1.8},
    {"early_stopping": "never", "length_penalty": -0.5},
    {"early_stopping": "never", "length_penalty": 0.0},
    {"renormalize_logits": True, "suppress_tokens": list(range(20, 30))},
    {"early_stopping": True, "min_length": 6, "no_repeat_ngram_size": 2},
]
# Alone, and so many that a finished sentence does not leave the batch at once.
BATCHES = ([5], [3, 9, 6, 2, 9, 4, 7, 1, 5, 8, 3, 6])
# Number of beams -> seed and bias of the model.
MODELS = {1: (0, 2.0), 2: (4, 1.5), 5: (7, 2.0)}


CASES = [(options, beams) for options in OPTIONS for beams in MODELS]
CASES += [(options, beams) for options in BEAM_OPTIONS for beams in (2, 5)]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "beams"), CASES, ids=str)
def test_equals_generate(options: dict, beams: int) -> None:
    model = tiny_model(*MODELS[beams])
    options = {**NO_PAD, **options, "num_beams": beams}
    for lengths in BATCHES:
        batch = sources(lengths, beams)
        want = expected(model, batch, **options)
        assert search(TorchDecoder(model, batch), len(lengths), **options) == want
    assert len({tuple(row) for row in want}) > 2, "the test needs varied outputs"


@pytest.mark.parametrize("beams", [1, 3, 4])
def test_several_end_tokens(beams: int) -> None:
    """Likely ones: most of the best candidates end, and enough others must be found."""
    lengths = [5, 8, 3, 4, 6, 2, 9, 7]
    model, batch = copy.deepcopy(tiny_model(7, 2.0)), sources(lengths)
    ends = [END, 13, 27]
    model.final_logits_bias[0, ends] = 3.5
    options = {"num_beams": beams, "max_length": LIMIT, "length_penalty": 2.0, **NO_PAD}
    with torch.no_grad():
        rows = model.generate(**batch, do_sample=False, eos_token_id=ends, **options).tolist()
    want = []
    for row in rows:
        stop = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
        want.append(row[1 : stop + 1])
    assert search(TorchDecoder(model, batch), len(lengths), eos_token_id=ends, **options) == want
    assert {row[-1] for row in want} & {13, 27}, "the test needs another end than the first"


@pytest.mark.parametrize("beams", [1, 4])
def test_sentences_end_at_different_lengths_and_leave_the_batch(beams: int) -> None:
    lengths = [3, 9, 6, 2, 9, 4, 7, 5]
    model, batch = tiny_model(4, 1.5), sources(lengths, 1)
    options = {**NO_PAD, "num_beams": beams, "early_stopping": beams > 1, "max_length": 40}
    decoder = TorchDecoder(model, batch)
    got = search(decoder, len(lengths), **options)
    assert got == expected(model, batch, **options)
    ended = {len(row) for row in got}
    assert len(ended) > 2, "the test needs outputs of several lengths"
    assert decoder.row_steps < max(ended) * len(lengths) * beams


def test_forced_length_ignores_the_end() -> None:
    model, batch = tiny_model(4, 1.8), sources([3, 9, 6])
    settings = Generation(
        decoder_start_token_id=PAD, eos_token_id=[END], max_length=5, min_length=4, num_beams=3,
        forced_eos_token_id=END, suppress_tokens=[PAD],
    ).with_length(9)  # fmt: skip
    rows = greedy(TorchDecoder(model, batch), 3, settings)
    assert [len(row) for row in rows] == [9, 9, 9]
    assert any(END in row[:-1] for row in rows), "the test needs a row that would have ended"
    # The same steps by hand, with the whole prefix each time and no cache.
    ids = torch.full((3, 1), PAD)
    for _ in range(9):
        with torch.no_grad():
            logits = model(**batch, decoder_input_ids=ids).logits[:, -1]
        logits[:, PAD] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    assert rows == ids[:, 1:].tolist()


def test_greedy_search_reads_no_logits_where_no_rule_can_change_the_best():
    """Tokens of a decoder that counts up; its logits, where asked for, say the opposite."""

    class Counting:
        def __init__(self) -> None:
            self.asked: list[int] = []
            self.at = 0

        def step(self, tokens: np.ndarray) -> Counting:
            self.at += 1
            return self

        def best(self) -> np.ndarray:
            return np.array([self.at])

        def scores(self) -> np.ndarray:
            self.asked.append(self.at)
            return -np.arange(VOCABULARY, dtype=np.float32)[None] * np.ones((1, 1), np.float32)

    settings = {"decoder_start_token_id": PAD, "eos_token_id": [END], "max_new_tokens": 6}
    for options, tokens, asked in (
        ({}, [1, 2, 3, 4, 5, 6], []),
        # Token 3 is banned, so step 3 looks at the logits, where 0, the end, is best.
        ({"suppress_tokens": [3]}, [1, 2, END], [3]),
        # No end before four tokens, the start token counted: in steps 1 to 3 token 1 is the best.
        ({"min_length": 4}, [1, 1, 1, 4, 5, 6], [1, 2, 3]),
        ({"forced_bos_token_id": 9, "forced_eos_token_id": 8}, [9, 2, 3, 4, 5, 8], [1, 6]),
        ({"no_repeat_ngram_size": 2}, [END], [1]),
    ):
        decoder = Counting()
        assert greedy(decoder, 1, Generation(**settings, **options)) == [tokens]
        assert decoder.asked == asked
