"""The runtime's search against transformers' own `generate`, token for token.

Both drive the same tiny random Marian model through PyTorch; the expected ids come from
`model.generate(do_sample=False)`. The selection of the best tokens is compared with a full sort.
"""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from compressor.runtime import beam_search as beams_module
from compressor.runtime import search as search_module
from compressor.runtime.beam_search import beam_search, hypotheses_in_place, top_k
from compressor.runtime.generation import Generation
from compressor.runtime.search import Decoder, greedy
from tests.helpers.decoders import TorchDecoder

VOCABULARY, PAD, END = 61, 60, 0
LIMIT = 14


@cache
def tiny_model(seed: int, end_bias: float) -> MarianMTModel:
    """Weights that give varied outputs; `end_bias` moves how early sentences end.

    The output layer is its own, since with shared embeddings a random model repeats its input.
    """
    torch.manual_seed(seed)
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=48,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        scale_embedding=True,
        tie_word_embeddings=False,
    )
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


class RankingDecoder(TorchDecoder):
    """Selects the best tokens where its logits are."""

    def top(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        values, tokens = self.logits.log_softmax(-1).topk(count)
        return values.numpy(), tokens.numpy()


def expected(model: MarianMTModel, batch: dict[str, torch.Tensor], **options) -> list[list[int]]:
    """What `generate` gives, without the start token and what follows an end token."""
    options = {"max_length": LIMIT, "num_beams": 1, "eos_token_id": [END], **options}
    with torch.no_grad():
        rows = model.generate(**batch, do_sample=False, **options).tolist()
    limit = options.get("max_new_tokens") or options["max_length"] - 1
    cut = []
    for row in rows:
        tokens = row[1 : 1 + limit]
        ends = [at for at, token in enumerate(tokens) if token in options["eos_token_id"]]
        # Beam search pads rows that others outlast; a pad is never a real token here.
        tokens = tokens[: ends[0] + 1] if ends else tokens
        cut.append(tokens[: tokens.index(PAD)] if PAD in tokens else tokens)
    return cut


def search(decoder: Decoder, rows: int, **options) -> list[list[int]]:
    """The runtime's answer for the options of `generate`."""
    suppressed = sorted({PAD, *options.pop("suppress_tokens", [])})
    del options["bad_words_ids"]
    given = {"eos_token_id": [END], "max_length": LIMIT, "suppress_tokens": suppressed, **options}
    settings = Generation(decoder_start_token_id=PAD, **given)
    return (greedy if settings.num_beams == 1 else beam_search)(decoder, rows, settings)


NO_PAD = {"bad_words_ids": [[PAD]]}
# As `generate` is asked for; each is run greedily and with several beams.
OPTIONS: dict[str, dict] = {
    "plain": {},
    "short": {"max_new_tokens": 3},
    "one token": {"max_new_tokens": 1},
    "min_length": {"min_length": 8},
    "forced": {"forced_bos_token_id": 7, "forced_eos_token_id": END},
    "suppressed": {"suppress_tokens": [PAD, 5, 6, 7, 20, 21]},
    "no repeats": {"no_repeat_ngram_size": 2},
    "no token twice": {"no_repeat_ngram_size": 1},
    "trigrams and all": {
        "no_repeat_ngram_size": 3,
        "min_length": 6,
        "forced_bos_token_id": 9,
        "forced_eos_token_id": END,
        "suppress_tokens": [11, 12],
    },
}
BEAM_OPTIONS: dict[str, dict] = {
    "long": {"length_penalty": 2.0},
    "short": {"length_penalty": 0.3},
    "no penalty": {"length_penalty": 0.0},
    "negative penalty": {"length_penalty": -0.7},
    "early": {"early_stopping": True},
    "early long": {"early_stopping": True, "length_penalty": 1.6},
    "never": {"early_stopping": "never"},
    "never long": {"early_stopping": "never", "length_penalty": 1.8},
    "never negative penalty": {"early_stopping": "never", "length_penalty": -0.5},
    "never no penalty": {"early_stopping": "never", "length_penalty": 0.0},
    "renormalized": {"renormalize_logits": True, "suppress_tokens": list(range(20, 30))},
    "early min": {"early_stopping": True, "min_length": 6, "no_repeat_ngram_size": 2},
}
# Number of beams -> seed and bias of the model.
MODELS = {1: (0, 2.0), 2: (4, 1.5), 3: (7, 2.2), 4: (0, 2.2), 5: (7, 2.0)}
CASES = [
    *((OPTIONS[name], beams) for name in OPTIONS for beams in (1, 3)),
    *((BEAM_OPTIONS[name], beams) for name, beams in zip(BEAM_OPTIONS, [2, 4, 5] * 4, strict=True)),
]


@pytest.mark.parametrize(("options", "beams"), CASES, ids=str)
def test_tokens_are_those_of_generate(options: dict, beams: int) -> None:
    """Of a row alone, and of so many that a finished one does not leave the batch at once."""
    model = tiny_model(*MODELS[beams])
    options = {**NO_PAD, **options, "num_beams": beams}
    for lengths in ([5], [3, 9, 6, 2, 9, 4, 7, 1, 5, 8, 3, 6]):
        batch = sources(lengths, beams)
        want = expected(model, batch, **options)
        assert search(TorchDecoder(model, batch), len(lengths), **options) == want
        assert search(RankingDecoder(model, batch), len(lengths), **options) == want
    assert len({tuple(row) for row in want}) > 2, "the test needs varied outputs"


@pytest.mark.parametrize("beams", [1, 3, 4])
def test_several_end_tokens(beams: int) -> None:
    """Likely ones: most of the best candidates end, and enough others must be found."""
    lengths, ends = [5, 8, 3, 4, 6, 2, 9, 7], [END, 13, 27]
    model, batch = copy.deepcopy(tiny_model(7, 2.0)), sources(lengths)
    model.final_logits_bias[0, ends] = 3.5
    options = {"num_beams": beams, "eos_token_id": ends, "length_penalty": 2.0, **NO_PAD}
    want = expected(model, batch, **options)
    for decoder in (TorchDecoder, RankingDecoder):
        assert search(decoder(model, batch), len(lengths), **options) == want
    assert {row[-1] for row in want} & {13, 27}, "the test needs another end than the first"


@pytest.mark.parametrize("share", [1e-9, 0.3, 1.0])
@pytest.mark.parametrize("beams", [1, 4])
def test_when_sentences_leave_changes_no_token(
    beams: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, when there are some, or when all are done, as in `generate` itself."""
    lengths = [3, 9, 6, 2, 9, 4, 7, 5, 8, 3]
    model, batch = tiny_model(4, 1.5), sources(lengths, 1)
    options = {**NO_PAD, "num_beams": beams, "early_stopping": beams > 1, "max_length": 40}
    for module in (search_module, beams_module):
        monkeypatch.setattr(module, "MIN_FINISHED_SHARE", share)
    decoder = TorchDecoder(model, batch)
    got = search(decoder, len(lengths), **options)
    assert got == expected(model, batch, **options)
    steps = max(map(len, got))
    if share == 1:  # all rows to the end; the first step of beam search has one row per sentence
        assert decoder.row_steps >= len(lengths) * (1 + beams * (steps - 1))
    elif share < 0.1 and beams == 1:  # not a row more than there are tokens
        assert decoder.row_steps == sum(map(len, got))


def test_a_forced_length_ignores_the_end() -> None:
    model, batch = tiny_model(4, 1.8), sources([3, 9, 6])
    settings = Generation(
        decoder_start_token_id=PAD,
        eos_token_id=[END],
        max_length=5,
        min_length=4,
        num_beams=3,
        forced_eos_token_id=END,
        suppress_tokens=[PAD],
    ).with_length(9)
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


class Counting:
    """Its best token counts up; its logits, where asked for, say the opposite."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.at = 0

    def step(self, tokens: np.ndarray) -> None:
        self.at += 1

    def best(self) -> np.ndarray:
        return np.array([self.at])

    def scores(self) -> np.ndarray:
        self.asked.append(self.at)
        return -np.arange(VOCABULARY, dtype=np.float32)[None]


@pytest.mark.parametrize(
    ("options", "tokens", "asked"),
    [
        ({}, [1, 2, 3, 4, 5, 6], []),
        # Token 3 is banned, so step 3 looks at the logits, where 0, the end, is best.
        ({"suppress_tokens": [3]}, [1, 2, END], [3]),
        # No end before four tokens, the start token counted: in steps 1 to 3 token 1 is the best.
        ({"min_length": 4}, [1, 1, 1, 4, 5, 6], [1, 2, 3]),
        ({"forced_bos_token_id": 9, "forced_eos_token_id": 8}, [9, 2, 3, 4, 5, 8], [1, 6]),
        ({"no_repeat_ngram_size": 2}, [END], [1]),
    ],
)
def test_greedy_search_reads_logits_only_where_a_rule_can_change_the_best(options, tokens, asked):
    settings = {"decoder_start_token_id": PAD, "eos_token_id": [END], "max_new_tokens": 6}
    decoder = Counting()
    assert greedy(decoder, 1, Generation(**settings, **options)) == [tokens]
    assert decoder.asked == asked


@pytest.mark.parametrize(
    ("n", "k"), [(8, 8), (61, 6), (305, 10), (5000, 8), (4097, 3), (60_001, 6)]
)
def test_top_k_equals_a_full_sort(n: int, k: int) -> None:
    scores = np.random.default_rng(n).standard_normal((7, n)).astype(np.float32)
    scores[0, : n // 2] = -np.inf
    values, places = top_k(scores, k)
    assert values.tolist() == np.sort(scores, axis=1)[:, ::-1][:, :k].tolist()
    assert np.take_along_axis(scores, places, axis=1).tolist() == values.tolist()
    assert all(len(set(row)) == k for row in places.tolist())


def test_hypotheses_stay_in_their_rows() -> None:
    """All that can; of several that continue one row the best, and the others in their order."""
    parents = [[2, 0, 2, 1], [0, 0, 0, 0], [3, 2, 1, 0], [1, 3, 1, 3]]
    wanted = [[1, 3, 0, 2], [0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]]
    assert hypotheses_in_place(np.array(parents)).tolist() == wanted


def test_beams_copy_as_few_rows_as_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row changes only where two hypotheses continue one."""
    moved: list[np.ndarray] = []
    reorder = TorchDecoder.reorder
    monkeypatch.setattr(
        TorchDecoder, "reorder", lambda self, rows: [moved.append(rows), reorder(self, rows)]
    )
    lengths = [5, 8, 3]
    model, batch = tiny_model(0, 2.2), sources(lengths)
    search(TorchDecoder(model, batch), len(lengths), num_beams=4, **NO_PAD)
    steps = [rows for rows in moved if len(rows) == 12 and not (rows[::4] == rows[3::4]).all()]
    assert len(steps) > 3
    for rows in steps:
        changed = np.count_nonzero(rows != np.arange(12))
        assert changed == 12 - len(set(rows.tolist()))
